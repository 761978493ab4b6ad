//! One lap: the stages of KVM's test, each timed, and what the log reported compared with what the guest wrote.
//!
//! ```text
//! populate ─▶ enable ─▶ { dirty memory ─▶ get ─▶ clear } for each iteration ─▶ disable ─▶ every page once more
//! ```
//! vCPUs stand still while the log is got and cleared, as in KVM's test. So the truth is known page by page.

use super::exit_name;
use super::logged_vm::{Pages, build, memory, slot};
use super::logging::{Entrant, Way};
use super::reported::Verdict;
use super::sweep::Pass;
use super::vcpus::{Vcpus, parts};
use crate::bench::harness::{Lineup, us};
use crate::bench::report::{Check, Figure, Report, Row, params};
use slat::table::formats::Ept4;
use slat::{Builder, Gfn, Level, Slot, Span, Splitting};
use slat_cli::error::Error;
use slat_cli::thread::idle;
use slat_series::PatchSeries;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Stages {
    pub vcpus: u32,
    /// A multiple of 2 MiB.
    pub bytes_per_vcpu: u64,
    pub slots: u32,
    pub percent: u32,
    pub iterations: u32,
    /// The host's pages.
    pub size: Level,
    /// What an exit from the guest takes.
    pub exit: Duration,
}

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
    /// Times that a vCPU left the guest because its ring was full.
    pub rings_full: u64,
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

/// Figures of ways whose clear is a step of its own.
const ALONE: [Figure<Sample>; 2] = [
    ("get alone, later", "us", |sample| sample.later(|iteration| iteration.clear.and(Some(iteration.get)))),
    ("clear alone, later", "us", |sample| sample.later(|iteration| iteration.clear)),
];

const RINGS: [Figure<Sample>; 1] =
    [("stops since a ring was full", "count", |sample| Some(sample.rings_full as f64))];

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

impl Stages {
    /// Runs the entrants, and adds their rows and checks to the report. The first entrant is the baseline.
    pub fn measure(&self, report: &mut Report, entrants: Vec<Entrant>, runs: u32) -> Result<(), Error> {
        let laps = Lineup::run(runs, entrants, |&entrant| {
            self.lap(entrant, entrant.builder(self.size, self.vcpus))
        })?;
        let mut each = laps.each();
        let before = each.next().map_or(&[][..], |(_, samples)| samples);
        for (entrant, slat) in each {
            let params = params! {
                "test": "log", "pages": self.size_name(), "slat": entrant.way.name(),
                "split": if entrant.splitting == Splitting::Eager { "eager" } else { "lazy" },
                "exit": exit_name(self.exit),
            };
            let rows = Row::compare_each(&FIGURES, &params, [before, slat]);
            report.rows.extend(rows.into_iter().map(|row| row.answering(PatchSeries::TdpMmu)));
            report.rows.extend(Row::alone_each(&ALONE, &params, slat));
            if let Way::Ring(_) = entrant.way {
                report.rows.extend(Row::alone_each(&RINGS, &params, slat));
            }
        }
        report.checks.extend(laps.each().flat_map(|(&entrant, samples)| self.checks(entrant, samples)));
        Ok(())
    }

    /// Compares the pages that the log reported with the pages that the guest wrote.
    pub fn checks(&self, entrant: Entrant, samples: &[Sample]) -> [Check; 2] {
        let (mut written, mut lost, mut first, mut later) = (0, 0, 0, 0);
        for sample in samples {
            for (nth, Iteration { verdict, .. }) in sample.iterations.iter().enumerate() {
                (written, lost) = (written + verdict.written, lost + verdict.lost);
                *if nth == 0 { &mut first } else { &mut later } += verdict.spurious;
            }
        }
        let (way, size, exit) = (entrant.way.name(), self.size_name(), exit_name(self.exit));
        let who = format!("{way}, pages of {size}, exits of {exit}");
        let first_too = !entrant.way.first_may_be_spurious(self.size);
        let iterations = if first_too { "iteration" } else { "iteration but the first" };
        [
            Check {
                name: format!("{who}: each page that was written is told"),
                ok: lost == 0 && (written > 0 || self.percent == 0),
                detail: format!("{lost} of {written} are not"),
            },
            Check {
                name: format!("{who}: nothing else is told, in each {iterations}"),
                ok: later == 0 && !(first_too && first > 0),
                detail: format!("{first} pages in first iterations, {later} in others"),
            },
        ]
    }

    fn size_name(&self) -> &'static str {
        if self.size == Level::K4 { "4k" } else { "2m" }
    }

    fn pages(&self) -> Span<Gfn> {
        memory(self.bytes_per_vcpu * u64::from(self.vcpus))
    }

    /// Runs one lap on this VM.
    pub fn lap(&self, entrant: Entrant, builder: Builder<Ept4, Pages>) -> Result<Sample, Error> {
        let gfns = self.pages();
        let slots: Vec<Slot> = (0..).zip(parts(gfns, self.slots)).map(|(id, gfns)| slot(id, gfns)).collect();
        let vm = build(builder, &mut idle()?, &slots)?;
        let vcpus = &mut Vcpus::new(&vm, gfns, self.vcpus, self.exit)?;
        let populate = vcpus.pass(Pass::of_stores(0))?;
        let mut bits = vec![0; (gfns.len() / 64) as usize];

        let began = Instant::now();
        entrant.enable(&vm, &mut vcpus.idle, &slots)?;
        let enable = began.elapsed();
        if entrant.way == Way::Before {
            // Its log is slat's, which says now that all is dirty.
            bits.fill(u64::MAX);
            entrant.clear(&vm, &mut vcpus.idle, &slots, &bits)?;
        }

        let iterations = (1..=self.iterations).map(|number| {
            let pass = Pass { number: number.into(), percent: self.percent, step: 1 };
            self.iteration(entrant, &slots, vcpus, (pass, &mut bits))
        });
        let iterations = iterations.collect::<Result<_, _>>()?;

        let began = Instant::now();
        entrant.disable(&vm, &mut vcpus.idle, &slots)?;
        let disable = began.elapsed();
        let again = vcpus.pass(Pass::of_stores(0))?;
        let rings_full = vcpus.rings_full.load(Relaxed);
        Ok(Sample { populate, enable, iterations, disable, again, rings_full })
    }

    fn iteration(
        &self,
        entrant: Entrant,
        slots: &[Slot],
        vcpus: &mut Vcpus<'_>,
        (pass, bits): (Pass, &mut [u64]),
    ) -> Result<Iteration, Error> {
        vcpus.reported.forget();
        bits.fill(0);
        let dirty = vcpus.pass(pass)?;
        let (vm, idle, reported) = (vcpus.vm, &mut vcpus.idle, &vcpus.reported);
        let began = Instant::now();
        entrant.get(vm, idle, slots, bits)?;
        let got = Instant::now();
        entrant.clear(vm, idle, slots, bits)?;
        let cleared = got.elapsed();
        reported.add_all(bits);
        Ok(Iteration {
            dirty,
            get: got - began,
            clear: matches!(entrant.way, Way::Manual(_)).then_some(cleared),
            verdict: reported.compare(self.pages(), pass),
        })
    }
}
