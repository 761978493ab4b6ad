//! Guests that use some pages of each range again and again, and what must be true after that.

use super::balanced::{Balanced, BalancedBuilder, RangeWalk};
use crate::scenarios::prelude::*;
use core::sync::atomic::AtomicU64;
use slat_mm::{PinnedPage, Settings};
use slat_series::numa_protection::{AVERAGE, BEST, WORST};

/// Ranges of 2 MiB, each scanned once.
const RANGES: u64 = 2;
/// Pages in one.
const PAGES: u64 = 512;
/// Bytes of one.
const BYTES: u64 = PAGES * PAGE_SIZE;
/// Of a range, those that a scan makes inaccessible: 10,037 in 35 ranges. A device has the others pinned.
const HINTED: u64 = 10_037 / 35;
/// Of those, the ones that guests use: 4,610 in 35 ranges.
const USED: u64 = 4_610 / 35;
/// Of the others, the same part.
const OTHERS_USED: u64 = ((PAGES - HINTED) * USED).div_ceil(HINTED);
/// Accesses to a page in a row.
const ACCESSES: u64 = 32;
/// Pages that a vCPU uses between two scans.
const STRETCH: u64 = 128;

type Building = BalancedBuilder<Ept4>;

/// A VM, all of whose memory is there.
pub struct UsedPages {
    balanced: Balanced<Ept4>,
    column: Column,
    ranges: u64,
    /// Pages that guests use, drawn by lot in each range.
    used: Vec<Gfn>,
    /// Scans that have begun. In an atomic of `core`: it costs no time.
    begun: AtomicU64,
    _pinned: Vec<PinnedPage>,
}

/// A guest that goes round the pages in use.
struct Guest<'p> {
    pages: &'p UsedPages,
    way: PageOrder,
    /// Pages to use before it leaves.
    left: u64,
}

impl UsedPages {
    /// `with` says what else the VM has.
    pub fn new(
        setting: &Setting<'_>,
        is_silent: bool,
        with: impl FnOnce(Building) -> Building,
    ) -> Result<Self> {
        let ranges = if setting.quick { 1 } else { RANGES };
        let said = |error: MmError| error.to_string();
        let arena = Arena::builder().limit(256 << 20).build().map_err(said)?;
        let space = AddressSpace::builder(&arena).build().map_err(said)?;
        let (policy, walk) = match setting.column {
            RANGE => (slat_mm::Policy::Range, RangeWalk::Slat),
            RANGE_YIELDING => (slat_mm::Policy::Range, RangeWalk::KvmContended),
            PAGE => (slat_mm::Policy::Page, RangeWalk::Slat),
            _ => (slat_mm::Policy::PageBatched, RangeWalk::Slat),
        };
        let how = (Some(Settings { policy, scan_bytes: BYTES, ..Settings::default() }), walk, is_silent);
        let balanced = Balanced::new(space, ranges * BYTES, how, |vm| with(vm.vcpus(setting.vcpus)))?;
        let (mut used, mut pinned, mut idle) = (Vec::new(), Vec::new(), idle()?);
        for range in 0..ranges {
            let mut pages: Vec<_> = (range * PAGES..(range + 1) * PAGES).map(Gfn).collect();
            pages.sort_by_cached_key(|gfn| setting.lot(gfn.0));
            for (place, gfn) in (0..).zip(pages) {
                let page = balanced.space.pin_page(&mut idle, hva_of(gfn), Access::Write).map_err(said)?;
                if place >= HINTED {
                    pinned.push(page);
                }
                if place < USED || (HINTED..HINTED + OTHERS_USED).contains(&place) {
                    used.push(gfn);
                }
            }
        }
        used.sort_unstable();
        Ok(Self { balanced, column: setting.column, ranges, used, begun: 0.into(), _pinned: pinned })
    }

