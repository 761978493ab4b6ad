//! The engine's dirty log, for a [`Source`](crate::Source).

use crate::identity::Session;
use slat::{DirtyError, DirtyWord, Format, Harvest, Host, Idle, SlotError, SlotId, Vm};
use std::collections::HashSet;

/// The dirty log of a [`Vm`]'s own address space, with its last harvest and its [`Session`]. Dropping this gives the
/// harvest back, and forgets the receiver: another log begins anew. Keep it to continue a migration.
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # use slat_migrate::VmLog;
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut log = VmLog::new(&vm);
/// log.mark_all(&mut idle, [SlotId(0)])?;
/// assert_eq!(log.harvest(&mut idle)?.len(), 8, "512 pages, 64 per word");
/// log.commit();
///
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
/// // Only pages stored to since are dirty.
/// assert_eq!(log.harvest(&mut idle)?[0].bits, 1 << 5);
/// log.give_back();
/// assert_eq!(log.harvest(&mut idle)?.len(), 1);
/// log.commit();
///
/// // Another migration begins with every page.
/// log.mark_all(&mut idle, [SlotId(0)])?;
/// assert_eq!(log.harvest(&mut idle)?.len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VmLog<'vm, F: Format, H: Host> {
    vm: &'vm Vm<F, H>,
    harvest: Option<Harvest<'vm, F, H>>,
    session: Session,
}

impl<'vm, F: Format, H: Host> VmLog<'vm, F, H> {
    /// Wraps the log of `vm`.
    pub fn new(vm: &'vm Vm<F, H>) -> Self {
        Self { vm, harvest: None, session: Session::new() }
    }

    /// [`Source::session`](crate::Source::session).
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// [`Source::mark_all`](crate::Source::mark_all): the slots log from here on, and each of their pages is dirty. With
    /// [`DirtyLog::initially_set`](slat::DirtyLog::initially_set), this write-protects nothing at once.
    pub fn mark_all(
        &mut self,
        idle: &mut Idle,
        slots: impl IntoIterator<Item = SlotId>,
    ) -> Result<(), SlotError> {
        self.give_back();
        let (slots, ids): (_, HashSet<SlotId>) = (self.vm.slots(), slots.into_iter().collect());
        slots.commit(idle, |tx| ids.iter().try_for_each(|&id| tx.set_log_dirty(id, true).map(drop)))?;
        for slot in slots.snapshot(idle).iter().filter(|slot| ids.contains(&slot.id)) {
            slots.mark_dirty(slot.gfns);
        }
        Ok(())
    }

    /// [`Source::harvest`](crate::Source::harvest). Gives an uncommitted harvest back first.
    pub fn harvest(&mut self, idle: &mut Idle) -> Result<Vec<DirtyWord>, DirtyError> {
        self.give_back();
        Ok(self.harvest.insert(self.vm.slots().harvest_all(idle)?).words().collect())
    }

    /// [`Source::commit`](crate::Source::commit).
    pub fn commit(&mut self) {
        if let Some(harvest) = self.harvest.take() {
            harvest.commit();
        }
    }

    /// [`Source::give_back`](crate::Source::give_back).
    pub fn give_back(&mut self) {
        self.harvest = None;
    }
}
