//! One sample: a machine built anew, with a limit, and one vCPU that replays a trace on it.
//!
//! There is one thread. A vCPU that faults at the limit makes the room itself, so every sample of an entrant evicts the
//! same pages at the same accesses; only the time differs. Swap is memory of this process ([`Blocks`]): what swapping
//! costs here is the work of finding, unmapping, copying and checking pages, and no disk's time. So none is read ahead, as Linux reads
//! none ahead from such devices.

use super::bounds::{Evicted, Stream, mean_rank};
use crate::parts::sim_host::gfn_of;
use crate::scenarios::threads_prelude::*;
use crate::threads::traces::Trace;
use slat_mm::{LruSettings, Swap, SwapDevice};
use slat_vcpu::guest::{Replay, Want};
use std::io;

/// The accesses of a guest, and its frames.
pub struct Job {
    pub trace: Trace,
    pub stream: Stream,
    arena: Arc<Arena>,
    /// Bytes that are charged beside the pages: tables.
    tables: u64,
}

/// The measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    /// Which [`Job`].
    pub job: usize,
    /// Room for this part of the footprint, in percent; `None`: for all of it.
    pub limit: Option<u64>,
    /// Whether aging asks the guest's tables.
    pub walk_secondary: bool,
}

/// The result of one sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub wall_ms: f64,
    /// Pages brought in again.
    pub refaults: u64,
    /// Mean rank of the evicted pages, from 0, the coldest; `None` where none was evicted.
    pub rank: Option<f64>,
    pub aging_passes: u64,
    /// Pages that reclaim chose and found in use.
    pub spared: u64,
    /// The most that was charged at any look, and the limit.
    pub charged: [u64; 2],
    /// Reads that found what was never written.
    pub corrupt: u64,
    /// Accesses made, of those to make.
    pub accesses: [u64; 2],
}

impl Job {
    /// Makes the arena, and finds out how much the tables take.
    pub fn new(trace: Trace) -> Result<Self> {
        let arena = Arena::builder().limit(trace.bytes() + (64 << 20)).poison(POISON).build()?;
        let mut job = Self { stream: Stream::new(&trace), trace, arena, tables: 0 };
        let whole = job.sample(&Entrant { job: 0, limit: None, walk_secondary: true })?;
        job.tables = whole.charged[0].saturating_sub(job.stream.distinct as u64 * PAGE_SIZE);
        Ok(job)
    }

    /// Pages of the guest's that fit within `percent` of its footprint.
    pub fn room(&self, percent: u64) -> usize {
        (self.stream.distinct as u64 * percent / 100) as usize
    }

    /// One sample.
    pub fn sample(&self, entrant: &Entrant) -> Result<Sample> {
        pin(0);
        let idle = &mut idle()?;
        let swap =
            Swap::builder().device(Blocks::default(), self.trace.bytes()).read_ahead(1).build(&self.arena)?;
        let settings = LruSettings { walk_secondary: entrant.walk_secondary, ..LruSettings::default() };
        let limit =
            entrant.limit.map_or(u64::MAX, |percent| self.room(percent) as u64 * PAGE_SIZE + self.tables);
        let space = AddressSpace::builder(&self.arena).lru(settings).swap(&swap).limit(limit).build()?;
        let trace = &self.trace;
        let builder = Vm::<Npt4, _>::builder(HostView::new(&space)).max_slots(trace.regions.len() as u32);
        let vm = Arc::new(builder.build().map_err(machine_error)?);
        space.register(&vm);
        trace.place(&space, &vm, idle, false)?;
        let mut replay = Replay::new(self.stream.end);
        replay.layout = trace.layout();
        let evictions = Arc::new(Evictions::default());
        let lru = space.lru().ok_or_else(|| machine_error("the address space has no LRU"))?;
        let seen = evictions.clone();
        lru.on_evict(Box::new(move |hva| seen.add(hva)));

        let mut cpu = Cpu::new(vcpu(&vm, 0)?, window(&self.arena)).untimed();
        let mut guest = Counting { replay, made: &evictions.made };
        let (mut most, began) = (0, Instant::now());
        for stretch in &trace.stretches {
            guest.replay.feed(stretch.clone());
            run_until_stopped(&mut cpu, idle, &mut guest, no_ring)?;
            if guest.replay.wants() != Want::Batch {
                return Err(machine_error("a trace left its regions"));
            }
            most = space.charged().max(most);
        }
        let wall_ms = began.elapsed().as_secs_f64() * 1e3;
        let stats = lru.stats();
        Ok(Sample {
            wall_ms,
            refaults: stats.refaults,
            rank: mean_rank(&self.stream, &evictions.pages.lock()),
            aging_passes: stats.passes,
            spared: stats.promoted,
            charged: [most, limit],
            corrupt: guest.replay.findings.corrupt,
            accesses: [guest.replay.accesses, trace.accesses()],
        })
    }
}

/// The evicted pages.
#[derive(Default)]
struct Evictions {
    /// Accesses that the guest has made.
    made: AtomicU64,
    pages: Mutex<Vec<Evicted>>,
}

impl Evictions {
    fn add(&self, hva: Hva) {
        self.pages.lock().push((self.made.load(Relaxed), gfn_of(hva).0 as u32));
    }
}

/// A replay that says how far it is.
struct Counting<'e> {
    replay: Replay,
    made: &'e AtomicU64,
}

impl Program for Counting<'_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let step = self.replay.step(core);
        self.made.store(self.replay.accesses, Relaxed);
        step
    }
}

/// Swap in memory.
#[derive(Debug, Default)]
pub struct Blocks(Mutex<Vec<u8>>);

impl SwapDevice for Blocks {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut blocks = self.0.lock();
        let end = offset as usize + bytes.len();
        if blocks.len() < end {
            blocks.resize(end, 0);
        }
        blocks[offset as usize..end].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let blocks = self.0.lock();
        let from =
            blocks.get(offset as usize..offset as usize + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(from);
        Ok(bytes.len())
    }
}
