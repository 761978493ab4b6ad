//! A design of memslots: a host under the engine, with operations for the host's thread. They are slat's own unless said otherwise; the
//! design before the series is [`array`](super::array).

use crate::scenarios::prelude::*;

/// The VM that all designs run on; they differ in its host and in their operations.
pub type Machine<D> = Vm<Ept4, D>;

/// See the module's header. One thread at a time does the operations; all may sleep.
pub trait Design: Host + Sized + 'static {
    /// vCPUs that a VM can have, at most.
    const MOST_VCPUS: u32 = u32::MAX;
    /// A host on this memory, for one VM that [`machine`](Self::machine) makes.
    fn over(memory: SimHost) -> Self;
    /// That memory.
    fn memory(&self) -> &SimHost;
    /// The first that is done to a VM.
    fn prepare(_: &Machine<Self>, _: &mut Idle) -> Result<(), String> {
        Ok(())
    }
    /// Adds many slots at once.
    fn populate(
        vm: &Machine<Self>,
        idle: &mut Idle,
        mut slots: impl Iterator<Item = Slot>,
    ) -> Result<(), String> {
        let made = vm.memory().commit(idle, |tx| slots.try_for_each(|slot| tx.create(slot)));
        made.map_err(|error| error.to_string())
    }
    /// Adds one.
    fn create(vm: &Machine<Self>, idle: &mut Idle, slot: Slot) -> Result<(), String> {
        vm.memory().commit(idle, |tx| tx.create(slot)).map_err(|error| error.to_string())
    }
    /// Moves one.
    fn move_to(vm: &Machine<Self>, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<(), String> {
        let moved = vm.memory().commit(idle, |tx| tx.move_to(id, gfn));
        moved.map(|_| ()).map_err(|error| error.to_string())
    }
    /// The slot of this id.
    fn get(vm: &Machine<Self>, idle: &mut Idle, id: SlotId) -> Option<Slot> {
        vm.memory().get(idle, id)
    }
    /// The host takes the pages of `hvas` away, once no vCPU uses them any more.
    fn take_away(vm: &Machine<Self>, idle: &mut Idle, hvas: Span<Hva>) {
        let change = vm.invalidate(hvas, Reason::Clear).apply(idle).settle();
        vm.host().memory().take_away(hvas);
        drop(change);
    }

    /// A VM that can have so many slots, and has none. `with` has the last word.
    fn machine(
        memory: SimHost,
        setting: &Setting<'_>,
        slots: u32,
        with: impl FnOnce(Builder<Ept4, Self>) -> Builder<Ept4, Self>,
    ) -> Result<Machine<Self>, String> {
        if setting.vcpus > Self::MOST_VCPUS {
            return Err(format!(
                "{} vCPUs are too many for this design: {} at most",
                setting.vcpus,
                Self::MOST_VCPUS
            ));
        }
        let builder = builder(Self::over(memory), setting, setting.column.lock).max_slots(slots);
        let vm = with(builder).build().map_err(|error| error.to_string())?;
        Self::prepare(&vm, &mut idle()?)?;
        Ok(vm)
    }
}

impl Design for SimHost {
    fn over(memory: SimHost) -> Self {
        memory
    }

    fn memory(&self) -> &SimHost {
        self
    }
}

/// The setting of a real run in which only the engine, the slots and the guest take time.
#[cfg(not(virtual_time))]
pub fn engine_alone() -> Setting<'static> {
    Setting {
        costs: &crate::world::Costs::SERVER,
        vcpus: 1,
        column: NONE,
        quick: false,
        seed: 1,
        work: Work::none(),
    }
}

/// A VM of slat's that can have so many slots, and has none; its host has no page.
#[cfg(not(virtual_time))]
pub fn empty_vm(slots: u32) -> Result<Machine<SimHost>, slat_cli::error::Error> {
    let memory = SimHost::new(0, &crate::parts::setting::Work::none());
    SimHost::machine(memory, &engine_alone(), slots, |builder| builder)
        .map_err(slat_cli::error::Error::Machine)
}
