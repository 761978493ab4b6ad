//! `-p`: vCPUs bring new memory in, page by page, while the ager ages it, pass after pass.

use super::ager::{Passes, Way, age};
use super::world::{Beside, World, arena};
use super::{AccessTracking, Guard};
use crate::bench::harness::{Series, rounds};
use crate::bench::report::{Check, Row, params};
use parking_lot::Mutex;
use slat::{Access, PAGE_SIZE};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::thread::idle;
use slat_mm::Arena;
use slat_series::PatchSeries;
use std::sync::Arc;
use std::time::Duration;

/// Who ages, and what guards the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entrant {
    guard: Guard,
    way: Option<Way>,
}

/// One sample: what the guest took, and what the ager did.
struct Sample {
    wall_ms: f64,
    passes: Passes,
}

impl AccessTracking {
    /// Every number of vCPUs, every entrant.
    pub(super) fn faulting(&self, runs: u32) -> Result<(Vec<Row>, Vec<Check>), Error> {
        let ours = if self.lru { Way::Generations } else { Way::Tables };
        let page_by_page = |guard| Entrant { guard, way: Some(Way::PageByPage) };
        let entrants = [
            Entrant { guard: Guard::SLAT, way: Some(ours) },
            Entrant { guard: Guard::SLAT, way: None },
            page_by_page(Guard::NO_OPT),
            page_by_page(Guard::OPT),
            Entrant { guard: Guard::OPT, way: None },
            Entrant { guard: Guard::NO_OPT, way: Some(ours) },
        ];
        let (mut rows, mut checks) = (Vec::new(), Vec::new());
        for &vcpus in &self.vcpus {
            say(format_args!("{vcpus} vCPUs: {} rounds of {} entrants", runs, entrants.len()));
            let pages = self.bytes / PAGE_SIZE;
            let arena = arena(pages * u64::from(vcpus), vcpus)?;
            let samples = rounds(runs as usize, &entrants, |entrant| self.sample(&arena, *entrant, vcpus))?;
            rows.extend(self.rows(vcpus, &samples));
            checks.extend(checks_of(vcpus, pages * u64::from(vcpus), &entrants, &samples));
        }
        Ok((rows, checks))
    }

    fn sample(&self, arena: &Arc<Arena>, entrant: Entrant, vcpus: u32) -> Result<Sample, Error> {
        let world = {
            let idle = &mut idle()?;
            World::new(arena, idle, entrant.guard, (vcpus, self.bytes / PAGE_SIZE), self.lru)?
        };
        let passes = Mutex::new(Passes::default());
        let ager = |go_on: &dyn Fn() -> bool| {
            if let Some(way) = entrant.way {
                *passes.lock() = age(&world, &mut idle()?, (way, Duration::from_millis(self.pause)), go_on)?;
            }
            Ok(())
        };
        let beside = entrant.way.map(|_| &ager as &Beside<'_>);
        let wall = world.sweep(Access::Write, |_| true, beside)?;
        let passes = *passes.lock();
        Ok(Sample { wall_ms: wall.as_secs_f64() * 1e3, passes })
    }

    fn rows(&self, vcpus: u32, samples: &[Vec<Sample>]) -> Vec<Row> {
        let [slat, quiet, no_opt, opt, quiet_locked, batches] = samples else { return Vec::new() };
        let wall = |all: &[Sample]| Series::new(all.iter().map(|sample| sample.wall_ms).collect());
        let pass = |all: &[Sample]| Series::new(all.iter().map(|sample| sample.passes.ms()).collect());
        let page = |all: &[Sample]| Series::new(all.iter().map(|sample| sample.passes.ns_a_page()).collect());
        let of = |figure: &str| params! { "vcpus": vcpus, "figure": figure };
        let published = slat_series::mglru_aging::with(vcpus).map(|row| row.pass[0] / row.pass[1]);
        let claimed = |row: Row| {
            if self.lru { row.answering(PatchSeries::MglruAging).claiming(published) } else { row }
        };
        let mut rows = Vec::new();
        for (figure, unit, series) in [
            ("average pass", "ms", &pass as &dyn Fn(&[Sample]) -> Series),
            ("a page, in a pass", "ns", &page),
        ] {
            let params = of(figure);
            rows.push(claimed(Row::compare(
                "page by page: lock (no opt) → lockless (opt)",
                params.clone(),
                unit,
                &series(no_opt),
                &series(opt),
            )));
            rows.push(claimed(Row::compare(
                "page by page, lock (no opt) → slat",
                params.clone(),
                unit,
                &series(no_opt),
                &series(slat),
            )));
            rows.push(Row::compare(
                "page by page, lockless (opt) → slat",
                params.clone(),
                unit,
                &series(opt),
                &series(slat),
            ));
            rows.push(Row::compare(
                "slat's batches under the lock → slat",
                params,
                unit,
                &series(batches),
                &series(slat),
            ));
        }
        let params = of("vCPU wall time");
        for (name, before, after) in [
            ("reader-writer lock: no aging → no opt", quiet_locked, no_opt),
            ("reader-writer lock: no aging → opt", quiet_locked, opt),
            ("slat: no aging → aging", quiet, slat),
            ("no opt → slat, both aging", no_opt, slat),
        ] {
            rows.push(Row::compare(name, params.clone(), "ms", &wall(before), &wall(after)));
        }
        rows
    }
}

fn checks_of(vcpus: u32, pages: u64, entrants: &[Entrant], samples: &[Vec<Sample>]) -> Vec<Check> {
    let agers = entrants.iter().zip(samples).filter(|(entrant, _)| entrant.way.is_some());
    let all = agers.flat_map(|(_, samples)| samples);
    let blind = all.clone().filter(|sample| sample.passes.young + sample.passes.left < pages).count();
    vec![Check {
        name: format!("{vcpus} vCPUs: each page that was touched was told, or its bit is there still"),
        ok: blind == 0,
        detail: format!("{blind} of {} samples say less", all.count()),
    }]
}
