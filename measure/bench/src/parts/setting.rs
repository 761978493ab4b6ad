//! The settings of one run of a scenario: how many vCPUs, in which column, on what kind of machine.

use crate::world::Costs;
pub use slat::Level;
use slat::baselines::MmuLock;

/// A column of a scenario's table: a design that the scenario compares with slat as it ships, which is the last column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name in tables and on the command line.
    pub name: &'static str,
    /// The lock of the MMU.
    pub lock: MmuLock,
}

impl Column {
    /// A column whose MMU has this lock.
    pub const fn locked(name: &'static str, lock: MmuLock) -> Self {
        Self { name, lock }
    }

    /// A column whose MMU has no lock.
    pub const fn lockless(name: &'static str) -> Self {
        Self::locked(name, MmuLock::None)
    }
}

/// One mutex for the MMU: Linux before the TDP MMU series.
pub const EXCLUSIVE: Column = Column::locked("exclusive", MmuLock::Exclusive);
/// One reader-writer lock: Linux with the TDP MMU series.
pub const READ_WRITE: Column = Column::locked("read-write", MmuLock::ReadWrite);
/// No lock: slat as it ships.
pub const NONE: Column = Column::lockless("none");
/// The columns of scenarios that compare MMU locks.
pub const MMU_LOCKS: &[Column] = &[EXCLUSIVE, READ_WRITE, NONE];

/// One point of a simulation: how many vCPUs, in which column, on what kind of machine.
#[derive(Clone, Debug)]
pub struct Setting<'s> {
    /// The costs of operations.
    pub costs: &'s Costs,
    /// At least 1.
    pub vcpus: u32,
    /// A column of the scenario.
    pub column: Column,
    /// A quarter of the work.
    pub quick: bool,
    /// For whatever a bench draws by lot.
    pub seed: u64,
    /// The work around the engine.
    pub work: Work,
}

impl Setting<'static> {
    /// A run on threads, where no costs are needed.
    pub fn real(column: Column, vcpus: u32, work: Work) -> Self {
        Self { costs: &Costs::SERVER, vcpus, column, quick: false, seed: 1, work }
    }
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

/// The work around the engine: parameters of the model, each with the source of its default.
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
    /// the engine asks for it in the middle of the fault and looks again: under a baseline lock that takes the lock three
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
    /// The place where they invalidate.
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
