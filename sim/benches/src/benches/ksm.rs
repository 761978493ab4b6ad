//! A host merges equal pages of running vCPUs: seed 004.
//!
//! ```text
//! vCPUs     read their way round the pages that are merged, each in an order of its own
//! scanner   for each page: look at it (a checksum, a search) │ make it read-only │ compare │ replace its frame by a shared one
//!                                                              told: write-protect         told: change-pte
//! ```
//! | policy | what the VM makes of the reasons | pages in one change |
//! |---|---|---|
//! | ignored | each is an unmap: the guest faults meanwhile, and afterwards. Before | one |
//! | heeded | the page stays mapped: it loses write permission, then gets its new frame in place. The seed | one |
//! | heeded, batched | the same: slat's own scanner | 64 |
//!
//! **What is not simulated**: guests that write, and so break what was merged.

use super::against::{Against, figure};
use super::machine::{Machine, builder, gfns, idle, with_one_slot};
use super::program::{self, Guest, Next, Program, Seen, Way};
use super::{Bench, Check, Figure, Point, Policy, Setting};
use crate::host::{SimHost, first_page, hva_of, hvas_of};
use crate::world::{self, Job};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use slat::{Event, Gfn, HostPage, Idle, Level, MmuLock, Pfn, SecondaryMmu, Span, Why};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct KsmPerf;

/// Pages that are merged.
const PAGES: u64 = 128;
/// With more vCPUs than this half of them do: each is a flush for every vCPU.
const MANY: u32 = 64;
/// Frames that they come to share.
const STABLE: u64 = 8;
/// The first of those.
const FIRST_STABLE: Pfn = Pfn(1 << 32);
/// Pages in one change where there are many: as many as slat's own scanner takes.
const BATCH: u64 = 64;
/// Accesses to a page in a row, of which a TLB answers all but the first.
const ACCESSES: u64 = 32;

/// Figures that are set against the seed's.
const FAULTS: &str = "guest faults per page";
const LOST: &str = "ns lost by all guests per page";
const SCANNER: &str = "ns of the scanner per page";

impl Bench for KsmPerf {
    fn name(&self) -> &'static str {
        "ksm-perf"
    }

    fn about(&self) -> &'static str {
        "a host merges equal pages of running vCPUs"
    }

    fn seed(&self) -> &'static str {
        "004"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::Ignored, Policy::Heeded, Policy::HeededBatched]
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        Ground::new(setting, false)?.run(setting)
    }

    /// The seed's kernel time: 215.93 s before, 200.90 s after. Here it is the scanner's, and what guests lose.
    fn against_seed(&self, points: &[Point]) -> Vec<Against> {
        const SEED: f64 = 200.902_710 / 215.929_657;
        let kernel = |vcpus, policy| {
            Some(figure(points, vcpus, policy, SCANNER)? + figure(points, vcpus, policy, LOST)?)
        };
        let over_before = |vcpus, policy| Some(kernel(vcpus, policy)? / kernel(vcpus, Policy::Ignored)?);
        let few = points.iter().map(|point| point.vcpus).min();
        let many = points.iter().map(|point| point.vcpus).max().filter(|&vcpus| Some(vcpus) > few);
        let mut rows = Vec::new();
        for vcpus in few.into_iter().chain(many) {
            for (policy, who) in
                [(Policy::Heeded, "page by page"), (Policy::HeededBatched, "64 pages at once, as slat")]
            {
                let what = format!("kernel time, after over before, {who}, vCPUs: {vcpus}");
                let Some(ratio) = over_before(vcpus, policy) else { continue };
                let row = Against {
                    reproduced: ratio <= SEED,
                    ..Against::not(&what, (SEED, ratio), "ratio", "at most")
                };
                rows.push(if row.reproduced { row } else { row.saying(TWO_FLUSHES) });
            }
            if let Some(faults) = figure(points, vcpus, Policy::Heeded, FAULTS) {
                rows.push(Against::within(
                    0.0,
                    &format!("guest faults for each page, after, vCPUs: {vcpus}"),
                    (0.0, faults),
                    "faults",
                ));
            }
        }
        rows
    }
}

/// Why what the seed found is not found.
const TWO_FLUSHES: &str = "a page that is unmapped first owes one flush and a fault, one that stays mapped owes two flushes; these \
                           guests never rest, so each is waited for, and costs more than the fault. Guests that are seldom running \
                           owe no kicks; the seed does not say how much its guests ran";

