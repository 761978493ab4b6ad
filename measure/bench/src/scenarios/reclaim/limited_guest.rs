//! One sample: a machine built anew, with a limit, and one vCPU that replays a trace on it.
//!
//! There is one thread. A vCPU that faults at the limit makes the room itself, so every sample of an entrant evicts the
//! same pages at the same accesses; only the time differs. Swap is memory of this process ([`Blocks`]): what swapping
//! costs here is the work of finding, unmapping, copying and checking pages, and no disk's time. So none is read ahead, as Linux reads
//! none ahead from such devices.

use super::bounds;
use super::bounds::Evicted;
use crate::parts::sim_host::gfn_of;
use crate::scenarios::threads_prelude::*;
use crate::threads::traces::Trace;
use slat_mm::{LruSettings, Swap, SwapDevice};
use slat_vcpu::guest::{Phases, PhasesSettings, Replay, Want};
use slat_vcpu::trace::Access;
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
            rank: bounds::mean_rank(&self.stream, &evictions.pages.lock()),
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

// The accesses of the guests: the bundled traces and the program with phases; and the order of the accesses to each page.

/// Accesses that the guest is given at once; between two batches the bench looks at the memory in use.
const BATCH: usize = 4096;

/// The bundled traces and the program with phases; of each the first `most` accesses.
pub fn traces(most: usize) -> Result<Vec<Trace>> {
    let phases: Vec<Access> = Phases::new(PhasesSettings::default()).take(most).collect();
    let mut all = Trace::all(BATCH, most)?;
    all.push(Trace::new("phases", &phases, BATCH));
    Ok(all)
}

/// Which guest frame is accessed when. A frame that is accessed several times running appears once.
pub struct Stream {
    /// Guest frames, by number.
    pub gfns: Vec<u32>,
    /// For each: how many accesses came before the one that touches it.
    pub made: Vec<u32>,
    /// All frames have numbers below this.
    pub end: usize,
    /// How many different frames there are.
    pub distinct: usize,
}

impl Stream {
    /// Of this trace.
    pub fn new(trace: &Trace) -> Self {
        let end = (trace.bytes() / PAGE_SIZE) as usize;
        let mut stream = Self { gfns: Vec::new(), made: Vec::new(), end, distinct: 0 };
        let mut seen = vec![false; end];
        for (made, Gfn(gfn)) in trace.touched() {
            if stream.gfns.last() != Some(&(gfn as u32)) {
                stream.gfns.push(gfn as u32);
                stream.made.push(made);
                stream.distinct += usize::from(!std::mem::replace(&mut seen[gfn as usize], true));
            }
        }
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat_vcpu::guest::Layout;
    use slat_vcpu::trace::Kind;

    #[test]
    fn a_stream_has_every_page_of_every_access_in_order() {
        let access = |addr, size| Access { addr, size, kind: Kind::Load };
        let region = Layout::REGION;
        let accesses = vec![
            access(3 * region, 8),
            access(3 * region + 8, 8),
            access(3 * region + 4095, 2),
            access(8 * region - 4, 8),
            access(3 * region, 1),
        ];
        let trace = Trace::new("test", &accesses, accesses.len());
        assert_eq!(trace.regions, [3 * region, 7 * region, 8 * region]);
        let stream = Stream::new(&trace);
        assert_eq!(stream.gfns, [0, 1, 2 * 4096 - 1, 2 * 4096, 0]);
        assert_eq!(stream.made, [0, 2, 3, 3, 4]);
        assert_eq!((stream.end, stream.distinct), (3 * 4096, 4));
    }

    #[test]
    fn all_work_is_there_and_cut_where_it_is_told() {
        let traces = traces(1000).unwrap();
        let names: Vec<_> = traces.iter().map(|trace| trace.name).collect();
        assert_eq!(names, ["cc1", "sort", "boot", "phases"]);
        assert!(traces.iter().all(|trace| trace.accesses() == 1000 && Stream::new(trace).distinct > 10));
    }
}
