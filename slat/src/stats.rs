//! Statistics of a VM: sums of counters, and a census of its table pages.

use crate::hooks::{Nested, NestedHooks};
use crate::sync::prim::Relaxed;
use crate::sync::{Count, Lockless, RetryCause};
use crate::table::{ENTRIES, TableCount};
pub use crate::tlb::{Flushes, FlushesByCause};
use crate::{Format, Gfn, Host, Idle, Level, PAGE_SIZE, Span, Vm, Walk};
use core::fmt;

/// Statistics of a VM: sums over all threads. Each is read at a slightly different moment.
///
/// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Identity;
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
/// # vm.memory().commit(&mut idle, |tx| tx.create(ram))?;
/// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// let before = vm.stats();
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Read })?;
/// vm.change(&mut idle, ram.hvas(), Why::Migrate, |_| ());
///
/// let since = vm.stats().since(&before);
/// assert_eq!((since.mapped_faults, since.leaves), (1, [0, 0, 0]));
/// let migrate = since.flushes_by.of(Cause::Change(Reason::Migrate));
/// assert_eq!(migrate.to_string(), "paid 1, requested 1, pages 1");
/// let text = since.to_string();
/// assert!(text.starts_with("faults: 1 mapped, 0 permission, 0 spurious, 0 mmio\n"));
/// assert!(text.contains("\n  migrate: paid 1, requested 1, pages 1\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    /// Number of leaves mapped now, of 4 KiB, 2 MiB, 1 GiB. Leaves of unhooked tables count until the tables are taken
    /// apart ([`Vm::collect`]).
    pub leaves: [u64; 3],
    /// Edits that owed a flush, shootdowns that paid them, and the 4 KiB pages that they covered.
    pub flushes: Flushes,
    /// The flushes by cause.
    pub flushes_by: FlushesByCause,
    /// Bytes of table pages in use: linked, spare, or waiting for a grace period.
    pub table_bytes: u64,
    /// Bytes that the host lent for tables, including free pages and the notes of chunks.
    pub lent_bytes: u64,
    /// Number of subtrees taken back because the table budget was used up.
    pub tables_reclaimed: u64,
    /// Number of flushed subtrees that wait for a grace period, or to be taken apart.
    pub tables_waiting: u64,
    /// Counters of nested guests, and of guests without a second stage. Their faults are in no other counter.
    pub nested: NestedStats,
}

/// Counters of guests that run on [shadow tables](crate::nested): see [`Stats::nested`].
///
/// ```
/// # #[cfg(feature = "nested")] mod with_nested {
/// # use slat::{nested::*, table::formats::Npt4, *};
/// # fn run<H: Host>(vm: &Vm<Npt4, H>, idle: &mut Idle, l2: &mut L2<'_, '_, Npt4, H, EptTable>) {
/// let before = vm.stats().nested;
/// let _ = l2.fault(idle, L1Access::new(Gpa(0x5000), Access::Read));
/// let since = vm.stats().nested.since(&before);
/// println!("{since}"); // faults: 1 mapped, 0 spurious, 0 mmio, 0 refused; shadows: 1, 0 passes
/// # }
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NestedStats {
    /// Number of faults that mapped a page in a shadow, or restored a leaf that an aging pass had withdrawn.
    pub mapped_faults: u64,
    /// Number of faults that another vCPU had already handled, or that met a table under change.
    pub spurious_faults: u64,
    /// Number of faults without a memslot, and of writes to read-only ones.
    pub mmio_faults: u64,
    /// Number of faults that the guest's own table refuses
    /// ([`L2Next::ForL1`](crate::nested::L2Next::ForL1)).
    pub refused_faults: u64,
    /// Number of passes over shadows for the guest's own flushes. Many flushes may need one pass, or none.
    pub flush_passes: u64,
    /// Number of shadows now: at most the number of tables that the guest has run on.
    pub shadows: u64,
}

impl NestedStats {
    /// Returns what was counted since `earlier`. [`shadows`](Self::shadows) stays as it is in `self`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        since!(self, earlier: mapped_faults, spurious_faults, mmio_faults, refused_faults, flush_passes;
            shadows: self.shadows)
    }
}

impl fmt::Display for NestedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mapped_faults, spurious_faults, mmio_faults, refused_faults, flush_passes, shadows } =
            self;
        write!(
            f,
            "faults: {mapped_faults} mapped, {spurious_faults} spurious, {mmio_faults} mmio, {refused_faults} refused; shadows: {shadows}, {flush_passes} passes"
        )
    }
}

/// Retried attempts at faults by cause. See [`Stats::retries`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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

    fn since(&self, earlier: &Self) -> Self {
        since!(self, earlier: moved, covered, lost;)
    }
}

