//! A machine whose memory is scanned, once, and what must be true afterwards.

use super::guest_pages::GuestPages;
use super::page_user::PageUser;
use super::scan_turns::ScanTurns;
use super::{CALLS, FLUSHES};
use crate::benches::crew::Crew;
use crate::benches::machine::{Machine, builder, idle, with_one_slot};
use crate::benches::program::{Cpu, Seen};
use crate::benches::way::Way;
use crate::benches::{Check, Figure, Point, Policy, Setting};
use crate::host::SimHost;
use crate::world;
use slat::{Gfn, Idle, MmuLock};

/// Accesses to a page in a row.
const ACCESSES: u64 = 32;
/// Pages that a vCPU uses between two scans.
const STRETCH: u64 = 128;

/// A machine to run on, once.
pub struct Balanced {
    vm: Machine,
    policy: Policy,
    pub pages: GuestPages,
    pub scans: ScanTurns,
}

impl Balanced {
    /// Sabotaged, its flushes are left out.
    pub fn new(setting: &Setting<'_>, sabotaged: bool) -> Result<Self, String> {
        let pages = GuestPages::new(setting);
        let builder = builder(SimHost::filled(pages.len(), &setting.work), setting, MmuLock::None);
        let builder = if sabotaged { builder.sabotage_flushes() } else { builder };
        let vm = with_one_slot(builder, pages.len())?;
        Ok(Self { vm, policy: setting.policy, scans: ScanTurns::new(pages.ranges()), pages })
    }

    /// Runs it.
    pub fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let way = |number| Way::new(setting, number, self.pages.used().len() as u64);
        let mut crew = Crew::warm(&self.vm, setting, ACCESSES, |number| PageUser::new(self, way(number)))?;
        let mapped = self.vm.stats().mapped_faults;
        let told = world::run(setting.costs, crew.jobs(|idle, cpu, user| self.vcpu(idle, cpu, user)));
        let seen = crew.seen()?;
        let per_range = |count: u64| count as f64 / self.pages.ranges() as f64;
        let lost = per_range(crew.lost_ns(&told, &seen)) / f64::from(setting.vcpus);
        let access = setting.work.guest_ns as f64 + lost / (STRETCH * ACCESSES) as f64;
        let [calls, scan_ns] = self.scans.counted();
        let flushes = self.vm.stats().flushes.paid;
        let figures = vec![
            Figure::new("ns per access", access, "ns"),
            Figure::new("ns lost by a vCPU per 2 MiB", lost, "ns"),
            Figure::new("ns to scan 2 MiB", per_range(scan_ns), "ns"),
            Figure::new(FLUSHES, per_range(flushes), "flushes"),
            Figure::new("kicks per 2 MiB", per_range(told.kicks), "kicks"),
            Figure::new(CALLS, per_range(calls), "calls"),
            Figure::new("guest faults per 2 MiB", per_range(seen.faults()), "faults"),
        ];
        Ok(Point {
            operations: self.pages.ranges(),
            flushes,
            checks: self.checks(&seen, mapped)?,
            ..Point::of(setting, figures, told)
        })
    }

    /// What a vCPU's thread does.
    fn vcpu(&self, idle: &mut Idle, cpu: &mut Cpu<'_>, user: &mut PageUser<'_>) -> Result<(), String> {
        let mut stretches = 0;
        while !self.scans.are_over() {
            user.left = STRETCH;
            cpu.run(idle, user)?;
            stretches += 1;
            self.scans.scan_if_due(idle, stretches, (&self.vm, &self.pages, self.policy));
        }
        user.left = self.pages.used().len() as u64;
        cpu.run(idle, user)
    }

    /// What must be true after a run in which guests have seen this, and before which so many pages were mapped.
    fn checks(&self, seen: &Seen, mapped: u64) -> Result<Vec<Check>, String> {
        let (stats, used) = (self.vm.stats(), self.pages.used().len() as u64);
        let owed = match self.policy {
            Policy::RangeYielding => used,
            Policy::Page => self.pages.taken(),
            _ => self.pages.ranges(),
        };
        let mut checks = seen.checks().to_vec();
        checks.extend([
            Check::all(
                "a hint for each page that was taken away",
                self.vm.host().hints(),
                self.pages.taken(),
            ),
            Check::all("what guests use is mapped right in the end", self.mapped_right()?, used),
            Check::all("every fault was counted once", stats.mapped_faults - mapped, seen.mapped),
            Check::all("as many flushes as the policy owes", stats.flushes.paid, owed),
        ]);
        Ok(checks)
    }

    /// Pages in use that are mapped to the frames that belong to them.
    fn mapped_right(&self) -> Result<u64, String> {
        let mut idle = idle()?;
        let mut frame = |gfn| self.vm.translate(&mut idle, gfn).map(|found| found.leaf.pfn);
        let right = |gfn: Gfn| frame(gfn) == Some(self.pages.page(gfn).pfn);
        Ok(self.pages.used().iter().copied().map(right).filter(|&right| right).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::NumaBalancing;
    use super::*;
    use crate::benches::Bench as _;
    use crate::benches::program::{Program as _, Use};
    use crate::benches::tests::{failing, setting};
    use crate::host::hvas_of;
    use slat::{Span, Why};

    /// Negative control: the guests' last round is after all scans.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        for &policy in NumaBalancing.policies() {
            let point = Balanced::new(&setting(policy), true).unwrap().run(&setting(policy)).unwrap();
            let name = "no guest used a frame after it had been taken away";
            assert!(failing(&point.checks).contains(&name), "{}", policy.name());
        }
    }

    /// Negative controls of the other checks.
    #[test]
    fn whatever_is_not_as_it_should_be_is_noticed() {
        let setting = setting(Policy::PageBatched);
        let balanced = Balanced::new(&setting, false).unwrap();
        balanced.run(&setting).unwrap();
        let taken = balanced.pages.used().iter().copied().find(|&gfn| balanced.pages.is_hinted(gfn)).unwrap();
        let mut idle = Idle::take().unwrap();
        let page = Span::sized(taken, 1);
        balanced.vm.invalidate(hvas_of(page), Why::Clear).apply(&mut idle).settle();
        balanced.vm.host().hide(hvas_of(page).start, balanced.pages.page(taken));
        drop(idle);
        let names = failing(&balanced.checks(&Seen { absent: 1, astray: 1, ..Seen::default() }, 0).unwrap());
        assert_eq!(
            names,
            [
                "no memory only where there is none",
                "what guests use is mapped right in the end",
                "every fault was counted once",
                "as many flushes as the policy owes",
            ]
        );
        let user = PageUser::new(&balanced, Way::new(&setting, 0, 1));
        let [old, new] = [crate::host::first_page(taken), balanced.pages.page(taken)].map(|page| page.pfn);
        assert_eq!(
            [old, new, new + 1].map(|pfn| user.judge(taken, pfn)),
            [Use::Stale, Use::Right, Use::Foreign]
        );
        let before = Balanced::new(&setting, false).unwrap();
        assert_eq!(PageUser::new(&before, Way::new(&setting, 0, 1)).judge(taken, old), Use::Right);
        assert_eq!(
            failing(&before.checks(&Seen::default(), 0).unwrap()),
            [
                "a hint for each page that was taken away",
                "what guests use is mapped right in the end",
                "as many flushes as the policy owes"
            ]
        );
    }
}
