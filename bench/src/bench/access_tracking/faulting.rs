//! `-p`: vCPUs bring new memory in, page by page, while the ager ages it, pass after pass.

use super::super::guest_memory::{GuestMemory, arena};
use super::super::software_vcpu::all_went_well;
use super::ager::{Way, pass};
use super::tracked_memory::{TrackedMemory, agers_cpu};
use super::{AccessTracking, Guard};
use crate::bench::harness::{Series, rounds};
use crate::bench::report::{Check, Row, params};
use slat::{Access, Idle, Level};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_machine::Costs;
use slat_mm::Arena;
use slat_series::PatchSeries;
use slat_threads::benches::Tally;
use slat_threads::benches::access_tracking::{Ager, Passes, beside, still_young};
use slat_threads::benches::demand_paging::Ground;
use slat_threads::benches::host_faults::host_has;
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
    /// Pages that were young still after the last pass.
    left: u64,
    /// What must hold.
    tally: Vec<Tally>,
}

/// One number of a sample.
type Figure = fn(&Sample) -> f64;

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
            let memory = self.memory(vcpus);
            let arena = arena(memory.bytes(), vcpus.into())?;
            let samples = rounds(runs as usize, &entrants, |entrant| self.sample(&arena, *entrant, memory))?;
            rows.extend(self.rows(vcpus, &samples));
            checks.extend(checks_of(vcpus, memory.pages().len(), &entrants, &samples));
        }
        Ok((rows, checks))
    }

    fn sample(&self, arena: &Arc<Arena>, entrant: Entrant, memory: GuestMemory) -> Result<Sample, Error> {
        let world = TrackedMemory::new(arena, entrant.guard, memory, self.lru)?;
        let in_world = &world;
        let ager = entrant.way.map(|way| Ager {
            pass: move |idle: &mut Idle| pass(in_world, idle, way),
            rests: || std::thread::sleep(Duration::from_millis(self.pause)),
            once_more: true,
            cpu: Some(agers_cpu()),
        });
        let right = ("every page is mapped to the host's frame", host_has(&world.space, Level::K4));
        let (mut vcpus, parts) = (world.vcpus(Access::Write)?, memory.parts());
        let ground = Ground { vm: &*world.vm, parts: &parts, page: Level::K4, right };
        let lap = beside(&Costs::SERVER, &ground, &mut vcpus, ager);
        all_went_well(&mut vcpus)?;
        let (lap, passes) = lap.map_err(Error::Machine)?;
        let left = still_young(&world.vm, memory.pages()).map_err(Error::Machine)?;
        Ok(Sample { wall_ms: lap.told.wall_ns as f64 / 1e6, passes, left, tally: lap.tally })
    }

    fn rows(&self, vcpus: u32, samples: &[Vec<Sample>]) -> Vec<Row> {
        let [slat, quiet, no_opt, opt, quiet_locked, batches] = samples else { return Vec::new() };
        let published = slat_series::mglru_aging::with(vcpus).map(|row| row.pass[0] / row.pass[1]);
        // A pair's name, and whether the series has figures of it.
        let passes = [
            ("page by page: lock (no opt) → lockless (opt)", no_opt, opt, self.lru),
            ("page by page, lock (no opt) → slat", no_opt, slat, self.lru),
            ("page by page, lockless (opt) → slat", opt, slat, false),
            ("slat's batches under the lock → slat", batches, slat, false),
        ];
        let walls = [
            ("reader-writer lock: no aging → no opt", quiet_locked, no_opt, false),
            ("reader-writer lock: no aging → opt", quiet_locked, opt, false),
            ("slat: no aging → aging", quiet, slat, false),
            ("no opt → slat, both aging", no_opt, slat, false),
        ];
        let figures: [(&str, _, Figure, _); 3] = [
            ("average pass", "ms", |sample| sample.passes.ms(), passes),
            ("a page, in a pass", "ns", |sample| sample.passes.ns_a_page(), passes),
            ("vCPU wall time", "ms", |sample| sample.wall_ms, walls),
        ];
        let mut rows = Vec::new();
        for (figure, unit, value, pairs) in figures {
            let series = |all: &[Sample]| Series::new(all.iter().map(value).collect());
            for (name, before, after, claims) in pairs {
                let params = params! { "vcpus": vcpus, "figure": figure };
                let row = Row::compare(name, params, unit, &series(before), &series(after));
                let of = claims.then_some(PatchSeries::MglruAging);
                rows.push(row.answering(of).claiming(published.filter(|_| claims)));
            }
        }
        rows
    }
}

fn checks_of(vcpus: u32, pages: u64, entrants: &[Entrant], samples: &[Vec<Sample>]) -> Vec<Check> {
    let agers = entrants.iter().zip(samples).filter(|(entrant, _)| entrant.way.is_some());
    let all = agers.flat_map(|(_, samples)| samples);
    let blind = all.clone().filter(|sample| sample.passes.young + sample.left < pages).count();
    let who = format!("{vcpus} vCPUs");
    let mut checks = vec![Check {
        name: format!("{who}: each page that was touched was told, or its bit is there still"),
        ok: blind == 0,
        detail: format!("{blind} of {} samples say less", all.count()),
    }];
    checks.extend(Check::tallied(&who, "", samples.iter().flatten().flat_map(|sample| &sample.tally)));
    checks
}
