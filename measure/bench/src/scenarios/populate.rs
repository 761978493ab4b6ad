//! A memslot is mapped whole before its guest runs: by vCPUs that take stretches of it together, against vCPUs whose guests touch
//! each page of a part of their own.
//!
//! ```text
//! faults     vCPU v: page by page of part v: leave the guest ─▶ Vcpu::fault ─▶ enter
//! populate   vCPU v: the next stretch that no vCPU has taken ─▶ Vcpu::populate; no guest runs
//! ```
//! Once with pages of 4 KiB, once with pages of 2 MiB, which the host has all from the start. Figures are microseconds for each GiB of
//! guest memory: 1,000,000 divided by a figure is GiB/s. On threads leaving a guest takes no time, unless it is asked for: so what is
//! saved there is the engine's part alone.

use crate::scenarios::prelude::*;
use slat::Population;

/// Each page comes by a fault of the guest.
pub const FAULTS: Column = Column::lockless("faults");
/// Pages come before the guest runs, by vCPUs that take stretches.
pub const POPULATION: Column = Column::lockless("populate");

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "populate",
    asks: "A memslot is mapped whole before its guest runs: by faults of a guest, and by vCPUs that populate it together",
    series: PatchSeries::Kvm,
    simulated: Simulated {
        unused: &[
            NO_AGER,
            (&["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines"], ALL_THERE),
        ],
        reported: false,
        ..Simulated::of(run_once, &[FAULTS, POPULATION])
    },
    #[cfg(not(virtual_time))]
    measured: Measured {
        takes: ["3 s", "60 MiB"],
        ci: &["-v 1,2"],
        quick: &["--runs 3"],
        full: &[""],
        ..Measured::of::<ColumnFlags>()
    },
};

/// Frames of the memslot on threads: 1 GiB.
const FRAMES: u64 = 1 << 18;

/// A run with pages of one size.
struct Fixture<'s> {
    setting: &'s Setting<'s>,
    vm: SimVm,
    work: Work,
    frames: Span<Gfn>,
}

impl<'s> Fixture<'s> {
    fn new(setting: &'s Setting<'s>, page: Level) -> Result<Self> {
        let frames = if cfg!(virtual_time) {
            setting.pages_per_vcpu().next_multiple_of(Level::M2.pages()) * u64::from(setting.vcpus)
        } else {
            FRAMES / if setting.quick { 16 } else { 1 }
        };
        let work = Work { host_page: page, host_first: false, ..setting.work.clone() };
        let host = SimHost::filled(frames, &work);
        let vm = sim_vm(host, setting, frames)?;
        Ok(Self { setting, vm, work, frames: Span::sized(Gfn(0), frames) })
    }

    /// The part of each vCPU's guest: whole tables of leaves.
    fn parts(&self) -> impl Iterator<Item = Span<Gfn>> {
        let vcpus = u64::from(self.setting.vcpus);
        let part = self.frames.len().div_ceil(vcpus).next_multiple_of(Level::M2.pages());
        (0..vcpus).map(move |vcpu| Span::sized(Gfn(vcpu * part), part).clamp(&self.frames))
    }

    /// Guests touch pages. How many frames came by that.
    fn by_faults(&self) -> Result<(RunStats, u64)> {
        let guest = |number| Guest::new(&self.vm, number, &self.work);
        let mut guests = (0..self.setting.vcpus).map(guest).collect::<Result<Vec<_>, _>>()?;
        let page = self.work.host_page.pages();
        let pages = |part: Span<Gfn>| (part.start.0..part.end.0).step_by(page as usize).map(Gfn);
        let jobs = guests.iter_mut().zip(self.parts()).map(|(guest, part)| guest.job(pages(part), || ()));
        let stats = run(self.setting.costs, jobs.collect());
        Ok((stats, guests.iter().map(|guest| guest.mapped() * page).sum()))
    }

    /// vCPUs take stretches.
    fn together(&self) -> Result<(RunStats, u64)> {
        let population = &Population::new(self.frames, Prefault::young(Access::Write));
        let work = |idle: &mut Idle, number, ()| {
            let mut vcpu = vcpu(&self.vm, number)?;
            // A page that cannot be mapped is not counted, and so found by the checks.
            while vcpu.populate(idle, population).is_some() {}
            Ok::<_, String>(())
        };
        let (stats, _) = each_vcpu(self.setting.costs, (0..self.setting.vcpus).map(|_| ()), work, None)?;
        Ok((stats, population.progress().0))
    }

    /// The conditions, where so many frames came.
    fn checks(&self, mapped: u64) -> Result<[Check; 2]> {
        let (frames, page) = (self.frames.len(), self.work.host_page.pages());
        let right = right(&self.vm, [self.frames].into_iter())?;
        Ok([
            Check::all("every frame was mapped once", mapped, frames),
            Check::all("every leaf has its frame", right, frames / page),
        ])
    }

    /// As the column has it. How many frames came by that.
    fn map(&self) -> Result<(RunStats, u64)> {
        if self.setting.column == FAULTS { self.by_faults() } else { self.together() }
    }

    /// Microseconds for each GiB; and what must hold.
    fn run(&self) -> Result<(f64, RunStats, [Check; 2])> {
        let (stats, mapped) = self.map()?;
        let gib = (self.frames.len() * PAGE_SIZE) as f64 / f64::from(1 << 30);
        Ok((stats.wall_ns as f64 / 1e3 / gib, stats, self.checks(mapped)?))
    }
}

/// Runs the scenario once.
fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let small = Fixture::new(setting, Level::K4)?;
    let (small_us, stats, small_checks) = small.run()?;
    let (large_us, _, large_checks) = Fixture::new(setting, Level::M2)?.run()?;
    let figures = vec![
        Figure::new("a GiB in pages of 4 KiB", small_us, "us"),
        Figure::new("a GiB in pages of 2 MiB", large_us, "us"),
    ];
    Ok(Point {
        operations: small.frames.len(),
        checks: small_checks.into_iter().chain(large_checks).collect(),
        ..Point::of(setting, figures, stats)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_control_memory_that_did_not_come_is_found() {
        for column in [FAULTS, POPULATION] {
            let setting = &setting(column);
            for page in [Level::K4, Level::M2] {
                let fixture = Fixture::new(setting, page).unwrap();
                let (all, less) = (fixture.frames, fixture.frames.len() - Level::M2.pages());
                let part = Fixture { frames: Span::sized(Gfn(0), less), ..fixture };
                let (_, mapped) = part.map().unwrap();
                assert_eq!(failing(&part.checks(mapped).unwrap()), [""; 0]);
                let checks = Fixture { frames: all, ..part }.checks(mapped).unwrap();
                assert_eq!(failing(&checks), ["every frame was mapped once", "every leaf has its frame"]);
            }
        }
    }
}