/// A machine to run on, once.
struct Ground {
    vm: Machine,
    pages: u64,
    /// In one change.
    batch: u64,
    /// Of every page, whether it is merged, and its first frame free.
    freed: Vec<AtomicBool>,
    /// The scanner has done.
    over: AtomicBool,
}

/// Nanoseconds of the scanner.
#[derive(Clone, Copy, Default)]
struct Scan {
    /// In notifications, the change of its own entries included.
    mmu_ns: u64,
    /// Of all that it does.
    ns: u64,
}

impl Ground {
    fn new(setting: &Setting<'_>, sabotaged: bool) -> Result<Self, String> {
        let pages = if setting.quick || setting.vcpus > MANY { BATCH } else { PAGES };
        let builder = builder(SimHost::filled(pages, &setting.work), setting, MmuLock::None);
        let builder = builder.contexts(setting.policy != Policy::Ignored);
        let builder = if sabotaged { builder.sabotage_flushes() } else { builder };
        Ok(Self {
            vm: with_one_slot(builder, pages)?,
            pages,
            batch: if setting.policy == Policy::HeededBatched { BATCH } else { 1 },
            freed: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            over: AtomicBool::new(false),
        })
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let compute = (setting, ACCESSES * setting.work.guest_ns);
        let round = |number| Round::new(self, Way::new(setting, number, self.pages));
        let guests = (0..setting.vcpus).map(|number| Guest::new(&self.vm, number, compute, round(number)));
        let mut guests = guests.collect::<Result<Vec<_>, _>>()?;
        program::warm(&mut guests)?;
        let mut scan = Ok(Scan::default());
        let mut jobs = program::jobs(&mut guests, |idle, cpu, round| cpu.run(idle, round));
        jobs.push(Job::new("scanner", || {
            scan = self.scan();
            self.over.store(true, Relaxed);
        }));
        let told = world::run(setting.costs, jobs);
        let (seen, scan) = (program::seen(&guests)?, scan?);
        let checks = self.checks(setting.policy, &guests, &seen)?;
        let lost_ns = program::vcpus_ns(&told).saturating_sub(seen.uses * ACCESSES * setting.work.guest_ns);
        let each = |total: u64| total as f64 / self.pages as f64;
        let of = |name, value, unit| Figure { name, value, unit };
        let flushes = self.vm.stats().flushes.paid;
        Ok(Point {
            vcpus: setting.vcpus,
            policy: setting.policy,
            figures: vec![
                of("ns of the scanner's in MMU code per page", each(scan.mmu_ns), "ns"),
                of(FAULTS, each(seen.faults()), "faults"),
                of(LOST, each(lost_ns), "ns"),
                of(SCANNER, each(scan.ns), "ns"),
                of("flushes per page", each(flushes), "flushes"),
                of("kicks per page", each(told.kicks), "kicks"),
            ],
            operations: self.pages,
            waiting: told.waiting(),
            flushes,
            kicks: told.kicks,
            checks,
            told,
        })
    }

