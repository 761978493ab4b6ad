//! The laps of KVM's test into rows: each of slat's ways against the one before.

use super::exit_name;
use super::logging::{Entrant, Way};
use super::stages::{Iteration, Job, Sample};
use crate::bench::harness::Series;
use crate::bench::report::{Check, Row, params};
use slat::{Level, Splitting};
use slat_series::PatchSeries;
use std::time::Duration;

/// A sample's figure; none where a way has no such step, or a job no such iteration.
type Figure = fn(&Sample) -> Option<Duration>;

const FIGURES: [(&str, Figure); 8] = [
    ("populate", |sample| Some(sample.populate)),
    ("enable", |sample| Some(sample.enable)),
    ("dirty memory, first iteration", |sample| sample.iterations.first().map(|iteration| iteration.dirty)),
    ("dirty memory, later", |sample| later(sample, |iteration| iteration.dirty)),
    ("get (and clear), first iteration", |sample| sample.iterations.first().map(got)),
    ("get (and clear), later", |sample| later(sample, got)),
    ("disable", |sample| Some(sample.disable)),
    ("every page stored to again", |sample| Some(sample.again)),
];

/// Those that only ways with a clear of its own have.
const ALONE: [(&str, Figure); 2] = [
    ("get alone, later", |sample| {
        sample.iterations.first()?.clear.and_then(|_| later(sample, |iteration| iteration.get))
    }),
    ("clear alone, later", |sample| {
        let clear = |iteration: &Iteration| iteration.clear.unwrap_or_default();
        sample.iterations.first()?.clear.and_then(|_| later(sample, clear))
    }),
];

fn got(iteration: &Iteration) -> Duration {
    iteration.get + iteration.clear.unwrap_or_default()
}

/// The mean of all iterations but the first.
fn later(sample: &Sample, figure: fn(&Iteration) -> Duration) -> Option<Duration> {
    let later = sample.iterations.get(1..).filter(|later| !later.is_empty())?;
    Some(later.iter().map(figure).sum::<Duration>() / later.len() as u32)
}

fn series(samples: &[Sample], figure: Figure) -> Option<Series> {
    let us = samples.iter().map(|sample| figure(sample).map(|time| time.as_secs_f64() * 1e6));
    us.collect::<Option<Vec<_>>>().filter(|us| !us.is_empty()).map(Series::new)
}

/// What is said of a page size, where the first entrant is the one before.
pub fn rows(job: &Job, entrants: &[Entrant], samples: &[Vec<Sample>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (entrant, slat) in entrants.iter().zip(samples).skip(1) {
        let split = if entrant.splitting == Splitting::Eager { "eager" } else { "lazy" };
        let params = params! {
            "test": "log", "pages": size_name(job.size), "slat": entrant.way.name(), "split": split,
            "exit": exit_name(job.exit),
        };
        for (name, figure) in FIGURES {
            if let (Some(before), Some(slat)) = (series(&samples[0], figure), series(slat, figure)) {
                rows.push(
                    Row::compare(name, params.clone(), "us", &before, &slat).answering(PatchSeries::TdpMmu),
                );
            }
        }
        for (name, figure) in ALONE {
            rows.extend(series(slat, figure).map(|slat| Row::alone(name, params.clone(), "us", &slat)));
        }
        if let Way::Ring(_) = entrant.way {
            let full = Series::new(slat.iter().map(|sample| sample.rings_full as f64).collect());
            rows.push(Row::alone("stops since a ring was full", params, "count", &full));
        }
    }
    rows
}

/// Bits against what the guest wrote.
pub fn checks(job: &Job, entrants: &[Entrant], samples: &[Vec<Sample>]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (entrant, samples) in entrants.iter().zip(samples) {
        let (mut written, mut lost, mut first, mut later) = (0, 0, 0, 0);
        for sample in samples {
            for (nth, Iteration { verdict, .. }) in sample.iterations.iter().enumerate() {
                (written, lost) = (written + verdict.written, lost + verdict.lost);
                *if nth == 0 { &mut first } else { &mut later } += verdict.spurious;
            }
        }
        let (way, size, exit) = (entrant.way.name(), size_name(job.size), exit_name(job.exit));
        let who = format!("{way}, pages of {size}, exits of {exit}");
        checks.push(Check {
            name: format!("{who}: each page that was written is told"),
            ok: lost == 0 && (written > 0 || job.percent == 0),
            detail: format!("{lost} of {written} are not"),
        });
        let first_too = !entrant.way.first_may_be_spurious(job.size);
        let iterations = if first_too { "iteration" } else { "iteration but the first" };
        checks.push(Check {
            name: format!("{who}: nothing else is told, in each {iterations}"),
            ok: later == 0 && !(first_too && first > 0),
            detail: format!("{first} pages in first iterations, {later} in others"),
        });
    }
    checks
}

fn size_name(size: Level) -> &'static str {
    if size == Level::K4 { "4k" } else { "2m" }
}
