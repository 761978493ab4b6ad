//! slat's memslots, as they ship.

use super::design::{Design, Machine, Memslots};
use super::memory::Memory;
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Slot, SlotId, Span, TableMemory, Why};
use slat_cli::error::Error;
use std::sync::Arc;

/// See the module's header.
pub struct Ours;

/// The bench's memory as a host.
pub struct Direct(Arc<Memory>);

/// The slots of a VM.
pub struct Slots<'vm> {
    vm: &'vm Machine<Ours>,
}

impl Direct {
    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.0
    }
}

// SAFETY: the trait's defaults keep its contract.
unsafe impl TableMemory for Direct {}

impl Host for Direct {
    #[inline]
    fn lookup(&self, hva: Hva, _access: Access) -> Option<HostPage> {
        self.0.page(hva)
    }

    fn resolve(&self, _idle: &mut Idle, hva: Hva, _access: Access) -> Result<HostPage, HostError> {
        self.0.page(hva).ok_or(HostError::Fault)
    }
}

impl Design for Ours {
    type Host = Direct;
    type Slots<'vm> = Slots<'vm>;

    fn host(memory: &Arc<Memory>) -> Direct {
        Direct(memory.clone())
    }

    fn slots<'vm>(vm: &'vm Machine<Self>, _idle: &mut Idle) -> Result<Slots<'vm>, Error> {
        Ok(Slots { vm })
    }
}

impl Memslots for Slots<'_> {
    fn populate(&mut self, idle: &mut Idle, mut slots: impl Iterator<Item = Slot>) -> Result<(), Error> {
        Ok(self.vm.slots().commit(idle, |tx| slots.try_for_each(|slot| tx.create(slot)))?)
    }

    fn create(&mut self, idle: &mut Idle, slot: Slot) -> Result<(), Error> {
        Ok(self.vm.slots().commit(idle, |tx| tx.create(slot))?)
    }

    fn move_to(&mut self, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<(), Error> {
        self.vm.slots().commit(idle, |tx| tx.move_to(id, gfn))?;
        Ok(())
    }

    fn get(&mut self, idle: &mut Idle, id: SlotId) -> Option<Slot> {
        self.vm.slots().get(idle, id)
    }

    fn take_away(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        let mut change = self.vm.invalidate(hvas, Why::Clear);
        change.apply(idle).settle();
        self.vm.host().memory().take_away(hvas);
        drop(change);
    }
}
