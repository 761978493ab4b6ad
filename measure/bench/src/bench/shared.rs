//! Benches that are one program in both worlds (`measure/sim`), here on this machine's threads: each policy against slat's, which
//! is the last one, in interleaved rounds.

use super::harness::{Lineup, Series};
use super::machine::Machine;
use super::report::{Check, Report, Row, params};
use super::{About, Asked, Bench, Program};
use clap::Args;
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_machine::Costs;
use slat_threads::benches::{ALL, Bench as Shared, Point, Policy, Setting, Threads as Runs, Work};

/// All of them.
pub fn programs() -> impl Iterator<Item = Program> {
    ALL.iter().filter_map(|&bench| {
        let about = bench.about();
        let Runs { takes, ci, quick, full } = about.threads?;
        let row = About { takes, ci, quick, full, ..About::of(about.name, about.series) };
        Some(Program::new(row, move |flags| Typed { bench, flags }))
    })
}

#[derive(Debug, Args)]
struct Flags {
    /// Numbers of vCPUs to measure with, a thread each
    #[arg(short, long, value_name = "N,…", default_value = "1,2", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Vec<u32>,
    /// Guests leave, hosts work and zero pages, each for as long as `slat sim` takes by default; else the engine works alone
    #[arg(long)]
    as_simulated: bool,
}

struct Typed {
    bench: &'static dyn Shared,
    flags: Flags,
}

impl Bench for Typed {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let Flags { vcpus, as_simulated } = &self.flags;
        let policies = self.bench.policies();
        let mut report = Report::of(self.bench.name(), Machine::detect());
        report.params = params! { "as_simulated": as_simulated, "runs": asked.runs };
        for &vcpus in vcpus {
            say(format_args!("{vcpus} vCPUs: {} rounds of {} policies", asked.runs, policies.len()));
            let points = Lineup::run(asked.runs, policies.iter().copied(), |&policy| {
                let work = if *as_simulated { Work::default() } else { Work::none() };
                let setting = Setting { costs: &Costs::SERVER, vcpus, policy, quick: false, seed: 1, work };
                self.bench.run(&setting).map_err(Error::Machine)
            })?;
            report.rows.extend(self.rows(vcpus, &points));
            for (policy, points) in points.each() {
                add_checks(&mut report.checks, *policy, vcpus, points);
            }
        }
        Ok(report)
    }
}

impl Typed {
    /// Each figure of each other policy against slat's.
    fn rows(&self, vcpus: u32, points: &Lineup<Policy, Point>) -> Vec<Row> {
        let Some((_, slat)) = points.each().last() else { return Vec::new() };
        let series = |points: &[Point], name| {
            Series::known(points, |point| {
                Some(point.figures.iter().find(|figure| figure.name == name)?.value)
            })
        };
        let mut rows = Vec::new();
        for of in &slat[0].figures {
            let Some(after) = series(slat, of.name) else { continue };
            for (policy, before) in points.each().take(self.bench.policies().len() - 1) {
                let params = params! { "vcpus": vcpus, "figure": of.name };
                let row = |before| Row::compare(policy.name(), params, of.unit, &before, &after);
                rows.extend(series(before, of.name).map(row));
            }
        }
        rows.into_iter().map(|row| row.answering(self.bench.about().series)).collect()
    }
}

/// The checks of one policy. A check holds if it held in all rounds.
fn add_checks(all: &mut Vec<Check>, policy: Policy, vcpus: u32, points: &[Point]) {
    for check in points.iter().flat_map(|point| &point.checks) {
        let name = format!("{}, {vcpus} vCPUs: {}", policy.name(), check.name);
        Check { name, ok: check.ok, detail: check.detail.clone() }.add_to(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_bench_compares_each_policy_with_the_last() {
        let bench = slat_threads::benches::by_name("pre-fault").unwrap();
        let typed = Typed { bench, flags: Flags { vcpus: vec![2], as_simulated: false } };
        let report = typed.report(Asked::ONCE).unwrap();
        let names: Vec<_> = report.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["exclusive", "read-write", "exclusive", "read-write"]);
        assert!(
            report.checks.len() == 6 && report.checks.iter().all(|check| check.ok),
            "{:?}",
            report.checks
        );
    }

    #[test]
    fn a_check_that_fails_once_fails() {
        let bench = slat_threads::benches::by_name("pre-fault").unwrap();
        let policy = bench.policies()[0];
        let setting =
            Setting { costs: &Costs::SERVER, vcpus: 1, policy, quick: true, seed: 1, work: Work::none() };
        let mut points = vec![bench.run(&setting).unwrap(); 3];
        let held = |points: &[Point]| {
            let mut checks = Vec::new();
            add_checks(&mut checks, policy, 1, points);
            checks.iter().map(|check| check.ok).collect::<Vec<_>>()
        };
        assert_eq!(held(&points), [true; 2]);
        points[1].checks[0].ok = false;
        assert_eq!(held(&points), [false, true]);
    }
}
