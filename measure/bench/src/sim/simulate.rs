//! The runs of one report: every number of vCPUs in every case under every policy, the sweep, and the series' own figures.

use crate::sim::against;
use crate::sim::against::trial_runs::Trial;
use crate::sim::cost_sweep;
use crate::sim::invalidator_flags::Case;
use crate::sim::named_costs;
use crate::sim::sim_flags::Asked;
use crate::sim::sim_report::{Against, Figure, Line, Row, SimReport};
use crate::sim::work_flags::told;
use crate::threads::bench_report::{Check, SCHEMA, params};
use indicatif::ProgressBar;
use serde_json::{Map, Value};
use slat_cli::bar::bar;
use slat_cli::error::Error;
use slat_machine::costs::Costs;
use slat_sim::parts::point::Point;
use slat_sim::parts::setting::{Column, Setting};
use slat_sim::scenario::Scenario;

/// Everything that the runs of a report have in common.
struct Runs<'r> {
    bench: &'static Scenario,
    asked: &'r Asked,
    policies: Vec<Column>,
    bar: ProgressBar,
    checks: Vec<Check>,
}

/// See the module's header.
pub fn simulate(
    bench: &'static Scenario,
    asked: &Asked,
    cases: &[Case],
    more: Map<String, Value>,
) -> Result<SimReport, Error> {
    let sheet = named_costs::named(&asked.costs)?;
    let policies = asked.policies(bench)?;
    let vcpus = asked.vcpus();
    let swept = if asked.no_sweep { 0 } else { cost_sweep::RUNS };
    let total = (vcpus.len() * cases.len() + swept) * policies.len();
    let bar = bar(Some(total as u64), "{msg} [{bar:30}] {pos}/{len} {eta}");
    let mut params = params! { "costs": asked.costs, "quick": asked.quick, "seed": asked.seed };
    params.extend(told(&asked.work()));
    params.extend(more);
    let mut runs = Runs { bench, asked, policies, bar, checks: Vec::new() };

    // Points at the unchanged costs, to compare with the series.
    let (mut points, mut rows) = (Vec::new(), Vec::new());
    for &vcpus in &vcpus {
        for case in cases {
            let of_case = runs.points(vcpus, case, &sheet.costs)?;
            rows.extend(of_case.iter().map(|point| row(point, case)));
            points.extend(of_case);
        }
    }
    let sweep = match vcpus.last().zip(cases.last()).filter(|_| !asked.no_sweep) {
        Some((&most, case)) => {
            let of_it = |row: &&Row| (row.vcpus, &row.case) == (most, &case.name);
            let base: Vec<_> = rows.iter().filter(of_it).cloned().collect();
            cost_sweep::sweep(&sheet.costs, &base, |costs| {
                Ok(runs.points(most, case, costs)?.iter().map(|point| row(point, case)).collect())
            })?
        }
        None => Vec::new(),
    };
    runs.bar.set_message(format!(
        "{}: against the {} series",
        bench.name,
        slat_series::name(bench.series.id())
    ));
    let trial = Trial { bench, costs: &sheet.costs, seed: asked.seed };
    let mut against_series: Vec<_> =
        (bench.simulated.published)(&points).into_iter().map(Against::from).collect();
    against_series.extend(against::against(&trial, &vcpus).map_err(Error::Machine)?);
    runs.bar.finish_and_clear();
    Ok(SimReport {
        schema: SCHEMA,
        clock: "virtual".into(),
        sim: bench.name.into(),
        series: bench.series.id().into(),
        params,
        costs: sheet.entries().map(|(name, value, _)| (name.into(), value)).collect(),
        costs_from: sheet.entries().map(|(name, _, origin)| (name.into(), origin.name().into())).collect(),
        rows,
        sweep,
        against_series,
        checks: runs.checks,
    })
}

impl Runs<'_> {
    /// Every policy with so many vCPUs, in one case.
    fn points(&mut self, vcpus: u32, case: &Case, costs: &Costs) -> Result<Vec<Point>, Error> {
        let comma = if case.name.is_empty() { "" } else { ", " };
        self.bar.set_message(format!("{}: {vcpus} vCPUs{comma}{}", self.bench.name, case.name));
        let mut points = Vec::with_capacity(self.policies.len());
        for policy in self.policies.clone() {
            let setting = Setting {
                costs,
                vcpus,
                column: policy,
                quick: self.asked.quick,
                seed: self.asked.seed,
                work: case.work.clone(),
            };
            let point = (self.bench.simulated.run)(&setting).map_err(Error::Machine)?;
            for check in &point.checks {
                let detail = format!("{vcpus} vCPUs, {}: {}", policy.name, check.detail);
                Check { name: check.name.to_owned(), ok: check.ok, detail }.add_to(&mut self.checks);
            }
            points.push(point);
            self.bar.inc(1);
        }
        Ok(points)
    }
}

/// A bench's point as a row of the report.
fn row(point: &Point, case: &Case) -> Row {
    let figure = |&slat_sim::parts::point::Figure { name, value, unit }: &slat_sim::parts::point::Figure| {
        Figure { name: name.into(), value, unit: unit.into() }
    };
    let line = |line: &slat_sim::world::ContendedLine| Line {
        name: line.name.clone(),
        site: line.site.clone(),
        transfers: line.transfers,
        waited_ns: line.waited_ns,
    };
    Row {
        vcpus: point.vcpus,
        case: case.name.clone(),
        unfinished: point.unfinished,
        policy: point.column.name.into(),
        figures: point.figures.iter().map(figure).collect(),
        operations: point.operations,
        waiting: point.waiting,
        flushes: point.flushes,
        kicks: point.kicks,
        events: point.stats.events,
        wall_ns: point.stats.wall_ns,
        lines: point.stats.lines.iter().map(line).collect(),
    }
}
