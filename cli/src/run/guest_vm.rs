//! The VM that a guest runs in, with its host memory: an arena of frames, an address space, and the regions of guest
//! memory.

use super::args::{Run, Swaps};
use super::choices::DirtyLogName;
use super::events::Events;
use crate::error::Error;
use crate::temporary::Temporary;
use crate::thread;
use slat::baselines::Baseline;
use slat::{FaultError, Format, Gfn, Gpa, HostError, Hva, Idle, Level, PAGE_SIZE, Slot, SlotId, Span, Vm};
use slat_mm::{AddressSpace, Arena, Backing, HostView, MmError, Place, Prot, Swap, SwapBuilder};
use slat_vcpu::Window;
use slat_vcpu::guest::Layout;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The host address of guest address 0: a multiple of 1 GiB.
const BASE: Hva = Hva(0x1000_0000_0000);
/// The byte that fills a freed frame. A guest that still uses the frame reads this value.
const POISON: u8 = 0xdd;

/// The machine. See the module's header.
pub struct Machine<F: Format> {
    pub space: Arc<AddressSpace>,
    /// The swap devices, if there are any.
    pub swap: Option<Arc<Swap>>,
    _swap_files: Vec<Temporary>,
    /// The limit of host memory, if one was given.
    limit: Option<u64>,
    pub vm: Arc<Vm<F, HostView<Option<Events>>>>,
    pub vcpus: u32,
    /// Negative control: while true, the host reports each flush as broadcast and flushes nothing.
    is_silent: Arc<AtomicBool>,
    /// Negative control: whether `is_silent` is true during each harvest.
    harvests_silently: bool,
    memory: u64,
    /// Whether memslots log writes.
    pub logs: bool,
    /// Number of regions placed. The next region takes the next [`Layout::REGION`] bytes of guest addresses and one
    /// memslot.
    placed: AtomicU64,
    /// The same count for the nested guest, whose memory L1 maps.
    placed_inside: AtomicU64,
}

impl<F: Format> Machine<F> {
    /// Builds the machine, without guest memory.
    pub fn new(run: &Run, vcpus: u32) -> Result<Self, Error> {
        let memory = run.memory().next_multiple_of(Layout::REGION);
        if memory >> 12 > 1 << F::FRAME_BITS {
            return Err(Error::Usage(format!("{} maps less guest memory than --memory asks for", F::NAME)));
        }
        let (swaps, lru) = (run.swaps()?, run.lru()?);
        let events = run.trace_events()?.map(Events::to).transpose()?;
        let limit = run.limit.unwrap_or(memory + memory / 8 + (64 << 20));
        // With swap, the address space keeps to the limit. Eviction itself needs some frames above it.
        let room = if swaps.is_some() { limit + limit / 8 + (64 << 20) } else { limit };
        let arena = Arena::builder().limit(room).poison(POISON).build().map_err(|error| {
            let asked = run.limit.map_or("-m (--memory)", |_| "--limit");
            Error::Usage(format!("{} MiB cannot be reserved: {error}; {asked} asks for less", room >> 20))
        })?;
        let largest = run.pages.largest();
        let mut builder = AddressSpace::builder(&arena).thp(largest > Level::K4);
        if let Some(settings) = lru {
            builder = builder.lru(settings);
        }
        let files = swaps.iter().flat_map(|swaps| swaps.files.iter().map(|(path, _)| *path));
        let fresh: Vec<_> = files.filter(|file| !file.exists()).collect();
        let swap = swaps.as_ref().map(|swaps| swap(swaps, limit, &arena)).transpose()?;
        // A swap file that this process makes is removed with it.
        let swap_files = fresh.into_iter().filter_map(|file| Temporary::at(file).ok()).collect();
        if let Some(swap) = &swap {
            builder = builder.swap(swap).limit(limit);
        }
        let space = builder.build()?;
        let slots = u32::try_from(memory / Layout::REGION).unwrap_or(u32::MAX);
        let is_silent = Arc::new(AtomicBool::new(run.sabotage_flushes));
        let silent = is_silent.clone();
        let host = HostView::observed(&space, events).with_broadcast(move |_| silent.load(Relaxed));
        let builder = Vm::<F, _>::builder(host)
            .vcpus(vcpus)
            .baseline(Baseline::NONE.mmu_lock(run.mmu_lock.into()))
            .max_page(largest)
            .dirty_log(run.dirty_log.policy()?)
            .max_slots(slots);
        let vm = Arc::new(builder.build().map_err(|error| Error::Machine(error.to_string()))?);
        space.register(&vm);
        // A guest that migrates logs from its first page on.
        let logs = run.dirty_log != DirtyLogName::Off || run.migrate.migrate_to.is_some();
        let (placed, placed_inside) = Default::default();
        Ok(Self {
            space,
            swap,
            _swap_files: swap_files,
            limit: run.limit,
            vm,
            vcpus,
            is_silent,
            harvests_silently: run.migrate.sabotage_rearm,
            memory,
            logs,
            placed,
            placed_inside,
        })
    }

    /// Harvests a log.
    pub fn harvesting<R>(&self, harvest: impl FnOnce() -> R) -> R {
        if !self.harvests_silently {
            return harvest();
        }
        self.is_silent.store(true, Relaxed);
        let result = harvest();
        self.is_silent.store(false, Relaxed);
        result
    }

