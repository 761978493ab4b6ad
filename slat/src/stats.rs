//! What a VM has done and holds: sums of what is counted on the way, and a census of its table pages.

use crate::addr::{Level, PAGE_SIZE};
use crate::host::Host;
use crate::sync::idle::Idle;
use crate::sync::mode::Lockless;
use crate::sync::prim::Relaxed;
use crate::sync::tally::{Count, RetryCause};
use crate::table::format::Format;
use crate::table::memory::ENTRIES;
use crate::table::retire::count_tables;
use crate::tlb::Cause;
pub use crate::tlb::Flushes;
use crate::vm::Vm;
use crate::walk::Walk;

/// What a VM has done and holds. Sums over all threads, each read at a slightly different moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Leaves installed, each for one fault.
    pub mapped_faults: u64,
    /// Faults that gave a permission back in place.
    pub permission_faults: u64,
    /// Faults that found nothing wrong any more.
    pub spurious_faults: u64,
    /// Faults on no memslot, or writes to a read-only one.
    pub mmio_faults: u64,
    /// Leaves of 2 MiB and of 1 GiB split in place; tables replaced by leaves of that size.
    pub splits: [u64; 2],
    /// See [`splits`](Self::splits).
    pub recovered: [u64; 2],
    /// Attempts at a fault that were made again: the sum of [`retries_by`](Self::retries_by).
    pub retries: u64,
    /// The same by cause.
    pub retries_by: Retries,
    /// Calls of [`Host::resolve`] after the first one of the same fault: what the host had answered
    /// could not be mapped.
    pub asked_again: u64,
    /// Times that the lock of a baseline policy was not free; none under [`MmuLock::None`](crate::MmuLock::None).
    pub lock_waits: u64,
    /// Nanoseconds that threads waited for it, all together; without `std` there is no clock.
    pub lock_wait_ns: u64,
    /// Leaves mapped now: of 4 KiB, 2 MiB, 1 GiB. Those that went with whole tables are counted off when the tables are
    /// taken apart ([`Vm::collect`]).
    pub leaves: [u64; 3],
    /// Edits that owed a flush; shootdowns that paid them; 4 KiB pages they covered.
    pub flushes: Flushes,
    /// The same by what made them necessary, in the order of [`Cause::ALL`].
    pub flushes_by: [Flushes; Cause::COUNT],
    /// Bytes of table pages in use: linked, at hand, or waiting for a grace period.
    pub table_bytes: u64,
    /// Bytes that the host lent for tables, free pages and the notes of chunks included.
    pub lent_bytes: u64,
    /// Subtrees taken back because the budget for tables was used up.
    pub tables_reclaimed: u64,
    /// Subtrees unhooked and flushed that wait for a grace period, or to be taken apart.
    pub tables_waiting: u64,
}

/// Attempts at a fault that were made again, by cause. See [`Stats::retries`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retries {
    /// An invalidation began or ended, anywhere in the guest, between the two looks of the attempt.
    pub moved: u64,
    /// An active invalidation covered the frame. A fault that waits counts once until an invalidation begins or ends,
    /// however often it looks meanwhile.
    pub covered: u64,
    /// Another thread changed the page-table entry or the memslot first, or an invalidation that began after the attempt
    /// had reached the entry.
    pub lost: u64,
}

impl Retries {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.moved + self.covered + self.lost
    }
}

impl Stats {
    /// Bytes of guest memory mapped now.
    pub fn mapped_bytes(&self) -> u64 {
        let sizes = [Level::K4, Level::M2, Level::G1].map(Level::bytes);
        self.leaves.iter().zip(sizes).map(|(count, size)| count * size).sum()
    }
}

/// Where the table pages of a VM are, counted by looking. Exact while nothing else happens; then every page that was
/// allocated is in one of the three places, or at hand in the cache of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TablePages {
    /// In the tables.
    pub reachable: u64,
    /// Unhooked: waiting for a grace period, or to be taken apart.
    pub waiting: u64,
    /// In the pool.
    pub free: u64,
    /// Made out of what the host lent.
    pub allocated: u64,
}

impl<F: Format, H: Host> Vm<F, H> {
    /// What it has done and holds.
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

    /// Counts its table pages.
    pub fn table_pages(&self, idle: &mut Idle) -> TablePages {
        let reachable = self.spaces.iter().map(|space| {
            let walk = Walk::<F, H, Lockless>::on_any_seat(self, space, idle);
            count_tables::<F, H>(&self.host, walk.root(), F::ROOT_LEVEL)
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
