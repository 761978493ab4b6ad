//! vCPUs that touch memory for the first time, concurrently, and the checks that must hold afterwards.

use crate::parts::vm_setup::is_first;
use crate::scenarios::prelude::*;

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let parts = Parts::new(setting, setting.pages_per_vcpu());
    let pages = parts.all().len();
    let host = SimHost::new(pages, &setting.work);
    let vm = sim_vm(host, setting, pages)?;
    let mut guests = parts.guests(&vm, &setting.work)?;
    let fixture =
        Fixture { vm: &vm, parts: &parts.each().collect::<Vec<_>>(), page: Level::K4, right: FIRST_FRAMES };
    let Touched { stats, tally } = fixture.run(setting.costs, &mut guests, || (), None)?;
    let figures = vec![
        Figure::new("ns per fault", stats.wall_ns as f64 / parts.pages as f64, "ns"),
        Figure::new("time", stats.wall_ns as f64 / 1e6, "ms"),
    ];
    Ok(Point {
        operations: parts.pages * u64::from(setting.vcpus),
        flushes: vm.stats().flushes.paid,
        checks: tally.iter().map(Check::from).collect(),
        ..Point::of(setting, figures, stats)
    })
}

/// The condition of each page: the name of its check, and whether it holds where a page is mapped to a frame.
pub type Right<R> = (&'static str, R);

/// The frames that a host of arithmetic has at first.
pub const FIRST_FRAMES: Right<fn(Gfn, Pfn) -> bool> = ("every page is mapped to its frame", is_first);

/// Memory that no vCPU has touched yet.
pub struct Fixture<'g, F: Format, H: Host, R> {
    /// The VM.
    pub vm: &'g Vm<F, H>,
    /// The pages that each vCPU touches, in order: a part of its own, or the same for all.
    pub parts: &'g [Span<Gfn>],
    /// The size of the host's pages: each is touched once.
    pub page: Level,
    /// The condition of each page afterwards.
    pub right: Right<R>,
}

/// One run.
pub struct Touched {
    /// The statistics of the run.
    pub stats: RunStats,
    /// The conditions under which it counts.
    pub tally: Vec<Tally>,
}

impl<F: Format, H: Host, R: Fn(Gfn, Pfn) -> bool> Fixture<'_, F, H, R> {
    /// `vcpus` touch all of their pages, each on a CPU of its own, beside another job, if there is one; `then` is the last that each
    /// does.
    pub fn run<'j>(
        &self,
        costs: &Costs,
        vcpus: &'j mut [impl Touch],
        then: impl FnOnce() + Copy + Send + 'j,
        beside: Option<Job<'j>>,
    ) -> Result<Touched> {
        let before = self.vm.stats().mapped_faults;
        let step = self.page.pages() as usize;
        let pages = |part: &Span<Gfn>| (part.start.0..part.end.0).step_by(step).map(Gfn);
        let jobs = vcpus.iter_mut().zip(self.parts).map(|(vcpu, part)| vcpu.job(pages(part), then));
        let stats = run(costs, jobs.chain(beside).collect());
        Ok(Touched { stats, tally: self.tally(vcpus, before)? })
    }

    /// The conditions after it, where so many faults had mapped a page before.
    fn tally(&self, vcpus: &mut [impl Touch], before: u64) -> Result<Vec<Tally>> {
        let len = |parts: &[Span<Gfn>]| parts.iter().map(Span::len).sum::<u64>() / self.page.pages();
        let mut parts = self.parts.to_vec();
        parts.dedup();
        let touched = vcpus.iter_mut().map(|vcpu| vcpu.counts()[1]).sum();
        Ok(vec![
            ("every vCPU touched all of its pages", [touched, len(self.parts)]),
            ("every page was faulted in once", [self.vm.stats().mapped_faults - before, len(&parts)]),
            (self.right.0, [right_by(self.vm, parts.iter().copied(), &self.right.1)?, len(&parts)]),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_control_a_page_that_is_lost_and_one_that_comes_twice_are_found() {
        let setting = &setting(NONE);
        let parts = Parts::new(setting, 8);
        let pages = parts.all().len();
        let host = SimHost::new(pages, &setting.work);
        let vm = &sim_vm(host, setting, pages).unwrap();
        let guests = &mut parts.guests(vm, &setting.work).unwrap();
        let parts: &Vec<_> = &parts.each().collect();
        let fixture = Fixture { vm, parts, page: Level::K4, right: FIRST_FRAMES };
        let failed = |tally: &[Tally]| -> Vec<_> {
            let checks = tally.iter().map(Check::from).filter(|check| !check.ok);
            checks.map(|check| format!("{}: {}", check.name, check.detail)).collect()
        };
        assert_eq!(failed(&fixture.tally(guests, 2).unwrap()).len(), 3, "nothing has been done");
        let lap = fixture.run(setting.costs, guests, || (), None).unwrap();
        assert_eq!(failed(&lap.tally), [""; 0]);

        let lost = hvas_of(Span::sized(parts[1].start, 1));
        drop(vm.invalidate(lost, Reason::Clear).apply(&mut idle().unwrap()).settle());
        assert_eq!(
            failed(&fixture.tally(guests, 2).unwrap()),
            ["every page is mapped to its frame: 15 of 16"]
        );
        let again = fixture.run(setting.costs, guests, || (), None).unwrap();
        assert_eq!(
            failed(&again.tally),
            ["every vCPU touched all of its pages: 1 of 16", "every page was faulted in once: 1 of 16"]
        );
    }
}