    /// Places the next region at the next free guest addresses: maps its memory, and creates its memslot. Callable from
    /// any thread at any time.
    pub fn place(&self, idle: &mut Idle) -> Result<Gpa, Error> {
        let number = self.placed.fetch_add(1, Relaxed);
        let gpa = self.gpa_of(number)?;
        let hva = BASE + gpa.0;
        self.space.mmap(Place::Fixed(hva), Layout::REGION, Prot::ReadWrite, Backing::Anonymous)?;
        let slot = Slot::new(SlotId(number as u32), gpa.gfn(), Layout::REGION / PAGE_SIZE, hva);
        let slot = if self.logs { slot.log_dirty() } else { slot };
        self.vm.memory().commit(idle, |tx| tx.create(slot))?;
        Ok(gpa)
    }

    /// Places regions until there are this many, at the addresses that they have in the guest that arrives.
    pub fn place_all(&self, idle: &mut Idle, regions: u64) -> Result<(), Error> {
        while self.placed() < regions {
            self.place(idle)?;
        }
        Ok(())
    }

    /// Returns the next free guest addresses of L2. L1 maps them on first use.
    pub fn place_inside(&self) -> Result<Gpa, Error> {
        self.gpa_of(self.placed_inside.fetch_add(1, Relaxed))
    }

    /// The guest address of region `number`.
    fn gpa_of(&self, number: u64) -> Result<Gpa, Error> {
        let gpa = Gpa(number * Layout::REGION);
        if gpa.0 + Layout::REGION > self.memory {
            return Err(Error::Usage(format!(
                "the traces touch more than --memory {}M in regions of {}M",
                self.memory >> 20,
                Layout::REGION >> 20
            )));
        }
        Ok(gpa)
    }

    /// Translates a failed fault at `gpa` into an error.
    pub fn failed(&self, gpa: Gpa, error: FaultError) -> Error {
        let swap = self.swap.as_ref().map(|swap| swap.stats());
        match (error, swap) {
            (FaultError::Host(HostError::Poisoned), Some(_)) => Error::Corrupt(format!(
                "guest address {gpa}: swap: the page read back differs from the page written"
            )),
            (FaultError::Host(HostError::Io), Some(_)) => {
                Error::Machine(format!("guest address {gpa}: swap: the page cannot be read back"))
            }
            (FaultError::Host(HostError::NoMemory) | FaultError::NoMemory, Some(swap))
                if swap.refused + swap.store_errors > 0 =>
            {
                Error::Machine(format!(
                    "guest address {gpa}: out of memory: --limit is reached, and swap does not take enough ({} pages stored, \
                 {} refused for want of room, {} failed)",
                    swap.stored, swap.refused, swap.store_errors
                ))
            }
            (FaultError::Host(HostError::NoMemory) | FaultError::NoMemory, None) => {
                let (reached, more) = self.limit.map_or(
                    (
                        "the host memory that follows from -m (--memory) is used up".to_owned(),
                        "a larger --limit or -m",
                    ),
                    |limit| (format!("--limit {}M is reached", limit >> 20), "a larger --limit"),
                );
                Error::Machine(format!(
                    "guest address {gpa}: out of memory: {reached}; give {more}, or --swap mem (or --swap FILE), which evicts \
                     cold pages at the limit"
                ))
            }
            _ => Error::Machine(format!("guest address {gpa}: {error}")),
        }
    }

    /// The size of guest memory in bytes: whole regions.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Number of regions placed so far.
    pub fn placed(&self) -> u64 {
        self.placed.load(Relaxed)
    }

    /// The host addresses of these guest frames.
    pub fn hvas_of(gfns: Span<Gfn>) -> Span<Hva> {
        Span::sized(BASE + gfns.start.gpa().0, gfns.len() * PAGE_SIZE)
    }

    /// Number of regions that contain the frames below `end`.
    pub fn regions_below(end: Gfn) -> u64 {
        end.gpa().0.div_ceil(Layout::REGION)
    }

    /// The host addresses of all regions placed so far.
    pub fn hvas(&self) -> Span<Hva> {
        let bytes = (self.placed.load(Relaxed) * Layout::REGION).min(self.memory);
        Span::sized(BASE, bytes)
    }

    /// Capacity of one vCPU's oracle in pages. All oracles together cover guest memory, up to 4 GiB.
    pub fn oracle_pages(&self) -> usize {
        (self.memory.min(4 << 30) / PAGE_SIZE / u64::from(self.vcpus)) as usize
    }

    /// The frames, for software vCPUs.
    pub fn window(&self) -> Window {
        thread::window(self.space.arena())
    }
}

/// Builds the swap. Compressed memory may take half of the limit.
fn swap(swaps: &Swaps<'_>, limit: u64, arena: &Arc<Arena>) -> Result<Arc<Swap>, Error> {
    let add = |builder: SwapBuilder, file: &Path| {
        if swaps.overwrite { builder.overwrite(file) } else { builder.file(file) }
    };
    let mut builder = Swap::builder().memory(if swaps.memory { limit / 2 } else { 0 });
    for &(file, priority) in &swaps.files {
        builder = add(builder, file);
        if let Some(priority) = priority {
            builder = builder.priority(priority);
        }
    }
    builder.build(arena).map_err(|error| {
        // Finds the file that the builder refuses. A file given twice is refused only at its second use.
        let refused = |file: &&Path| add(Swap::builder(), file).build(arena).is_err();
        let mut files = swaps.files.iter().map(|(file, _)| *file);
        let file = files.clone().find(refused).or(files.next_back()).unwrap_or(Path::new("mem")).display();
        match error {
            MmError::NotSwap => Error::Usage(format!("--swap {file}: {error}, which --overwrite would lose")),
            MmError::SwapInUse | MmError::NotAFile | MmError::TooManyDevices | MmError::Os { .. } => {
                Error::Usage(format!("--swap {file}: {error}"))
            }
            error => error.into(),
        }
    })
}
