//! One of the two machines: an arena, an address space on it, a VM on that, and the guest's memory in slots.

use crate::bench::machine_error;
use slat::table::formats::Npt4;
use slat::{DirtyLog, Gfn, Hva, Idle, Level, PAGE_SIZE, Slot, Span, Vm};
use slat_cli::error::Error;
use slat_cli::thread;
use slat_migrate::{MemoryRange, Target};
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_vcpu::Window;
use std::sync::Arc;

/// Guest address 0, as the host sees it.
const BASE: Hva = Hva(0x1000_0000_0000);
/// What a freed frame is filled with: a guest that still reads it finds this.
const POISON: u8 = 0xdd;

/// See the module's header.
#[derive(Debug)]
pub struct Machine {
    pub space: Arc<AddressSpace>,
    pub vm: Arc<Vm<Npt4, HostView>>,
    /// In order of guest frames.
    pub slots: Vec<Slot>,
}

/// How a machine is built.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub vcpus: u32,
    pub log: DirtyLog,
    /// Its slots log from the start.
    pub logs: bool,
    /// The largest page that the host uses.
    pub largest: Level,
    /// Negative control: harvests do not flush.
    pub sabotage_rearm: bool,
}

impl Machine {
    /// A machine with `slots` of memory, whose host addresses it decides itself. Nothing is brought in.
    pub fn new(idle: &mut Idle, slots: &[Slot], settings: Settings) -> Result<Self, Error> {
        let bytes: u64 = slots.iter().map(|slot| slot.gfns.len() * PAGE_SIZE).sum();
        let limit = bytes + bytes / 64 + (32 << 20);
        let arena = Arena::builder().limit(limit).poison(POISON).build()?;
        let space = AddressSpace::builder(&arena).thp(settings.largest > Level::K4).build()?;
        let builder = Vm::<Npt4, _>::builder(HostView::new(&space))
            .vcpus(settings.vcpus)
            .max_page(settings.largest)
            .dirty_log(settings.log);
        let builder = if settings.sabotage_rearm { builder.sabotage_rearm() } else { builder };
        let vm = Arc::new(builder.build().map_err(machine_error)?);
        space.register(&vm);
        let mut placed = Vec::with_capacity(slots.len());
        for slot in slots {
            let hva = BASE + slot.gfns.start.gpa().0;
            let slot = Slot { hva, log_dirty: settings.logs, ..*slot };
            let hvas = slot.hvas();
            space.mmap(Place::Fixed(hva), hvas.end.0 - hvas.start.0, Prot::ReadWrite, Backing::Anonymous)?;
            vm.slots().commit(idle, |tx| tx.create(slot))?;
            placed.push(slot);
        }
        placed.sort_unstable_by_key(|slot| slot.gfns.start);
        Ok(Self { space, vm, slots: placed })
    }

    /// The frames, for software vCPUs.
    pub fn window(&self) -> Window {
        thread::window(self.space.arena())
    }
}

/// A machine that arrives: built when its memory is known.
#[derive(Debug)]
pub struct Arriving {
    idle: Idle,
    settings: Settings,
    machine: Option<Machine>,
}

impl Arriving {
    pub fn new(idle: Idle, settings: Settings) -> Self {
        Self { idle, settings, machine: None }
    }

    /// The machine, once it has arrived.
    pub fn machine(self) -> Result<Machine, Error> {
        self.machine.ok_or_else(|| machine_error("no machine has arrived"))
    }

    /// What is called with where these frames lie. They are in its log from then on: the host writes there, not a guest.
    fn fill(
        &mut self,
        gfns: Span<Gfn>,
        fill: impl FnOnce(&mut Idle, &Machine, Span<Hva>) -> Result<(), slat_mm::MmError>,
    ) -> Result<(), Error> {
        let Some(machine) = &self.machine else { return Ok(()) };
        let Some(slot) = machine.slots.iter().find(|slot| slot.gfns.covers(&gfns)) else { return Ok(()) };
        let hvas = Span::sized(slot.hva_of(gfns.start), gfns.len() * PAGE_SIZE);
        fill(&mut self.idle, machine, hvas)?;
        machine.vm.mark_dirty(hvas);
        Ok(())
    }
}

impl Target for Arriving {
    type Error = Error;

    fn create(&mut self, ranges: &[MemoryRange]) -> Result<(), Error> {
        let slots =
            ranges.iter().map(|range| Slot::new(range.slot, range.gfns.start, range.gfns.len(), Hva(0)));
        let slots: Vec<Slot> = slots.collect();
        self.machine = Some(Machine::new(&mut self.idle, &slots, self.settings)?);
        Ok(())
    }

    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Error> {
        self.fill(gfns, |idle, machine, hvas| machine.space.write(idle, hvas.start, contents))
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Error> {
        self.fill(gfns, |idle, machine, hvas| machine.space.dontneed(idle, hvas))
    }
}
