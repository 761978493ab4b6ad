//! A host looks where pages are used, while vCPUs use them: seed 002.
//!
//! ```text
//! memory     4 MiB in ranges of 2 MiB; guests use some of the pages, and have them mapped
//! vCPUs      go round the pages in use, each in an order of its own
//! a scan     by one vCPU's thread, out of the guest, as in Linux: some pages of a range become inaccessible, until a fault
//!            (a hint) asks for them. The next scan when its thread's guest has used 128 pages, and nobody scans
//! ```
//! | policy | the VM is told | flushes |
//! |---|---|---|
//! | range | to unmap all 2 MiB, before: Linux | one |
//! | range, yielding | the same, by a walk that lets go of its lock after each page, which it has to flush first: Linux, where others want the lock | one for each page mapped |
//! | page | of each page that becomes inaccessible: the seed | one for each of them that is mapped |
//! | page-batched | of each run of such pages: slat | one |
//!
//! The pages are the same under each policy. How many of a range become inaccessible, and how many of those are mapped, is
//! taken from the seed's second line (10,037 calls in 35 ranges, of which 4,610 flushed); what the policies make of that, is
//! simulated.
//!
//! What a scan costs a vCPU is told as if it came once for each 128 pages that it uses, however long one takes: the guests go
//! on until all scans are over, and then once more round, so that whatever was taken away is faulted back.

use super::against::{Against, figure};
use super::machine::{Machine, builder, gfns, idle, with_one_slot};
use super::program::{self, Cpu, Guest, Next, Program, Way};
use super::{Bench, Check, Figure, Point, Policy, Setting};
use crate::host::{SimHost, first_page, hva_of, hvas_of};
use crate::world::{self, AtomicU64, Ordering};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use slat::{Event, Gfn, HostPage, Idle, MmuLock, Pfn, SecondaryMmu, Span, Why};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct NumaBalancing;

/// Ranges of 2 MiB, each scanned once.
const RANGES: u64 = 2;
/// Pages in one.
const PAGES: u64 = 512;
/// Of the pages of a range, those that a scan makes inaccessible: 10,037 in 35 ranges.
const HINTED: u64 = 10_037 / 35;
/// Of them, those that guests use: 4,610 flushes in 35 ranges. Of the others the same part.
const USED: u64 = 4_610 / 35;
/// Accesses to a page in a row, of which a TLB answers all but the first.
const ACCESSES: u64 = 32;
/// Pages that a vCPU uses between two scans.
const STRETCH: u64 = 128;
/// What it takes to look at one entry of the host's table.
const LOOK_NS: u64 = 5;
/// A page that comes back after a hint has another frame, so that whoever uses the old one is found out.
const MOVED: u64 = 1 << 20;

/// Figures that are set against the seed's.
const FLUSHES: &str = "flushes per 2 MiB";
const CALLS: &str = "unmap calls per 2 MiB";

impl Bench for NumaBalancing {
    fn name(&self) -> &'static str {
        "numa-balancing"
    }

    fn about(&self) -> &'static str {
        "a host looks where pages are used, while vCPUs use them"
    }

    fn seed(&self) -> &'static str {
        "002"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::Range, Policy::RangeYielding, Policy::Page, Policy::PageBatched]
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        Ground::new(setting, false)?.run(setting)
    }

    /// The seed's table: unmap calls and flushes of booting guests, ten of them on average, the best and the worst. A call was
    /// one for each 2 MiB before, and one for each page after.
    fn against_seed(&self, points: &[Point]) -> Vec<Against> {
        let Some(vcpus) = points.iter().map(|point| point.vcpus).filter(|&vcpus| vcpus > 1).min() else {
            return Vec::new();
        };
        let of = |policy, name| figure(points, vcpus, policy, name);
        let flushes = [Policy::Range, Policy::RangeYielding, Policy::Page].map(|policy| of(policy, FLUSHES));
        let ([Some(range), Some(yielding), Some(page)], Some(calls)) = (flushes, of(Policy::Page, CALLS))
        else {
            return Vec::new();
        };
        let after = page / calls;
        let unit = "flushes";
        vec![
            Against::within(0.1, "flushes for each call, after, on average", (4610.0 / 10037.0, after), unit)
                .fitted(),
            Against::within(
                0.1,
                "flushes for each 2 MiB, before, on average",
                (8625.0 / 35.0, yielding),
                unit,
            )
            .saying("as a walk makes them that lets go of its lock after each page"),
            Against::within(
                0.1,
                "flushes before over after, on average",
                (8625.0 / 4610.0, yielding / page),
                "ratio",
            ),
            Against::within(
                0.1,
                "flushes for each call, after, in the best boot",
                (195.0 / 406.0, after),
                unit,
            ),
            Against::within(
                0.1,
                "flushes for each call, after, in the worst boot",
                (8668.0 / 17352.0, after),
                unit,
            ),
            Against::not(
                "flushes for each 2 MiB, before, in the best boot",
                (13.0 / 28.0, range),
                unit,
                "a walk that nobody disturbs flushes once, or not at all where the guest has nothing mapped; here it always has",
            ),
            Against::not(
                "flushes for each 2 MiB, before, in the worst boot",
                (43920.0 / 44.0, yielding),
                unit,
                "more than 2 MiB have pages: what the seed's guest mapped again while it was being unmapped, or had mapped twice, is not simulated",
            ),
        ]
    }
}

