//! What is simulated: benches, most of them an answer to a series, and all of them one shape.
//!
//! ```text
//! Setting ──▶ build a VM ──▶ world::run(jobs) ──▶ look at what was left ──▶ Point
//! costs, vCPUs, policy, work   (at no charge)       (at no charge)            figures, waiting, checks
//! ```
//! | file | idea |
//! |---|---|
//! | `point` | what a bench tells: figures, checks |
//! | [`vm_setup`] | the VM that they run, and how its vCPUs share out memory |
//! | `against` | the series' figures beside ours |
//! | `hardware` | what a processor does on an access |
//! | [`touch_pages`] | a vCPU whose guest touches each page once |
//! | `program`, `vcpu_programs`, `page_order` | a vCPU with a TLB, whose guest uses pages again; all vCPUs; in which order |
//! | [`concurrent_latency`] | latency of short actions that threads repeat while a worker does something long |
//! | [`access_tracking`] | vCPUs fault memory in while a thread ages it (the MGLRU aging series) |
//! | [`invalidate`] | vCPUs fault beside threads that invalidate (the TDP MMU series) |
//! | [`demand_paging`] | vCPUs touch new memory, all at once (the TDP MMU series) |
//! | [`memslot`] | memslots move, come, and lose their pages while vCPUs fault and use them, by two designs (the scalable memslots series) |
//! | [`numa`] | a host looks where pages are used, while vCPUs use them (the NUMA protection series) |
//! | [`pre_fault`] | vCPUs have their memory mapped before their guest runs (the TDP MMU series): the book's tutorial |
//! | [`populate`] | vCPUs map a memslot whole, together |
//! | [`nested`] | a guest of the guest, against KVM's shadow MMU |
//! | [`ksm`] | a host merges equal pages of running vCPUs (the change-pte series) |
//! | [`broadcast`] | a host moves pages that all vCPUs use, flushed by kicks or by broadcasts |

pub mod access_tracking;
mod against;
pub mod broadcast;
pub mod concurrent_latency;
pub mod demand_paging;
mod hardware;
pub mod host_faults;
pub mod invalidate;
pub mod ksm;
pub mod memslot;
pub mod nested;
pub mod numa;
mod page_order;
mod point;
pub mod populate;
pub mod pre_fault;
mod program;
#[cfg(test)]
mod tests;
pub mod touch_pages;
mod vcpu_programs;
pub mod vm_setup;
pub mod zap;

use crate::world::Costs;
pub use against::{Against, Unit, ratio};
pub use point::{Check, Figure, Point, Tally};
pub use slat::Level;
use slat::baselines::MmuLock;
use slat_series::PatchSeries;

/// One point of a simulation: how many vCPUs, under which policy, on what kind of machine.
#[derive(Clone, Debug)]
pub struct Setting<'s> {
    /// What things cost.
    pub costs: &'s Costs,
    /// At least 1.
    pub vcpus: u32,
    /// One of the bench's own.
    pub policy: Policy,
    /// A quarter of the work.
    pub quick: bool,
    /// For whatever a bench draws by lot.
    pub seed: u64,
    /// What is done around the engine.
    pub work: Work,
}

