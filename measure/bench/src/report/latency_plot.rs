//! How long faults take, from the usual one to the rarest: each policy's quantiles, measured here.

use crate::report::figure_text::{ns, short_ns};
use crate::report::page_model::{Better, Plot, Source};
use crate::report::plot::{Axis, Line, Scale, values};
use crate::report::report_data::{Bench, Data, Row, text};
use crate::report::scaling_plots::{Ranking, look};

/// Of how many faults one takes longer; and the figure of `slat bench demand-paging`.
const QUANTILES: [(f64, &str); 5] =
    [(2.0, "p50 of a fault"), (10.0, "p90"), (100.0, "p99"), (1000.0, "p99.9"), (10_000.0, "p99.99")];

/// A plot for each setting of demand paging.
pub fn by_policy(data: &Data) -> Vec<Plot> {
    data.benches("demand-paging").enumerate().filter_map(|(nth, (_, bench))| plot(nth, bench)).collect()
}

fn plot(nth: usize, bench: &Bench) -> Option<Plot> {
    let line = |name: &str, policy: &str, figure_of: &dyn Fn(&Row, &str) -> Option<f64>| {
        let at = |figure| bench.rows.iter().find_map(|row| figure_of(row, figure));
        let points = QUANTILES.iter().filter_map(|&(one_of, figure)| Some((one_of, at(figure)?))).collect();
        Line { name: name.into(), look: look(policy), points }
    };
    let slat = |row: &Row, figure: &str| Some(row.slat).filter(|_| row.param("figure") == figure);
    let baseline = |name: &'static str| {
        move |row: &Row, figure: &str| row.baseline.filter(|_| row.is(name, &[("figure", figure)]))
    };
    let mut lines = vec![
        line("none: slat", "none", &slat),
        line("exclusive", "exclusive", &baseline("one mutex: before")),
        line("read-write", "read-write", &baseline("reader-writer lock: the series")),
    ];
    lines.retain(|line| !line.points.is_empty());
    let (vcpus, served) = (text(bench.params.get("vcpus")), text(bench.params.get("served")));
    let p99 = |line: usize| Some(ns(lines.get(line)?.points.get(2)?.1));
    let (slat, mutex) = (p99(0)?, p99(1)?);
    let x = Axis {
        title: "Quantile of all faults".into(),
        scale: Scale::log_between(1.8, 11_500.0),
        tick: name,
        ticks: QUANTILES.iter().map(|(one_of, _)| *one_of).collect(),
    };
    let ranking = Ranking {
        id: format!("fault-latency-{}", nth + 1),
        title: format!(
            "Fault latency, {vcpus} vCPUs, pages served {served}: p99 is {slat} with slat, {mutex} with one mutex"
        ),
        about: "The quantiles of fault latency from p50 to p99.99, a line for each MMU lock policy, time on a logarithmic axis.".into(),
        axes: (x, Axis::new("Time of a fault", Scale::log(values(&lines)), short_ns)),
        lines,
        better: Better::Less,
        caption: "time of a fault",
        at: ("quantile", name),
        text: &ns,
        from: Source::Here,
    };
    Some(ranking.plot(str::to_owned))
}

/// The name of the quantile that one of so many exceeds.
pub fn name(one_of: f64) -> String {
    let percent = 100.0 * (1.0 - 1.0 / one_of);
    format!("p{}", format!("{percent:.4}").trim_end_matches('0').trim_end_matches('.'))
}
