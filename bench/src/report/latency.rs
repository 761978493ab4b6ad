//! How long faults take, from the usual one to the rarest: each policy's quantiles, measured here.

use super::data::{Bench, Data, text};
use super::doc::{Better, Plot, Ranked, Source, Table, cell, figures, number};
use super::figure::ns;
use super::plot::{Axis, Line, Scale, lines};
use super::scaling::{look, short_ns};

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
    let lines_of: Vec<Line> = all
        .into_iter()
        .filter(|(.., points)| !points.is_empty())
        .map(|(name, policy, points)| Line { name: name.into(), look: look(policy), points })
        .collect();
    let (vcpus, served) = (text(bench.params.get("vcpus")), text(bench.params.get("served")));
    let at = |line: usize, point: usize| Some(lines_of.get(line)?.points.get(point)?.1);
    // With slat another policy's time can be less at each quantile.
    let worse = |point: &usize| {
        let of = |line: usize| at(line, *point);
        (1..lines_of.len()).filter_map(of).any(|theirs| of(0).is_some_and(|mine| mine > theirs))
    };
    let lost: Vec<String> =
        (0..QUANTILES.len()).filter(worse).map(|point| name(QUANTILES[point].0)).collect();
    let loses = if lost.is_empty() { String::new() } else { format!("; slat loses at {}", lost.join(", ")) };
    let title = format!(
        "Fault latency, {vcpus} vCPUs, pages served {served}: p99 is {} with slat, {} with one mutex{loses}",
        ns(at(0, 2)?),
        ns(at(1, 2)?)
    );
    let x = Axis {
        title: "Quantile of all faults".into(),
        scale: Scale::log_between(1.8, 11_500.0),
        tick: name,
        ticks: QUANTILES.iter().map(|(one_of, _)| *one_of).collect(),
    };
    let values = lines_of.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let y = Axis::new("Time of a fault", Scale::log(values), short_ns);
    let about = "The quantiles of fault latency from p50 to p99.99, a line for each MMU lock policy, time on a logarithmic axis.".to_owned();
    let columns = std::iter::once(number("quantile"))
        .chain(lines_of.iter().map(|line| figures(&line.name, Source::Here)));
    let mut table = Table::new("time of a fault", columns.collect());
    for (one_of, _) in QUANTILES {
        let of = |line: &Line| {
            line.points
                .iter()
                .find(|point| point.0.total_cmp(&one_of).is_eq())
                .map_or("–".into(), |point| ns(point.1))
        };
        table.rows.push(
            std::iter::once(cell(name(one_of))).chain(lines_of.iter().map(|line| cell(of(line)))).collect(),
        );
    }
    let svg = lines(&title, &about, (&x, &y), &lines_of);
    Some(Plot {
        figures: Some(table),
        ranked: Some(Ranked {
            slat: lines_of[0].name.clone(),
            others: lines_of[1..].iter().map(|line| line.name.clone()).collect(),
            better: Better::Less,
        }),
        ..Plot::new(format!("fault-latency-{}", nth + 1), (title, about), [Source::Here], svg)
    })
}

/// What the quantile is called that one of so many is above.
pub fn name(one_of: f64) -> String {
    let percent = 100.0 * (1.0 - 1.0 / one_of);
    format!("p{}", format!("{percent:.4}").trim_end_matches('0').trim_end_matches('.'))
}
