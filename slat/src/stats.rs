//! Statistics of a VM: sums of counters, and a census of its table pages.

use crate::addr::{Gfn, Level, PAGE_SIZE, Span};
use crate::host::Host;
use crate::sync::idle::Idle;
use crate::sync::mode::Lockless;
use crate::sync::prim::Relaxed;
use crate::sync::tally::{Count, RetryCause};
use crate::table::format::Format;
use crate::table::memory::ENTRIES;
use crate::table::retire::TableCount;
use crate::tlb::Cause;
pub use crate::tlb::Flushes;
use crate::vm::Vm;
use crate::walk::Walk;

/// Statistics of a VM: sums over all threads. Each is read at a slightly different moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Number of leaves installed, each for one fault.
    pub mapped_faults: u64,
    /// Number of faults that restored a permission in place.
    pub permission_faults: u64,
    /// Number of faults that another vCPU had already handled.
    pub spurious_faults: u64,
    /// Number of faults without a memslot, and of writes to read-only ones.
    pub mmio_faults: u64,
    /// Number of leaves of 2 MiB and of 1 GiB split in place.
    pub splits: [u64; 2],
    /// Number of tables replaced by leaves of 2 MiB and of 1 GiB.
    pub recovered: [u64; 2],
    /// Number of retried attempts at faults: the sum of [`retries_by`](Self::retries_by).
    pub retries: u64,
    /// The retried attempts by cause.
    pub retries_by: Retries,
    /// Number of calls of [`Host::resolve`] after the first one of the same fault, because the host's page could not be
    /// mapped.
    pub asked_again: u64,
    /// How often the lock of a baseline policy was not free; zero under [`MmuLock::None`](crate::MmuLock::None).
    pub lock_waits: u64,
    /// Nanoseconds that all threads waited for the lock; zero without `std`, which has the clock.
    pub lock_wait_ns: u64,
    /// Number of leaves mapped now, of 4 KiB, 2 MiB, 1 GiB. Leaves of unhooked tables count until the tables are taken
    /// apart ([`Vm::collect`]).
    pub leaves: [u64; 3],
    /// Edits that owed a flush, shootdowns that paid them, and the 4 KiB pages that they covered.
    pub flushes: Flushes,
    /// The flushes by cause, in the order of [`Cause::ALL`].
    pub flushes_by: [Flushes; Cause::COUNT],
    /// Bytes of table pages in use: linked, spare, or waiting for a grace period.
    pub table_bytes: u64,
    /// Bytes that the host lent for tables, including free pages and the notes of chunks.
    pub lent_bytes: u64,
    /// Number of subtrees taken back because the table budget was used up.
    pub tables_reclaimed: u64,
    /// Number of flushed subtrees that wait for a grace period, or to be taken apart.
    pub tables_waiting: u64,
}

/// Retried attempts at faults by cause. See [`Stats::retries`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retries {
    /// An invalidation anywhere in the guest began or ended between the two checks of the attempt.
    pub moved: u64,
    /// An active invalidation covered the frame. A waiting fault counts once until an invalidation begins or ends,
    /// however often it checks meanwhile.
    pub covered: u64,
    /// Another thread changed the page-table entry or the memslot first; or an invalidation that began after the
    /// attempt had reached the entry.
    pub lost: u64,
}

impl Retries {
    /// The sum of all causes.
    pub fn total(&self) -> u64 {
        self.moved + self.covered + self.lost
    }
}

impl Stats {
    /// Number of bytes of guest memory mapped now.
    pub fn mapped_bytes(&self) -> u64 {
        let sizes = [Level::K4, Level::M2, Level::G1].map(Level::bytes);
        self.leaves.iter().zip(sizes).map(|(count, size)| count * size).sum()
    }
}

/// The places of a VM's table pages, found by a walk. Exact while no other thread changes them: every allocated page is
/// then in one of the three places, or in the cache of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TablePages {
    /// Number of pages in the tables.
    pub reachable: u64,
    /// Number of unhooked pages that wait for a grace period, or to be taken apart.
    pub waiting: u64,
    /// Number of pages in the pool.
    pub free: u64,
    /// Number of table pages in the memory that the host lent.
    pub allocated: u64,
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Returns the VM's statistics.
    pub fn stats(&self) -> Stats {
        let total = |count| self.reads.total(count);
        let (lock_waits, lock_wait_ns) = self.lock.waits();
        let mut installed = [Count::Installed4K, Count::Installed2M, Count::Installed1G].map(total);
        installed[0] += self.reads.total_mapped();
        let removed = [Count::Removed4K, Count::Removed2M, Count::Removed1G].map(total);
        let splits = [Count::Split2M, Count::Split1G].map(total);
        let recovered = [Count::Recovered2M, Count::Recovered1G].map(total);
        let came = [
            installed[0] + ENTRIES as u64 * splits[0],
            installed[1] + ENTRIES as u64 * splits[1] + recovered[0],
            installed[2] + recovered[1],
        ];
        let flushes_by = self.tlb.by_cause.read();
        let again = |why| self.tlb.again(why);
        let retries_by = Retries {
            moved: again(RetryCause::Moved),
            covered: again(RetryCause::Covered),
            lost: again(RetryCause::Lost),
        };
        let went = [removed[0], removed[1] + splits[0], removed[2] + splits[1]];
        Stats {
            mapped_faults: installed.iter().sum(),
            splits,
            recovered,
            permission_faults: total(Count::Permission),
            spurious_faults: total(Count::Spurious),
            mmio_faults: total(Count::Mmio),
            retries: retries_by.total(),
            retries_by,
            asked_again: again(RetryCause::Asked),
            lock_waits,
            lock_wait_ns,
            leaves: core::array::from_fn(|size| {
                let died = self.grace.leaves([Level::K4, Level::M2, Level::G1][size]);
                came[size].saturating_sub(went[size] + died)
            }),
            flushes: flushes_by.iter().fold(Flushes::default(), |all, &one| all.with(one)),
            flushes_by,
            table_bytes: self.pool.in_use() * PAGE_SIZE,
            lent_bytes: self.pool.lent() * PAGE_SIZE,
            tables_reclaimed: self.clock.reclaimed.load(Relaxed),
            tables_waiting: self.grace.waiting() as u64,
        }
    }

    /// Counts the VM's table pages by a walk, with rests. For tests and diagnosis: it locks the queue of dead tables while
    /// it counts those.
    pub fn table_pages(&self, idle: &mut Idle) -> TablePages {
        let reachable = self.spaces.iter().map(|space| {
            let mut walk = Walk::<F, H, Lockless>::on_any_seat(self, space, idle);
            let mut tables = TableCount::<F>::default();
            let mut steps = walk.steps(Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)), Level::M2);
            while let Some((_, step)) = steps.next() {
                tables.see(&step.at, step.gfns);
            }
            tables.pages()
        });
        let nested = self.spaces.iter().filter_map(|space| space.nested.get());
        let nested = nested.map(|shadows| shadows.pages(&self.host));
        let reachable: u64 = reachable.sum();
        TablePages {
            reachable: reachable + nested.sum::<u64>(),
            waiting: self.grace.count::<F, H>(&self.host),
            free: self.pool.free(),
            allocated: self.pool.allocated(),
        }
    }
}
