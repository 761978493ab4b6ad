//! One of the two machines: an arena, an address space on it, a VM on that, and the guest's memory in slots.

use super::checked_guest::Guest;
use crate::scenarios::threads_prelude::*;
use slat_cli::{migration, thread};
use slat_migrate::{MemoryRange, Target};
use slat_vcpu::Window;
use std::collections::HashSet;

/// See the module's header.
#[derive(Debug)]
pub struct Machine {
    pub space: Arc<AddressSpace>,
    pub vm: Arc<Vm<Npt4, HostView>>,
    /// Its slots, in order of guest frames.
    pub ranges: Vec<MemoryRange>,
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
    /// Negative control: its host says that each flush was broadcast, and does none.
    pub sabotage_rearm: bool,
}

impl Machine {
    /// A machine with these ranges of memory, each a slot. Nothing is brought in.
    pub fn new(idle: &mut Idle, ranges: &[MemoryRange], settings: Settings) -> Result<Self> {
        let bytes: u64 = ranges.iter().map(|range| range.gfns.len() * PAGE_SIZE).sum();
        let limit = bytes + bytes / 64 + (32 << 20);
        let arena = Arena::builder().limit(limit).poison(POISON).build()?;
        let space = AddressSpace::builder(&arena).thp(settings.largest > Level::K4).build()?;
        let host = HostView::new(&space).with_broadcast(move |_| settings.sabotage_rearm);
        let builder = Vm::<Npt4, _>::builder(host)
            .vcpus(settings.vcpus)
            .max_page(settings.largest)
            .dirty_log(settings.log);
        let vm = Arc::new(builder.build().map_err(machine_error)?);
        space.register(&vm);
        for &MemoryRange { slot, gfns } in ranges {
            let hvas = hvas_of(gfns);
            space.mmap(
                Place::Fixed(hvas.start),
                hvas.end.0 - hvas.start.0,
                Prot::ReadWrite,
                Backing::Anonymous,
            )?;
            let slot = Slot::new(slot, gfns.start, gfns.len(), hvas.start);
            vm.memory().commit(idle, |tx| tx.create(Slot { log_dirty: settings.logs, ..slot }))?;
        }
        Ok(Self { space, vm, ranges: ranges.to_vec() })
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
    pub fn machine(self) -> Result<Machine> {
        self.machine.ok_or_else(|| machine_error("no machine has arrived"))
    }

    fn store(&mut self, gfns: Span<Gfn>, contents: Option<&[u8]>) -> Result<()> {
        let Some(Machine { space, vm, .. }) = &self.machine else { return Ok(()) };
        Ok(migration::store(space, vm, &mut self.idle, hvas_of(gfns), contents)?)
    }
}

impl Target for Arriving {
    type Error = Error;

    fn create(&mut self, ranges: &[MemoryRange]) -> Result<()> {
        self.machine = Some(Machine::new(&mut self.idle, ranges, self.settings)?);
        Ok(())
    }

    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<()> {
        self.store(gfns, Some(contents))
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<()> {
        self.store(gfns, None)
    }
}

// Compares the receiver's memory with the sender's and with what the guests wrote, byte by byte, while the guests are halted.

/// The counts. All but the first are zero where nothing was lost.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    pub pages: u64,
    /// Pages that are not as they are at the sender.
    pub not_the_senders: u64,
    /// Pages that are not what the guest has written.
    pub not_the_guests: u64,
    /// Pages that came, and that the receiving machine's own log does not tell of.
    pub unmarked: u64,
    /// The first page that differs.
    pub first: Option<Gfn>,
}

/// Compares both machines with each other and with what the guests know. Takes what the receiver has logged.
pub fn compare(
    idle: &mut Idle,
    sender: &Machine,
    receiver: &Machine,
    guests: &[Mutex<Guest>],
) -> Result<Compared> {
    let marked: HashSet<Gfn> = {
        let harvest = receiver.vm.memory().harvest_all(idle)?;
        let marked = harvest.iter().map(|page| page.gfn).collect();
        harvest.commit();
        marked
    };
    let mut compared = Compared::default();
    let read = |idle: &mut Idle, machine: &Machine, gfn| {
        let mut page = [0; PAGE_SIZE as usize];
        machine.space.read(idle, hvas_of(Span::sized(gfn, 1)).start, &mut page).map(|()| page)
    };
    for (range, guest) in sender.ranges.iter().zip(guests) {
        let guest = guest.lock();
        for gfn in (range.gfns.start.0..range.gfns.end.0).map(Gfn) {
            let (sent, came) = (read(idle, sender, gfn)?, read(idle, receiver, gfn)?);
            let [other, lost] = [sent != came, guest.expected(gfn) != came];
            compared.pages += 1;
            compared.not_the_senders += u64::from(other);
            compared.not_the_guests += u64::from(lost);
            compared.unmarked += u64::from(came != [0; PAGE_SIZE as usize] && !marked.contains(&gfn));
            if other || lost {
                compared.first.get_or_insert(gfn);
            }
        }
    }
    Ok(compared)
}