/// A machine to run on, once.
struct Ground {
    vm: Machine,
    policy: Policy,
    /// Of every page, whether its scan makes it inaccessible.
    hinted: Vec<bool>,
    /// The pages that guests use.
    used: Vec<Gfn>,
    /// Twice the number of scans that are over; one more while somebody scans.
    turn: AtomicU64,
    /// Of every page, whether its scan is over.
    scanned: Vec<AtomicBool>,
    /// Pages, or ranges, of which the VM was told to unmap them; and nanoseconds of all scans.
    calls: core::sync::atomic::AtomicU64,
    scan_ns: core::sync::atomic::AtomicU64,
}

impl Ground {
    fn new(setting: &Setting<'_>, sabotaged: bool) -> Result<Self, String> {
        let ranges = if setting.quick { 1 } else { RANGES };
        let pages = ranges * PAGES;
        let builder = builder(SimHost::filled(pages, &setting.work), setting, MmuLock::None);
        let builder = if sabotaged { builder.sabotage_flushes() } else { builder };
        let places: Vec<u64> = (0..ranges).flat_map(|range| shuffled(setting, range)).collect();
        let is_used = |place: u64| {
            place < USED || place >= HINTED && (place - HINTED) * HINTED < (PAGES - HINTED) * USED
        };
        Ok(Self {
            vm: with_one_slot(builder, pages)?,
            policy: setting.policy,
            hinted: places.iter().map(|&place| place < HINTED).collect(),
            used: (0..pages).filter(|&page| is_used(places[page as usize])).map(Gfn).collect(),
            turn: AtomicU64::new(0),
            scanned: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            calls: 0.into(),
            scan_ns: 0.into(),
        })
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let compute = (setting, ACCESSES * setting.work.guest_ns);
        let round = |number| Round::new(self, Way::new(setting, number, self.used.len() as u64));
        let guests = (0..setting.vcpus).map(|number| Guest::new(&self.vm, number, compute, round(number)));
        let mut guests = guests.collect::<Result<Vec<_>, _>>()?;
        program::warm(&mut guests)?;
        let (mapped, flushed) = (self.vm.stats().mapped_faults, self.vm.stats().flushes.paid);
        let told = world::run(
            setting.costs,
            program::jobs(&mut guests, |idle, cpu, round| self.vcpu(idle, cpu, round)),
        );
        let seen = program::seen(&guests)?;
        let (stats, ranges) = (self.vm.stats(), self.hinted.len() as u64 / PAGES);
        let sum = |of: fn(&Round<'_>) -> u64| guests.iter().map(|guest| of(&guest.program)).sum::<u64>();
        let taken = self.used.iter().filter(|gfn| self.hinted[gfn.0 as usize]).count() as u64;
        let flushes = stats.flushes.paid - flushed;
        let owed = match self.policy {
            Policy::RangeYielding => self.used.len() as u64,
            Policy::Page => taken,
            _ => ranges,
        };
        let checks = vec![
            Check::all(
                "no guest used a page that had been taken away",
                seen.uses - sum(|round| round.stale),
                seen.uses,
            ),
            Check::all(
                "guests used the frames that belong to their pages",
                seen.uses - sum(|round| round.wrong),
                seen.uses,
            ),
            Check::all("each page that was taken away came back by one hint", self.vm.host().hints(), taken),
            Check::all(
                "what guests use is mapped right in the end",
                self.mapped_right()?,
                self.used.len() as u64,
            ),
            Check::all("every fault was counted once", stats.mapped_faults - mapped, seen.mapped),
            Check::all("flushes: as many as the policy owes", flushes, owed),
        ];
        let lost_ns = program::vcpus_ns(&told).saturating_sub(seen.uses * ACCESSES * setting.work.guest_ns);
        let per_range = |count: u64| count as f64 / ranges as f64;
        let lost = per_range(lost_ns) / f64::from(setting.vcpus);
        let of = |name, value, unit| Figure { name, value, unit };
        let access = setting.work.guest_ns as f64 + lost / (STRETCH * ACCESSES) as f64;
        Ok(Point {
            vcpus: setting.vcpus,
            policy: setting.policy,
            figures: vec![
                of("ns per access", access, "ns"),
                of("ns lost by a vCPU per 2 MiB", lost, "ns"),
                of("ns to scan 2 MiB", per_range(self.scan_ns.load(Relaxed)), "ns"),
                of(FLUSHES, per_range(flushes), "flushes"),
                of("kicks per 2 MiB", per_range(told.kicks), "kicks"),
                of(CALLS, per_range(self.calls.load(Relaxed)), "calls"),
                of("guest faults per 2 MiB", per_range(seen.faults()), "faults"),
            ],
            operations: ranges,
            waiting: told.waiting(),
            flushes,
            kicks: told.kicks,
            checks,
            told,
        })
    }

    /// What a vCPU's thread does.
    fn vcpu(&self, idle: &mut Idle, cpu: &mut Cpu<'_>, round: &mut Round<'_>) -> Result<(), String> {
        let mut stretches = 0;
        while !self.is_over() {
            round.left = STRETCH;
            cpu.run(idle, round)?;
            stretches += 1;
            if let Some(range) = self.claim(stretches) {
                self.scan(idle, range);
                self.turn.store(2 * (range + 1), Ordering::Release);
            }
        }
        round.left = self.used.len() as u64;
        cpu.run(idle, round)
    }

    fn is_over(&self) -> bool {
        self.turn.load(Ordering::Acquire) == 2 * self.hinted.len() as u64 / PAGES
    }

    /// The range that the caller may scan now, which has used so many stretches of pages.
    fn claim(&self, stretches: u64) -> Option<u64> {
        let turn = self.turn.load(Ordering::Relaxed);
        let (range, free) = (turn / 2, turn % 2 == 0);
        let due = free && stretches > range && range < self.hinted.len() as u64 / PAGES;
        let claim =
            || self.turn.compare_exchange(turn, turn + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        (due && claim()).then_some(range)
    }

    fn scan(&self, idle: &mut Idle, range: u64) {
        let began = world::now();
        world::compute(PAGES * LOOK_NS);
        let pages = Span::sized(Gfn(range * PAGES), PAGES);
        let (event, batches) = match self.policy {
            Policy::Range => (Event::new(hvas_of(pages), Why::Clear), Vec::new()),
            // Each page is told of, whatever becomes of it.
            Policy::RangeYielding => (Event::new(hvas_of(pages), Why::Numa), runs(pages, |_| true, 1)),
            Policy::Page => {
                (Event::new(hvas_of(pages), Why::Numa), runs(pages, |gfn| self.is_hinted(gfn), 1))
            }
            _ => {
                let runs = runs(pages, |gfn| self.is_hinted(gfn), PAGES);
                let ends = runs
                    .first()
                    .zip(runs.last())
                    .map_or(pages, |(first, last)| Span::new(first.start, last.end));
                (Event::new(hvas_of(ends), Why::Numa), runs)
            }
        };
        let done = self.vm.around(idle, event, &mut |idle, told| {
            for gfn in gfns(pages).filter(|&gfn| self.is_hinted(gfn)) {
                self.vm.host().hide(hva_of(gfn), moved(gfn));
            }
            for &run in &batches {
                told.changed(idle, hvas_of(run), None);
                if self.policy != Policy::PageBatched {
                    told.flush(idle);
                }
            }
        });
        debug_assert!(done.is_ok(), "it may block");
        for scanned in &self.scanned[pages.start.0 as usize..pages.end.0 as usize] {
            scanned.store(true, Relaxed);
        }
        self.calls.fetch_add(
            if self.policy == Policy::Page || self.policy == Policy::PageBatched {
                batches.len() as u64
            } else {
                1
            },
            Relaxed,
        );
        self.scan_ns.fetch_add(world::now() - began, Relaxed);
    }

    fn is_hinted(&self, gfn: Gfn) -> bool {
        self.hinted[gfn.0 as usize]
    }

    /// What the host has at `gfn` in the end.
    fn page(&self, gfn: Gfn) -> HostPage {
        if self.is_hinted(gfn) { moved(gfn) } else { first_page(gfn) }
    }

    /// Pages in use that are mapped to the frames that belong to them.
    fn mapped_right(&self) -> Result<u64, String> {
        let mut idle = idle()?;
        let right = |gfn: &&Gfn| {
            let found = self.vm.translate(&mut idle, **gfn);
            found.is_some_and(|found| found.leaf.pfn == self.page(**gfn).pfn)
        };
        Ok(self.used.iter().filter(right).count() as u64)
    }
}

/// What a page is when it comes back after a hint.
fn moved(gfn: Gfn) -> HostPage {
    let page = first_page(gfn);
    HostPage { pfn: page.pfn + MOVED, ..page }
}

/// Runs of neighbours in `pages` that are wanted, of so many pages at most.
fn runs(pages: Span<Gfn>, wanted: impl Fn(Gfn) -> bool, most: u64) -> Vec<Span<Gfn>> {
    let mut runs: Vec<Span<Gfn>> = Vec::new();
    for gfn in gfns(pages).filter(|&gfn| wanted(gfn)) {
        match runs.last_mut() {
            Some(run) if run.end == gfn && run.len() < most => run.end = gfn + 1,
            _ => runs.push(Span::sized(gfn, 1)),
        }
    }
    runs
}

/// The numbers of a range's pages, in an order drawn by lot.
fn shuffled(setting: &Setting<'_>, range: u64) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..PAGES).collect();
    pages.sort_by_cached_key(|page| setting.lot(range * PAGES + page));
    pages
}

/// What a guest does: goes round.
struct Round<'g> {
    ground: &'g Ground,
    way: Way,
    /// Pages to use before it leaves.
    left: u64,
    /// Uses of a page's first frame after the page was taken away.
    stale: u64,
    /// Uses of another frame than the page's.
    wrong: u64,
}

impl<'g> Round<'g> {
    /// Once round before the run begins.
    fn new(ground: &'g Ground, way: Way) -> Self {
        Self { ground, way, left: ground.used.len() as u64, stale: 0, wrong: 0 }
    }
}

impl Program for Round<'_> {
    fn next(&mut self) -> Next {
        let Some(left) = self.left.checked_sub(1) else { return Next::Leave };
        self.left = left;
        Next::Load(self.ground.used[self.way.next() as usize])
    }

