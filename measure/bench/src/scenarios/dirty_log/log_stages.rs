//! One lap: the stages of KVM's test, each timed, and what the log reported compared with what the guest wrote.
//!
//! ```text
//! populate ─▶ enable ─▶ { dirty memory ─▶ get ─▶ clear } for each iteration ─▶ disable ─▶ every page once more
//! ```
//! vCPUs stand still while the log is got and cleared, as in KVM's test. So the truth is known page by page.

use super::logged_vm::{Entrant, Pages, Pass, Verdict, Way, build, memory};
use super::logging_vcpus::{Vcpus, parts};
use super::{DirtyLogPerf, exit_name, timed};
use crate::scenarios::threads_prelude::*;

/// The host's pages, and what an exit from the guest takes.
pub type Setting = (Level, Duration);

/// How long one iteration took, and what its log reported.
#[derive(Clone, Copy, Debug)]
pub struct Iteration {
    dirty: Duration,
    get: Duration,
    /// None where getting has done it, or it is not charged.
    clear: Option<Duration>,
    pub verdict: Verdict,
}

/// The result of one lap.
#[derive(Clone, Debug)]
pub struct Sample {
    populate: Duration,
    enable: Duration,
    /// At least one.
    pub iterations: Vec<Iteration>,
    disable: Duration,
    again: Duration,
    /// Times that a vCPU left the guest because its ring was full; none where it has no ring.
    pub rings_full: Option<u64>,
}

const FIGURES: [Figure<Sample>; 8] = [
    ("populate", "us", |sample| Some(us(sample.populate))),
    ("enable", "us", |sample| Some(us(sample.enable))),
    ("dirty memory, first iteration", "us", |sample| sample.first(|iteration| Some(iteration.dirty))),
    ("dirty memory, later", "us", |sample| sample.later(|iteration| Some(iteration.dirty))),
    ("get (and clear), first iteration", "us", |sample| sample.first(|iteration| Some(iteration.got()))),
    ("get (and clear), later", "us", |sample| sample.later(|iteration| Some(iteration.got()))),
    ("disable", "us", |sample| Some(us(sample.disable))),
    ("every page stored to again", "us", |sample| Some(us(sample.again))),
];

/// Figures of ways whose clear is a step of its own, and of rings.
const ALONE: [Figure<Sample>; 3] = [
    ("get alone, later", "us", |sample| sample.later(|iteration| iteration.clear.and(Some(iteration.get)))),
    ("clear alone, later", "us", |sample| sample.later(|iteration| iteration.clear)),
    ("stops since a ring was full", "count", |sample| Some(sample.rings_full? as f64)),
];

impl Iteration {
    fn got(&self) -> Duration {
        self.get + self.clear.unwrap_or_default()
    }
}

impl Sample {
    /// Of the first iteration, in microseconds.
    fn first(&self, figure: fn(&Iteration) -> Option<Duration>) -> Option<f64> {
        self.iterations.first().and_then(figure).map(us)
    }

    /// The mean of all iterations but the first, in microseconds; none where there is only one.
    fn later(&self, figure: fn(&Iteration) -> Option<Duration>) -> Option<f64> {
        let later = self.iterations.get(1..).filter(|later| !later.is_empty())?;
        let sum = later.iter().map(figure).sum::<Option<Duration>>()?;
        Some(us(sum) / later.len() as f64)
    }
}

impl DirtyLogPerf {
    /// Runs the ways to log in each setting. The first of them is the baseline.
    pub(super) fn log(&self, report: &mut Report, runs: u32) -> Result<()> {
        for setting in self.pages.iter().flat_map(|page| self.exits.iter().map(|&exit| (page.level(), exit)))
        {
            if interrupt::asked() {
                break;
            }
            let laps = Lineup::run(runs, self.entrants(), |&entrant| {
                self.lap(setting, entrant, entrant.builder(setting.0, self.vcpus()))
            })?;
            let mut each = laps.each();
            let before = each.next().map_or(&[][..], |(_, samples)| samples);
            for (entrant, slat) in each {
                let params = params! {
                    "test": "log", "pages": size_name(setting.0), "slat": entrant.name(),
                    "split": if entrant.splitting == Splitting::Eager { "eager" } else { "lazy" },
                    "exit": exit_name(setting.1),
                };
                let rows = Row::compare_each(&FIGURES, &params, [before, slat]);
                report.rows.extend(rows.into_iter().map(|row| row.answering(PatchSeries::TdpMmu)));
                report.rows.extend(Row::alone_each(&ALONE, &params, slat));
            }
            let checks = laps.each().flat_map(|(&entrant, samples)| self.checks(setting, entrant, samples));
            report.checks.extend(checks);
        }
        Ok(())
    }