impl Setting<'_> {
    /// Pages that each vCPU touches, where it has a part of its own: 200,000 for all of them, where that is not too few or too
    /// many for one.
    pub fn pages_per_vcpu(&self) -> u64 {
        let pages = (200_000 / u64::from(self.vcpus) / 512 * 512).clamp(512, 4096);
        if self.quick { pages / 4 } else { pages }
    }

    /// A number drawn by lot for each `nth`.
    pub fn lot(&self, nth: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        let mut x = self.seed.wrapping_add(nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

/// What the world around the engine does: parameters of the model, each with the source of its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Nanoseconds that the guest computes between two faults. A demand-paging guest does nothing but touch.
    pub guest_ns: u64,
    /// Nanoseconds to leave the guest for a fault and to enter it again: what processors of these years take, mitigations
    /// included.
    pub exit_ns: u64,
    /// Nanoseconds of the host's own fault besides zeroing the page, outside of every lock of the MMU: an anonymous fault of
    /// 4 KiB was measured at 1,400 ns, zeroing included.
    pub host_ns: u64,
    /// Whether the host's page is made present before the engine is asked, as a kernel does before it takes its MMU lock. Else
    /// the engine asks for it in the middle of the fault and looks again: under a baseline policy that takes the lock three
    /// times, and makes slat look better than its baselines deserve.
    pub host_first: bool,
    /// Whether a handler thread for each vCPU serves its faults, as in the TDP MMU series, while the vCPU sleeps.
    pub handlers: bool,
    /// Nanoseconds of a handler besides the host's fault: what it takes to read the message, and the calls. Of a
    /// user fault that took 9 µs without contention, wake-ups take the larger part.
    pub handler_ns: u64,
    /// Whether a page that the host finds has to be zeroed.
    pub zeroing: bool,
    /// Nanoseconds that a kernel works under its MMU lock for a fault, in [`Host::lookup`](slat::Host::lookup): reverse maps,
    /// bookkeeping. slat has no such work: 0.
    pub under_lock_ns: u64,
    /// Read-modify-writes of shared lines in the primary MMU for a fault: a lock around the address space, counters. 0: a
    /// primary MMU that has none, as one with locks and counters for each VMA and CPU.
    pub mm_lines: u32,
    /// Nanoseconds that an ager rests between two passes: the 5 ms of `slat bench access-tracking-perf`, as much shorter as the
    /// memory here is smaller.
    pub rest_ns: u64,
    /// The size of every page of the host: 4 KiB, 2 MiB, 1 GiB.
    pub host_page: Level,
    /// Nanoseconds that the host sleeps each time that it is asked for a page, however often. 0: it answers at once.
    pub host_sleeps_ns: u64,
    /// Threads that invalidate beside the vCPUs.
    pub invalidators: u32,
    /// Nanoseconds that each computes between two invalidations.
    pub pause_ns: u64,
    /// What they invalidate.
    pub over: Over,
    /// Pages of 4 KiB in a row that one invalidation covers: 1 to 512.
    pub range: u64,
}

/// Where an invalidator works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// In 2 MiB of its own, in another GiB than any vCPU; no page of it is mapped.
    Elsewhere,
    /// The same, and its pages are mapped; once all are gone it faults them in again.
    Mapped,
    /// In 2 MiB of its own, in the GiB of the last vCPUs.
    Near,
    /// In the 2 MiB that its vCPU faults in at that moment. Invalidator i follows vCPU i modulo their number.
    Same,
}

impl Work {
    /// Nothing around the engine takes time, as far as that can be.
    pub fn none() -> Self {
        Self { guest_ns: 0, exit_ns: 0, host_ns: 0, zeroing: false, ..Self::default() }
    }
}

impl Default for Work {
    fn default() -> Self {
        Self {
            guest_ns: 100,
            exit_ns: 1200,
            host_ns: 1200,
            host_first: true,
            handlers: false,
            handler_ns: 2000,
            zeroing: true,
            under_lock_ns: 0,
            mm_lines: 0,
            rest_ns: 150_000,
            host_page: Level::K4,
            host_sleeps_ns: 0,
            invalidators: 1,
            pause_ns: 10_000,
            over: Over::Elsewhere,
            range: 1,
        }
    }
}

/// What is compared: the columns of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Policy {
    /// One mutex for the MMU: how it was before the TDP MMU series.
    Exclusive,
    /// One reader-writer lock: as the TDP MMU series describes.
    ReadWrite,
    /// No lock: slat as it ships.
    None,
    /// A reader-writer lock, and no aging.
    NoAging,
    /// The same, and an ager that takes the lock for each page: before the MGLRU aging series.
    Locked,
    /// The same, and an ager that takes no lock for each page: the MGLRU aging series.
    Lockless,
    /// No lock, and no aging.
    SlatNoAging,
    /// No lock, and an ager that goes by tables: slat as it ships.
    Slat,
    /// Each leaf by itself, under the mutex.
    LeafByLeafExclusive,
    /// Each leaf by itself.
    LeafByLeaf,
    /// Whole tables, by one entry each.
    Unhook,
    /// A new root for the VM.
    NewRoot,
    /// 2 MiB are unmapped, and flushed once: Linux.
    Range,
    /// 2 MiB are unmapped, and flushed page by page: Linux, where others want its lock.
    RangeYielding,
    /// Page by page, each with its flush: the NUMA protection series.
    Page,
    /// Page by page, with one flush: slat as it ships.
    PageBatched,
    /// Every reason is one to unmap: before the change-pte series.
    Ignored,
    /// Page by page, and each reason has the least that it asks for: the change-pte series.
    Heeded,
    /// The same for many pages at once: slat as it ships.
    HeededBatched,
    /// Flushes kick vCPUs: slat on a host that broadcasts none.
    Kicks,
    /// They are broadcast, and some processors are out of reach, so that vCPUs are kicked, too.
    SomeReached,
    /// They are broadcast to all processors.
    AllReached,
    /// Each page comes by a fault of the guest.
    Faults,
    /// Pages come before the guest runs, by vCPUs that take stretches.
    Population,
    /// Tables of a hypervisor in the guest are write-protected, under one mutex: KVM.
    WriteProtected,
}

impl Policy {
    /// The lock of the MMU under it.
    pub fn lock(self) -> MmuLock {
        match self {
            Self::Exclusive | Self::LeafByLeafExclusive => MmuLock::Exclusive,
            Self::ReadWrite | Self::NoAging | Self::Locked | Self::Lockless => MmuLock::ReadWrite,
            _ => MmuLock::None,
        }
    }

