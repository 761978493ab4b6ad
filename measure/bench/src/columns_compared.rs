//! `slat bench` of a scenario without flags of its own: each column against the last one, slat, in interleaved rounds.

use crate::parts::setting::Column;
use crate::scenario::{Asked, Flags, Scenario};
use crate::threads::bench_report::{Check, Report, Row, params};
use crate::threads::harness::Lineup;
use crate::threads::machine_info::Machine;
use crate::threads::samples::Series;
use clap::Args;
use slat_cli::bar::say;
use slat_cli::error::Error;

use crate::parts::point::Point;
use crate::parts::setting::{Setting, Work};

/// The flags of a scenario that has no further ones.
#[derive(Debug, Args)]
pub struct ColumnFlags {
    /// Numbers of vCPUs to measure with, a thread each
    #[arg(short, long, value_name = "N,…", default_value = "1,2", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Vec<u32>,
    /// Guests leave, hosts work and zero pages, each for as long as `slat sim` takes by default; else the engine works alone
    #[arg(long)]
    as_simulated: bool,
}

impl Flags for ColumnFlags {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report, Error> {
        let Self { vcpus, as_simulated } = self;
        let columns = scenario.simulated.columns;
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! { "as_simulated": as_simulated, "runs": asked.runs };
        for &vcpus in vcpus {
            say(format_args!("{vcpus} vCPUs: {} rounds of {} columns", asked.runs, columns.len()));
            let points = Lineup::run(asked.runs, columns.iter().copied(), |&column| {
                let work = if *as_simulated { Work::default() } else { Work::none() };
                (scenario.simulated.run)(&Setting::real(column, vcpus, work)).map_err(Error::Machine)
            })?;
            let rows = rows(vcpus, &points).into_iter();
            report.rows.extend(rows.map(|row| row.answering(scenario.series)));
            for (column, points) in points.each() {
                add_checks(&mut report.checks, *column, vcpus, points);
            }
        }
        Ok(report)
    }
}

/// Each figure of each other column against slat's.
fn rows(vcpus: u32, points: &Lineup<Column, Point>) -> Vec<Row> {
    let all: Vec<_> = points.each().collect();
    let Some(((_, slat), others)) = all.split_last() else { return Vec::new() };
    let series = |points: &[Point], name| {
        Series::known(points, |point| Some(point.figures.iter().find(|figure| figure.name == name)?.value))
    };
    let mut rows = Vec::new();
    for of in &slat[0].figures {
        let Some(after) = series(slat, of.name) else { continue };
        for (column, before) in others {
            let params = params! { "vcpus": vcpus, "figure": of.name };
            let row = |before| Row::compare(column.name, params, of.unit, &before, &after);
            rows.extend(series(before, of.name).map(row));
        }
    }
    rows
}

/// The checks of one column. A check holds if it held in all rounds.
fn add_checks(all: &mut Vec<Check>, column: Column, vcpus: u32, points: &[Point]) {
    for check in points.iter().flat_map(|point| &point.checks) {
        let name = format!("{}, {vcpus} vCPUs: {}", column.name, check.name);
        Check { name, ok: check.ok, detail: check.detail.clone() }.add_to(all);
    }
}

#[cfg(test)]
mod tests {
    use crate::columns_compared::*;

    #[test]
    fn a_shared_bench_compares_each_policy_with_the_last() {
        let bench = crate::scenarios::by_name("pre-fault").unwrap();
        let flags = ColumnFlags { vcpus: vec![2], as_simulated: false };
        let report = flags.report(bench, Asked::ONCE).unwrap();
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
        let bench = crate::scenarios::by_name("pre-fault").unwrap();
        let column = bench.simulated.columns[0];
        let setting = Setting { quick: true, ..Setting::real(column, 1, Work::none()) };
        let mut points = vec![(bench.simulated.run)(&setting).unwrap(); 3];
        let held = |points: &[Point]| {
            let mut checks = Vec::new();
            add_checks(&mut checks, column, 1, points);
            checks.iter().map(|check| check.ok).collect::<Vec<_>>()
        };
        assert_eq!(held(&points), [true; 2]);
        points[1].checks[0].ok = false;
        assert_eq!(held(&points), [false, true]);
    }
}
