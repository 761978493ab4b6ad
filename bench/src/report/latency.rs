//! How long faults take, from the usual one to the rarest: each policy's quantiles, measured here.

use super::data::{Bench, Data, text};
use super::doc::{Better, Plot, Source};
use super::figure::ns;
use super::plot::{Axis, Line, Scale};
use super::scaling::{Ranking, look, short_ns};

/// Of how many faults one takes longer; and the figure of `slat bench demand-paging`.
const QUANTILES: [(f64, &str); 5] =
    [(2.0, "p50 of a fault"), (10.0, "p90"), (100.0, "p99"), (1000.0, "p99.9"), (10_000.0, "p99.99")];

/// A plot for each setting of demand paging.
pub fn by_policy(data: &Data) -> Vec<Plot> {
    data.benches("demand-paging").enumerate().filter_map(|(nth, (_, bench))| plot(nth, bench)).collect()
}

fn plot(nth: usize, bench: &Bench) -> Option<Plot> {
    let points = |of: &dyn Fn(&str) -> Option<f64>| -> Vec<(f64, f64)> {
        QUANTILES.iter().filter_map(|(one_of, figure)| Some((*one_of, of(figure)?))).collect()
    };
    let baseline = |name: &'static str| {
        points(&|figure| bench.rows.iter().find(|row| row.is(name, &[("figure", figure)]))?.baseline)
    };
    let all = [
        (
            "none: slat",
            "none",
            points(&|figure| Some(bench.rows.iter().find(|row| row.param("figure") == figure)?.slat)),
        ),
        ("exclusive", "exclusive", baseline("one mutex: before")),
        ("read-write", "read-write", baseline("reader-writer lock: the series")),
    ];
    let lines: Vec<Line> = all
        .into_iter()
        .filter(|(.., points)| !points.is_empty())
        .map(|(name, policy, points)| Line { name: name.into(), look: look(policy), points })
        .collect();
    let (vcpus, served) = (text(bench.params.get("vcpus")), text(bench.params.get("served")));
    let p99 = |line: usize| Some(ns(lines.get(line)?.points.get(2)?.1));
    let (slat, mutex) = (p99(0)?, p99(1)?);
    let values = lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let y = Axis::new("Time of a fault", Scale::log(values), short_ns);
    let x = Axis {
        title: "Quantile of all faults".into(),
        scale: Scale::log_between(1.8, 11_500.0),
        tick: name,
        ticks: QUANTILES.iter().map(|(one_of, _)| *one_of).collect(),
    };
    let ranking =
        Ranking { lines, better: Better::Less, at: ("quantile", name), text: &ns, from: Source::Here };
    let title = format!(
        "Fault latency, {vcpus} vCPUs, pages served {served}: p99 is {slat} with slat, {mutex} with one mutex{}",
        ranking.loses(|at| at.join(", "))
    );
    let about = "The quantiles of fault latency from p50 to p99.99, a line for each MMU lock policy, time on a logarithmic axis.".to_owned();
    let id = format!("fault-latency-{}", nth + 1);
    Some(ranking.plot(id, (title, about), (&x, &y), "time of a fault"))
}

/// What the quantile is called that one of so many is above.
pub fn name(one_of: f64) -> String {
    let percent = 100.0 * (1.0 - 1.0 / one_of);
    format!("p{}", format!("{percent:.4}").trim_end_matches('0').trim_end_matches('.'))
}
