//! `-p`: vCPUs bring new memory in, page by page, while the ager ages it, pass after pass.

use super::aging_flags::{AccessTracking, Guard, NO_OPT, OPT, SLAT, TrackedMemory, Way, agers_cpu, pass};
use super::aging_run::{Ager, Passes, beside, still_young};
use crate::scenarios::demand_paging::first_touch::Fixture;
use crate::scenarios::threads_prelude::*;
use crate::threads::software_vcpu::all_went_well;

/// How pages are aged, and what guards the tables.
type Entrant = (Guard, Option<Way>);

/// One sample: what the guest took, and what the ager did.
struct Sample {
    wall_ms: f64,
    passes: Passes,
    /// Pages that were young still after the last pass.
    left: u64,
    /// The conditions that must hold.
    tally: Vec<Tally>,
}

/// One number of a sample.
type Figure = fn(&Sample) -> f64;

/// Two entrants that are compared: the pair's name, which ones, and whether the series has figures of it.
type Pair = (&'static str, Entrant, Entrant, bool);

impl AccessTracking {
    /// Every number of vCPUs, every entrant.
    pub(super) fn faulting(&self, report: &mut Report, runs: u32) -> Result<()> {
        let ours = if self.lru { Way::Generations } else { Way::Tables };
        let [slat, quiet] = [Some(ours), None].map(|way| (SLAT, way));
        let [no_opt, opt] = [NO_OPT, OPT].map(|guard| (guard, Some(Way::PageByPage)));
        let (quiet_locked, batches) = ((OPT, None), (NO_OPT, Some(ours)));
        let passes: [Pair; 4] = [
            ("page by page: lock (no opt) → lockless (opt)", no_opt, opt, self.lru),
            ("page by page, lock (no opt) → slat", no_opt, slat, self.lru),
            ("page by page, lockless (opt) → slat", opt, slat, false),
            ("slat's batches under the lock → slat", batches, slat, false),
        ];
        let walls: [Pair; 4] = [
            ("reader-writer lock: no aging → no opt", quiet_locked, no_opt, false),
            ("reader-writer lock: no aging → opt", quiet_locked, opt, false),
            ("slat: no aging → aging", quiet, slat, false),
            ("no opt → slat, both aging", no_opt, slat, false),
        ];
        let figures: [(&str, _, Figure, &[Pair]); 3] = [
            ("average pass", "ms", |sample| sample.passes.ms(), &passes),
            ("a page, in a pass", "ns", |sample| sample.passes.ns_a_page(), &passes),
            ("vCPU wall time", "ms", |sample| sample.wall_ms, &walls),
        ];
        let entrants = [slat, quiet, no_opt, opt, quiet_locked, batches];
        for &vcpus in &self.vcpus {
            say(format_args!("{vcpus} vCPUs: {} rounds of {} entrants", runs, entrants.len()));
            let memory = self.memory(vcpus);
            let arena = arena(memory.bytes(), vcpus.into())?;
            let laps = Lineup::run(runs, entrants, |&entrant| self.sample(&arena, entrant, memory))?;
            let published = slat_series::mglru_aging::with(vcpus).map(|row| row.pass[0] / row.pass[1]);
            for (figure, unit, value, pairs) in figures {
                for &(name, before, after, claims) in pairs {
                    let params = params! { "vcpus": vcpus, "figure": figure };
                    let [before, after] = [before, after].map(|who| Series::of(laps.of(who), value));
                    let row = Row::compare(name, params, unit, &before, &after);
                    let of = claims.then_some(PatchSeries::MglruAging);
                    report.rows.push(row.answering(of).claiming(published.filter(|_| claims)));
                }
            }
            let who = format!("{vcpus} vCPUs");
            let agers = laps.each().filter(|((_, way), _)| way.is_some());
            let agers: Vec<&Sample> = agers.flat_map(|(_, samples)| samples).collect();
            report.checks.push(Check::each(
                format!("{who}: each page that was touched was told, or its bit is there still"),
                agers.into_iter(),
                |sample| sample.passes.young + sample.left >= memory.pages().len(),
            ));
            report.checks.extend(Check::tallied(&who, "", laps.all().flat_map(|sample| &sample.tally)));
        }
        Ok(())
    }

    fn sample(&self, arena: &Arc<Arena>, (guard, way): Entrant, memory: GuestMemory) -> Result<Sample> {
        let world = TrackedMemory::new(arena, guard, memory, self.lru)?;
        let in_world = &world;
        let ager = way.map(|way| Ager {
            pass: move |idle: &mut Idle| pass(in_world, idle, way),
            rests: || std::thread::sleep(Duration::from_millis(self.pause)),
            once_more: true,
            cpu: Some(agers_cpu()),
        });
        let right = ("every page is mapped to the host's frame", host_has(&world.space, Level::K4));
        let (mut vcpus, parts) = (world.vcpus(Access::Write)?, memory.parts());
        let fixture = Fixture { vm: &*world.vm, parts: &parts, page: Level::K4, right };
        let lap = beside(&Costs::SERVER, &fixture, &mut vcpus, ager);
        all_went_well(&mut vcpus)?;
        let (lap, passes) = lap.map_err(Error::Machine)?;
        let left = still_young(&world.vm, memory.pages()).map_err(Error::Machine)?;
        Ok(Sample { wall_ms: lap.stats.wall_ns as f64 / 1e6, passes, left, tally: lap.tally })
    }
}