    /// Guests use their pages until every range has been scanned, and all of them once more.
    pub fn run(&self, setting: &Setting<'_>) -> Result<Point> {
        let all = self.used.len() as u64;
        let guest = |number| Guest { pages: self, way: PageOrder::new(setting, number, all), left: all };
        let mut vcpus = VcpuPrograms::warm(&self.balanced.vm, setting, ACCESSES, |_| Tlb::new(), guest)?;
        let mapped = self.balanced.vm.stats().mapped_faults;
        let jobs = vcpus.jobs(|idle, cpu, guest| {
            let mut stretches = 0;
            while self.balanced.scans() < self.ranges {
                guest.left = STRETCH;
                cpu.run(idle, guest)?;
                stretches += 1;
                // The next scan is due when a guest has used as many stretches as there were scans, and one more.
                let scans = self.balanced.scans();
                let is_due = scans < self.ranges.min(stretches);
                if is_due && self.begun.compare_exchange(scans, scans + 1, Relaxed, Relaxed).is_ok() {
                    self.balanced.scan(idle)?;
                }
            }
            guest.left = all;
            cpu.run(idle, guest)
        });
        let stats = run(setting.costs, jobs);
        let (seen, counts) = (vcpus.seen()?, self.balanced.counts());
        let per_range = |count: u64| count as f64 / self.ranges as f64;
        let lost = per_range(vcpus.lost_ns(&stats, &seen)) / f64::from(setting.vcpus);
        let access = setting.work.guest_ns as f64 + lost / (STRETCH * ACCESSES) as f64;
        let figures = vec![
            Figure::new("ns per access", access, "ns"),
            Figure::new("ns lost by a vCPU per 2 MiB", lost, "ns"),
            Figure::new("ns to scan 2 MiB", per_range(counts.scan_ns), "ns"),
            Figure::new(FLUSHES, per_range(counts.flushes), "flushes"),
            Figure::new("kicks per 2 MiB", per_range(stats.kicks), "kicks"),
            Figure::new(CALLS, per_range(counts.unmaps), "calls"),
            Figure::new("guest faults per 2 MiB", per_range(seen.faults()), "faults"),
        ];
        Ok(Point {
            operations: self.ranges,
            flushes: counts.flushes,
            checks: self.checks(&seen, mapped)?,
            ..Point::of(setting, figures, stats)
        })
    }

    /// The conditions after a run in which guests have seen this, and before which so many pages were mapped.
    fn checks(&self, seen: &Seen, mapped: u64) -> Result<Vec<Check>> {
        let (vm, counts) = (&self.balanced.vm, self.balanced.counts());
        let (used, taken) = (self.used.len() as u64, self.ranges * USED);
        let owed = match self.column {
            RANGE_YIELDING => used,
            PAGE => taken,
            _ => self.ranges,
        };
        let each = self.used.iter().map(|&gfn| Span::sized(gfn, 1));
        let right = right_by(vm, each, host_has(&self.balanced.space, Level::K4))?;
        let mut checks = seen.checks().to_vec();
        checks.extend([
            Check::all("a hint for each page that was taken away", counts.balancing.hint_faults, taken),
            Check::all("what guests use is mapped right in the end", right, used),
            Check::all("every fault was counted once", vm.stats().mapped_faults - mapped, seen.mapped),
            Check::all("as many flushes as the policy owes", counts.flushes, owed),
            Check::all("no table pages of the guest were freed", counts.tables_freed, 0),
        ]);
        Ok(checks)
    }
}

impl Program for Guest<'_> {
    fn next(&mut self) -> Step {
        let Some(left) = self.left.checked_sub(1) else { return Step::Leave };
        self.left = left;
        Step::Load(self.pages.used[self.way.go_on() as usize])
    }

    /// While a range is scanned, a guest may use what the scan takes away; when the scan is over, only after a hint.
    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        let balanced = &self.pages.balanced;
        match balanced.space.lookup(hva_of(gfn), Access::Read) {
            Some(page) if page.pfn == pfn => Use::Right,
            Some(_) => Use::Foreign,
            None if balanced.scans() <= gfn.0 / PAGES => Use::Right,
            None => Use::Stale,
        }
    }
}

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
    UsedPages::new(setting, false, |vm| vm)?.run(setting)
}