    /// Each way to log; the first one is the one before.
    fn entrants(&self) -> Vec<Entrant> {
        let manual = self.track.iter().filter(|_| !self.no_manual).map(|&track| Way::Manual(track));
        let auto = self.track.iter().map(|&track| Way::Auto(track));
        let splitting = if self.lazy { Splitting::Lazy } else { Splitting::Eager };
        let ways = std::iter::once(Way::Before).chain(auto).chain(manual).chain(self.ring.map(Way::Ring));
        ways.map(|way| Entrant::new(way, splitting)).collect()
    }

    /// Compares the pages that the log reported with the pages that the guest wrote.
    pub(super) fn checks(&self, (size, exit): Setting, entrant: Entrant, samples: &[Sample]) -> [Check; 2] {
        let (mut written, mut lost, mut first, mut later) = (0, 0, 0, 0);
        for sample in samples {
            for (nth, Iteration { verdict, .. }) in sample.iterations.iter().enumerate() {
                (written, lost) = (written + verdict.written, lost + verdict.lost);
                *if nth == 0 { &mut first } else { &mut later } += verdict.spurious;
            }
        }
        let (way, pages, exit) = (entrant.name(), size_name(size), exit_name(exit));
        let who = format!("{way}, pages of {pages}, exits of {exit}");
        let first_too = !entrant.first_may_be_spurious(size);
        let iterations = if first_too { "iteration" } else { "iteration but the first" };
        [
            Check {
                name: format!("{who}: each page that was written is told"),
                ok: lost == 0 && (written > 0 || self.write_percent == 0),
                detail: format!("{lost} of {written} are not"),
            },
            Check {
                name: format!("{who}: nothing else is told, in each {iterations}"),
                ok: later == 0 && !(first_too && first > 0),
                detail: format!("{first} pages in first iterations, {later} in others"),
            },
        ]
    }

    /// Runs one lap on this VM.
    pub(super) fn lap(
        &self,
        (_, exit): Setting,
        entrant: Entrant,
        builder: Builder<Ept4, Pages>,
    ) -> Result<Sample> {
        let gfns = memory(self.bytes * u64::from(self.vcpus()));
        let slots: Vec<Slot> = (0..).zip(parts(gfns, self.slots)).map(|(id, gfns)| slot(id, gfns)).collect();
        let vm = build(builder, &slots)?;
        let vcpus = &mut Vcpus::new(&vm, entrant, slots, (self.vcpus(), exit))?;
        let populate = vcpus.pass(Pass::of_stores(0))?;
        let (enable, ()) = timed(|| vcpus.enable())?;
        if entrant.way == Way::Before {
            // Its log is slat's, which says now that all is dirty.
            vcpus.clear_all()?;
        }
        let iteration = |number: u32| {
            let pass = Pass { number: number.into(), percent: self.write_percent, step: 1 };
            let dirty = vcpus.pass(pass)?;
            let (get, ()) = timed(|| vcpus.get())?;
            let (clear, ()) = timed(|| vcpus.clear())?;
            let clear = matches!(entrant.way, Way::Manual(_)).then_some(clear);
            Ok(Iteration { dirty, get, clear, verdict: vcpus.compare(pass) })
        };
        let iterations = (1..=self.iterations).map(iteration).collect::<Result<_>>()?;
        let (disable, ()) = timed(|| vcpus.disable())?;
        let again = vcpus.pass(Pass::of_stores(0))?;
        let rings_full = matches!(entrant.way, Way::Ring(_)).then(|| vcpus.rings_full());
        Ok(Sample { populate, enable, iterations, disable, again, rings_full })
    }
}

fn size_name(size: Level) -> &'static str {
    if size == Level::K4 { "4k" } else { "2m" }
}