    /// What it is called, in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::ReadWrite => "read-write",
            Self::None => "none",
            Self::NoAging => "no aging",
            Self::Locked => "locked",
            Self::Lockless => "lockless",
            Self::SlatNoAging => "slat, no aging",
            Self::Slat => "slat",
            Self::LeafByLeafExclusive => "leaf by leaf, exclusive",
            Self::LeafByLeaf => "leaf by leaf",
            Self::Unhook => "unhook",
            Self::NewRoot => "new root",
            Self::Range => "range",
            Self::RangeYielding => "range, yielding",
            Self::Page => "page",
            Self::PageBatched => "page-batched",
            Self::Ignored => "ignored",
            Self::Heeded => "heeded",
            Self::HeededBatched => "heeded, batched",
            Self::Kicks => "kicks",
            Self::SomeReached => "broadcast, some out of reach",
            Self::AllReached => "broadcast",
            Self::Faults => "faults",
            Self::Population => "populate",
            Self::WriteProtected => "write-protected, one lock",
        }
    }
}

/// What is known of a bench without a run: its row of the registry, which `slat bench`, `slat sim`, `slat sim validate`,
/// `slat report` and CI go through.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// As the command line calls it.
    pub name: &'static str,
    /// What it asks: its line of help.
    pub asks: &'static str,
    /// The series that it answers.
    pub series: PatchSeries,
    /// What it compares. The last is slat as it ships.
    pub policies: &'static [Policy],
    /// Time and peak of resident memory of `slat sim` with all flags as they stand.
    pub takes: [&'static str; 2],
    /// Numbers of vCPUs that `slat sim` takes by default.
    pub vcpus: &'static str,
    /// Arguments of `slat sim`, as an example.
    pub example: &'static str,
    /// Flags of the world around the engine that change nothing, and why: "it has no ager".
    pub unused: &'static [(&'static [&'static str], &'static str)],
    /// It has the threads that [`Work::invalidators`] asks for.
    pub invalidates: bool,
    /// `slat report` simulates it.
    pub reported: bool,
    /// Its runs as `slat bench`; `None` if it has flags and rows of its own there.
    pub threads: Option<Threads>,
}

/// The runs of a bench on real threads.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// Time and peak of resident memory with all flags as they stand.
    pub takes: [&'static str; 2],
    /// Arguments of each run in CI, in the quick report, and in the full one.
    pub ci: &'static [&'static str],
    /// See above.
    pub quick: &'static [&'static str],
    /// See above.
    pub full: &'static [&'static str],
}

impl About {
    /// One that is simulated with 1 to 416 vCPUs, by `slat report`, too.
    pub const fn of(name: &'static str, series: PatchSeries, policies: &'static [Policy]) -> Self {
        Self {
            name,
            asks: "",
            series,
            policies,
            takes: ["10 s", "40 MiB"],
            // As far as the series go: 112 vCPUs in MGLRU aging, 416 in TDP MMU.
            vcpus: "1,2,4,8,16,32,64,112,208,416",
            example: "-v 1,16,112",
            unused: &[NO_AGER],
            invalidates: false,
            reported: true,
            threads: None,
        }
    }
}

/// A row of [`About::unused`].
pub const NO_AGER: (&[&str], &str) = (&["rest_ns"], "has no ager");

/// Why flags of the host change nothing, where it has every page from the start.
pub const ALL_THERE: &str = "has a host with every page from the start";

/// A bench. Both worlds run it.
pub trait Bench: Sync {
    /// Its row of the registry.
    fn about(&self) -> &'static About;
    /// Runs it once.
    fn run(&self, setting: &Setting<'_>) -> Result<Point, String>;
    /// The series' own figures beside those of `points`, as far as these have what it takes.
    fn against_series(&self, points: &[Point]) -> Vec<Against> {
        let _ = points;
        Vec::new()
    }
    /// As the command line calls it.
    fn name(&self) -> &'static str {
        self.about().name
    }
    /// What it compares. The last is slat as it ships.
    fn policies(&self) -> &'static [Policy] {
        self.about().policies
    }
}

// ANCHOR: all
/// All of them, in the order of the series' age. A bench that is added here is known everywhere.
pub static ALL: &[&dyn Bench] = &[
    &access_tracking::AccessTracking,
    &memslot::MemslotPerf,
    &numa::NumaBalancing,
    &demand_paging::DemandPaging,
    &host_faults::HostFaults,
    &ksm::KsmPerf,
    &zap::Zap,
    &invalidate::Invalidate,
    &pre_fault::PreFault,
    &broadcast::Broadcast,
    &populate::Populate,
    &nested::Nested,
];
// ANCHOR_END: all

/// The bench of that name.
pub fn by_name(name: &str) -> Option<&'static dyn Bench> {
    ALL.iter().copied().find(|bench| bench.name() == name)
}