// The columns of a host that balances its nodes.

/// Figures that are set against the series'.
pub const FLUSHES: &str = "flushes per 2 MiB";
/// The same.
pub const CALLS: &str = "unmap calls per 2 MiB";

/// 2 MiB are unmapped, and flushed once: Linux.
pub const RANGE: Column = Column::lockless("range");
/// 2 MiB are unmapped, and flushed page by page: Linux, where other threads wait for its lock.
pub const RANGE_YIELDING: Column = Column::lockless("range, yielding");
/// Page by page, each with its flush: the NUMA protection series.
pub const PAGE: Column = Column::lockless("page");
/// Page by page, with one flush: slat as it ships.
pub const PAGE_BATCHED: Column = Column::lockless("page-batched");

// The series' table beside ours: unmap calls and flushes of guests that boot, ten on average, the best one and the worst. A
// call was one for each 2 MiB before, and one for each page after.

/// Agree to this part.
const PART: f64 = 0.1;

/// Counts do not depend on the number of vCPUs, as long as there are two.
pub fn against(points: &[Point]) -> Vec<Against> {
    let vcpus = points.iter().map(|point| point.vcpus).filter(|&vcpus| vcpus > 1).min().unwrap_or(2);
    let of = |column, name| figure(points, vcpus, column, name);
    let all = || {
        let [range, yielding, page] = [RANGE, RANGE_YIELDING, PAGE].map(|column| of(column, FLUSHES));
        Some((range?, yielding?, page?, of(PAGE, CALLS)?))
    };
    let Some((range, yielding, page, calls)) = all() else { return Vec::new() };
    let per_call = |what, flushes, of| Against::within(PART, what, (flushes / of, page / calls), "flushes");
    vec![
        per_call("flushes for each call, after, on average", AVERAGE.flushes[1], AVERAGE.calls[1]).fitted(),
        per_call("flushes for each call, after, in the best boot", BEST.flushes[1], BEST.calls[1]),
        per_call("flushes for each call, after, in the worst boot", WORST.flushes[1], WORST.calls[1]),
        Against::within(
            PART,
            "flushes for each 2 MiB, before, on average",
            (AVERAGE.flushes[0] / AVERAGE.calls[0], yielding),
            "flushes",
        )
        .saying("as a walk makes them that lets go of its lock after each page"),
        Against::within(
            PART,
            "flushes before over after, on average",
            (AVERAGE.flushes[0] / AVERAGE.flushes[1], yielding / page),
            ratio("flushes before", "flushes after"),
        ),
        Against::not(
            "flushes for each 2 MiB, before, in the best boot",
            (BEST.flushes[0] / BEST.calls[0], range),
            "flushes",
            "an undisturbed walk flushes once, or not at all where the guest has nothing mapped; here it always has",
        ),
        Against::not(
            "flushes for each 2 MiB, before, in the worst boot",
            (WORST.flushes[0] / WORST.calls[0], yielding),
            "flushes",
            "more than 2 MiB have pages: why, the series does not say",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::numa::SCENARIO;

    /// Names of the checks that fail after a run.
    fn failing_with(
        column: Column,
        is_silent: bool,
        with: impl FnOnce(Building) -> Building,
    ) -> Vec<&'static str> {
        let pages = UsedPages::new(&setting(column), is_silent, with).unwrap();
        failing(&pages.run(&setting(column)).unwrap().checks)
    }

    /// Negative control: the guests' last round is after all scans.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        for &column in SCENARIO.simulated.columns {
            let failed = failing_with(column, true, |vm| vm);
            let name = "no guest used a frame after it had been taken away";
            assert!(failed.contains(&name), "{}: {failed:?}", column.name);
        }
    }

    /// Negative control: a VM for which every reason is an unmap frees tables.
    #[test]
    fn tables_that_are_freed_are_noticed() {
        let name = "no table pages of the guest were freed";
        assert!(!failing_with(RANGE, false, |vm| vm).contains(&name));
        assert!(failing_with(RANGE, false, |vm| vm.baseline(Baseline::NONE.contexts(false))).contains(&name));
    }

    /// Negative controls of the other checks.
    #[test]
    fn a_page_that_is_lost_and_a_count_that_is_wrong_are_noticed() {
        let setting = setting(PAGE_BATCHED);
        let pages = UsedPages::new(&setting, false, |vm| vm).unwrap();
        let failed = |seen: Seen| failing(&pages.checks(&seen, 0).unwrap());
        assert_eq!(
            failed(Seen::default()),
            [
                "a hint for each page that was taken away",
                "what guests use is mapped right in the end",
                "as many flushes as the policy owes"
            ]
        );
        pages.run(&setting).unwrap();
        let lost = Span::sized(pages.used[0], 1);
        drop(pages.balanced.vm.invalidate(hvas_of(lost), Reason::Clear).apply(&mut idle().unwrap()).settle());
        assert_eq!(
            failed(Seen { absent: 1, astray: 1, ..Seen::default() }),
            [
                "no memory only where there is none",
                "what guests use is mapped right in the end",
                "every fault was counted once",
                "as many flushes as the policy owes",
            ]
        );
    }

    #[test]
    fn a_use_is_stale_between_the_end_of_the_scan_and_the_hint() {
        let setting = setting(PAGE);
        let pages = UsedPages::new(&setting, false, |vm| vm).unwrap();
        let guest = Guest { pages: &pages, way: PageOrder::new(&setting, 0, 1), left: 0 };
        let (space, mut idle) = (&pages.balanced.space, idle().unwrap());
        let frame = |gfn| space.lookup(hva_of(gfn), Access::Read).map(|page| page.pfn);
        let before: Vec<_> = pages.used.iter().map(|&gfn| frame(gfn).unwrap()).collect();
        let uses = |moved: u64| {
            let judged = pages.used.iter().zip(&before).map(|(&gfn, &pfn)| guest.judge(gfn, pfn + moved));
            let judged: Vec<_> = judged.collect();
            [Use::Right, Use::Stale, Use::Foreign]
                .map(|of| judged.iter().filter(|&&one| one == of).count() as u64)
        };
        assert_eq!([uses(0), uses(1)], [[USED + OTHERS_USED, 0, 0], [0, 0, USED + OTHERS_USED]]);
        pages.balanced.scan(&mut idle).unwrap();
        assert_eq!(uses(0), [OTHERS_USED, USED, 0]);
        for &gfn in &pages.used {
            space.read(&mut idle, hva_of(gfn), &mut [0]).unwrap();
        }
        assert_eq!(uses(0), [USED + OTHERS_USED, 0, 0]);
    }

    /// How many rows are reproduced, of how many, where the series' guest would have flushed so many times as often.
    fn reproduced(points: &[Point], times: f64) -> (usize, usize) {
        let mut points = points.to_vec();
        for figure in points.iter_mut().flat_map(|point| &mut point.figures) {
            figure.value *= if figure.name == FLUSHES { times } else { 1.0 };
        }
        let rows = against(&points);
        (rows.iter().filter(|row| row.reproduced).count(), rows.len())
    }

    #[test]
    fn one_column_is_fitted_and_the_averages_of_the_others_follow() {
        let run = |&column: &Column| (SCENARIO.simulated.run)(&setting(column)).unwrap();
        let points: Vec<Point> = SCENARIO.simulated.columns.iter().map(run).collect();
        assert_eq!(reproduced(&points, 1.0), (5, 7));
        // Negative control: all but a ratio.
        assert_eq!(reproduced(&points, 1.5), (1, 7));
        assert!(against(&points[1..]).is_empty(), "a column is missing");
    }
}