    fn used(&mut self, gfn: Gfn, pfn: Pfn) {
        let page = self.ground.page(gfn).pfn;
        let first = first_page(gfn).pfn;
        self.wrong += u64::from(pfn != page && pfn != first);
        self.stale += u64::from(pfn != page && self.ground.scanned[gfn.0 as usize].load(Relaxed));
    }

    fn none(&mut self, _: Gfn) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Work;
    use crate::world::Costs;

    fn setting(policy: Policy) -> Setting<'static> {
        Setting { costs: &Costs::SERVER, vcpus: 2, policy, quick: false, seed: 1, work: Work::default() }
    }

    /// Negative control.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        for &policy in NumaBalancing.policies() {
            let setting = setting(policy);
            let point = Ground::new(&setting, true).unwrap().run(&setting).unwrap();
            assert!(!point.checks[0].ok, "{}: {}", policy.name(), point.checks[0].detail);
        }
    }

    #[test]
    fn neighbours_that_are_wanted_run_together() {
        let found = |most| {
            let runs = runs(Span::sized(Gfn(0), 8), |gfn| ![1, 5].contains(&gfn.0), most);
            runs.iter().map(|run| (run.start.0, run.end.0)).collect::<Vec<_>>()
        };
        assert_eq!(found(1), [(0, 1), (2, 3), (3, 4), (4, 5), (6, 7), (7, 8)]);
        assert_eq!(found(2), [(0, 1), (2, 4), (4, 5), (6, 8)]);
        assert_eq!(found(8), [(0, 1), (2, 5), (6, 8)]);
    }
}