    fn checks(
        &self,
        policy: Policy,
        guests: &[Guest<'_, Round<'_>>],
        seen: &Seen,
    ) -> Result<Vec<Check>, String> {
        let sum = |of: fn(&Round<'_>) -> u64| guests.iter().map(|guest| of(&guest.program)).sum::<u64>();
        let flushes = self.vm.stats().flushes.paid;
        let changes = 2 * self.pages.div_ceil(self.batch);
        let (faults, owed) = if policy == Policy::Ignored {
            // The second unmap finds nothing where no guest has faulted since the first.
            let owed = (changes / 2..=changes).contains(&flushes);
            (
                Check {
                    name: "guests fault on what is unmapped",
                    ok: seen.faults() >= self.pages,
                    detail: format!("{}", seen.faults()),
                },
                owed,
            )
        } else {
            (Check::all("no guest faults", seen.uses, seen.uses + seen.faults()), flushes == changes)
        };
        Ok(vec![
            Check::all(
                "no guest used a frame that was free",
                seen.uses - sum(|round| round.stale),
                seen.uses,
            ),
            Check::all(
                "guests used the frames that belong to their pages",
                seen.uses - sum(|round| round.wrong),
                seen.uses,
            ),
            Check::all(
                "every page is mapped to its shared frame, read-only, in the end",
                self.merged()?,
                self.pages,
            ),
            Check { name: "a flush for each change", ok: owed, detail: format!("{flushes} for {changes}") },
            faults,
        ])
    }

    /// Merges all pages.
    fn scan(&self) -> Result<Scan, String> {
        let mut idle = idle()?;
        let mut scan = Scan::default();
        let mut tell = |idle: &mut Idle, pages: Span<Gfn>, why: Why, to: fn(Gfn) -> HostPage| {
            let began = world::now();
            let done = self.vm.around(idle, Event::new(hvas_of(pages), why), &mut |idle, told| {
                for gfn in gfns(pages) {
                    self.vm.host().set(hva_of(gfn), Some(to(gfn)));
                    told.changed(idle, hvas_of(Span::sized(gfn, 1)), Some(to(gfn)));
                }
            });
            scan.mmu_ns += world::now() - began;
            done.map_err(|again| again.to_string())
        };
        let began = world::now();
        for first in (0..self.pages).step_by(self.batch as usize) {
            let pages = Span::new(Gfn(first), Gfn((first + self.batch).min(self.pages)));
            // A checksum, and a page of the tree that it is compared with.
            gfns(pages).for_each(|_| (0..2).for_each(|_| world::read_page()));
            tell(&mut idle, pages, Why::WriteProtect, read_only)?;
            // Both pages.
            gfns(pages).for_each(|_| (0..2).for_each(|_| world::read_page()));
            tell(&mut idle, pages, Why::ChangePte, stable)?;
            gfns(pages).for_each(|gfn| self.freed[gfn.0 as usize].store(true, Relaxed));
        }
        scan.ns = world::now() - began;
        Ok(scan)
    }

    /// Pages that are mapped as merged ones are.
    fn merged(&self) -> Result<u64, String> {
        let mut idle = idle()?;
        let merged = |&gfn: &Gfn| {
            let found = self.vm.translate(&mut idle, gfn);
            found.is_some_and(|found| {
                found.leaf.pfn == stable(gfn).pfn && !found.leaf.perms.allows(slat::Access::Write)
            })
        };
        Ok((0..self.pages).map(Gfn).filter(merged).count() as u64)
    }
}

/// A page that waits to be compared.
fn read_only(gfn: Gfn) -> HostPage {
    HostPage { writable: false, ..first_page(gfn) }
}

/// The same when it is merged.
fn stable(gfn: Gfn) -> HostPage {
    HostPage { pfn: FIRST_STABLE + gfn.0 % STABLE, level: Level::K4, writable: false }
}

/// What a guest does: reads its way round, until the scanner has done and once more round.
struct Round<'g> {
    ground: &'g Ground,
    way: Way,
    /// Pages to use before it leaves, where that is known.
    left: Option<u64>,
    /// Uses of a frame that was free.
    stale: u64,
    /// Uses of a frame that was never the page's.
    wrong: u64,
}

impl<'g> Round<'g> {
    /// Once round before the run begins.
    fn new(ground: &'g Ground, way: Way) -> Self {
        Self { ground, way, left: Some(ground.pages), stale: 0, wrong: 0 }
    }
}

impl Program for Round<'_> {
    fn next(&mut self) -> Next {
        if self.left == Some(0) {
            self.left = None;
            return Next::Leave;
        }
        if self.left.is_none() && self.ground.over.load(Relaxed) {
            self.left = Some(self.ground.pages);
        }
        self.left = self.left.map(|left| left - 1);
        Next::Load(Gfn(self.way.next()))
    }

    fn used(&mut self, gfn: Gfn, pfn: Pfn) {
        let old = pfn == first_page(gfn).pfn;
        self.stale += u64::from(old && self.ground.freed[gfn.0 as usize].load(Relaxed));
        self.wrong += u64::from(!old && pfn != stable(gfn).pfn);
    }

    fn none(&mut self, _: Gfn) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Work;
    use crate::world::Costs;

    fn setting(policy: Policy) -> Setting<'static> {
        Setting { costs: &Costs::SERVER, vcpus: 2, policy, quick: true, seed: 1, work: Work::default() }
    }

    /// Negative control.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        for &policy in KsmPerf.policies() {
            let setting = setting(policy);
            let point = Ground::new(&setting, true).unwrap().run(&setting).unwrap();
            assert!(!point.checks[0].ok, "{}: {}", policy.name(), point.checks[0].detail);
        }
    }
}
