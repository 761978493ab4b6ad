//! Rows of how long acts took beside something long: `crate::parts::concurrent_latency`.

use crate::parts::concurrent_latency::Latencies;
use crate::threads::bench_report::Row;
use crate::threads::samples::Series;
use serde_json::{Map, Value};

/// Which operations of a sample percentiles are of.
pub type Pick<S> = fn(&S) -> &Latencies;

/// A row for each percentile, and one for the longest; none where the operation was over before the onlooker could look.
pub fn latencies<S>(
    name: &str,
    longest: &str,
    params: &Map<String, Value>,
    entrants: [(&[S], Pick<S>); 2],
) -> Vec<Row> {
    let row = |(percentile, quantile)| {
        let of = |(samples, pick): (&[S], Pick<S>)| {
            let seen = samples.iter().map(|sample| &pick(sample).each).filter(|each| !each.is_empty());
            let ns: Vec<f64> = seen.map(|each| each.value_at_quantile(quantile) as f64).collect();
            (!ns.is_empty()).then(|| Series::new(ns))
        };
        let [baseline, slat] = entrants.map(of);
        Some(Row::compare(&format!("{name}: {percentile}"), params.clone(), "ns", &baseline?, &slat?))
    };
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), (longest, 1.0)].into_iter().filter_map(row).collect()
}