impl Stats {
    /// Returns what was counted since `earlier`, statistics of the same VM. What is not a count of events stays as it is
    /// in `self`: [`leaves`](Self::leaves), [`table_bytes`](Self::table_bytes), [`lent_bytes`](Self::lent_bytes) and
    /// [`tables_waiting`](Self::tables_waiting) and [`NestedStats::shadows`].
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let both = |these: [u64; 2], those: [u64; 2]| {
            core::array::from_fn(|size| these[size].saturating_sub(those[size]))
        };
        since!(self, earlier: mapped_faults, permission_faults, spurious_faults, mmio_faults, retries, asked_again,
            tables_reclaimed;
            splits: both(self.splits, earlier.splits),
            recovered: both(self.recovered, earlier.recovered),
            retries_by: self.retries_by.since(&earlier.retries_by),
            flushes: self.flushes.since(earlier.flushes),
            flushes_by: self.flushes_by.since(&earlier.flushes_by),
            nested: self.nested.since(&earlier.nested),
            leaves: self.leaves,
            table_bytes: self.table_bytes,
            lent_bytes: self.lent_bytes,
            tables_waiting: self.tables_waiting)
    }

    /// Number of bytes of guest memory mapped now.
    pub fn mapped_bytes(&self) -> u64 {
        let sizes = [Level::K4, Level::M2, Level::G1].map(Level::bytes);
        self.leaves.iter().zip(sizes).map(|(count, size)| count * size).sum()
    }
}

/// Some lines of text. Causes without flushes are left out, and so is the line of nested guests if all of it is 0.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mapped_faults, permission_faults, spurious_faults, mmio_faults, .. } = self;
        let Self { retries, retries_by: Retries { moved, covered, lost }, asked_again, .. } = self;
        let Self { leaves: [small, large, huge], splits, recovered, .. } = self;
        let Self { table_bytes, lent_bytes, tables_reclaimed, tables_waiting, .. } = self;
        writeln!(
            f,
            "faults: {mapped_faults} mapped, {permission_faults} permission, {spurious_faults} spurious, {mmio_faults} mmio"
        )?;
        writeln!(
            f,
            "retries: {retries} ({moved} moved, {covered} covered, {lost} lost), {asked_again} asked again"
        )?;
        writeln!(f, "leaves: {small} of 4K, {large} of 2M, {huge} of 1G")?;
        writeln!(f, "splits: {} of 2M, {} of 1G", splits[0], splits[1])?;
        writeln!(f, "recovered: {} of 2M, {} of 1G", recovered[0], recovered[1])?;
        writeln!(f, "flushes: {}", self.flushes)?;
        for (cause, flushes) in self.flushes_by.iter().filter(|(_, flushes)| flushes.paid > 0) {
            writeln!(f, "  {}: {flushes}", cause.name())?;
        }
        writeln!(f, "tables: {table_bytes} bytes in use, {lent_bytes} bytes lent")?;
        write!(f, "subtrees: {tables_reclaimed} reclaimed, {tables_waiting} waiting")?;
        if self.nested != NestedStats::default() {
            write!(f, "\nnested {}", self.nested)?;
        }
        Ok(())
    }
}

/// The places of a VM's table pages, found by a walk. Exact while no other thread changes them: every allocated page is
/// then in one of the three places, or in the cache of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
            leaves: core::array::from_fn(|size| {
                let died = self.grace.leaves([Level::K4, Level::M2, Level::G1][size]);
                came[size].saturating_sub(went[size] + died)
            }),
            flushes: flushes_by.total(),
            flushes_by,
            table_bytes: self.pool.in_use() * PAGE_SIZE,
            lent_bytes: self.pool.lent() * PAGE_SIZE,
            tables_reclaimed: self.clock.reclaimed.load(Relaxed),
            tables_waiting: self.grace.waiting() as u64,
            nested: Nested::stats(self),
        }
    }

    /// Counts the VM's table pages by a walk, with yields. For tests and diagnosis: it locks the queue of dead tables while
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
        let reachable: u64 = reachable.sum();
        TablePages {
            reachable: reachable + Nested::pages(self),
            waiting: self.grace.count::<F, _>(self.tables()),
            free: self.pool.free(),
            allocated: self.pool.allocated(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn counters_of_nested_guests_are_shown_whether_there_are_shadows_now_or_not() {
        let nested = NestedStats { refused_faults: 3, ..NestedStats::default() };
        let text = Stats { nested, ..Stats::default() }.to_string();
        assert!(
            text.ends_with("\nnested faults: 0 mapped, 0 spurious, 0 mmio, 3 refused; shadows: 0, 0 passes")
        );
        assert!(!Stats::default().to_string().contains("nested"));
    }
}
