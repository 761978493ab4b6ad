//! One line per sample, for pipes, logs and plain terminals.

use super::figure_text::{bytes, count, percent, time};
use super::rates::Rates;
use crate::sample::{AgesBy, Sample};
use serde::Serialize;
use slat::PAGE_SIZE;

/// Formats samples as lines.
pub struct Lines {
    json: bool,
    before: Sample,
}

/// A sample and the rates since the one before.
#[derive(Serialize)]
struct WithRates<'s> {
    #[serde(flatten)]
    sample: &'s Sample,
    per_s: Rates,
}

impl Lines {
    /// Text or JSON. The rates of the first line are those since the run began.
    pub fn new(json: bool) -> Self {
        Self { json, before: Sample::default() }
    }

    /// The next line, without a newline.
    pub fn line(&mut self, sample: &Sample) -> String {
        let per_s = Rates::between(&self.before, sample);
        self.before.clone_from(sample);
        if self.json {
            // Serializing this cannot fail.
            return serde_json::to_string(&WithRates { sample, per_s }).unwrap_or_default();
        }
        text(sample, &per_s)
    }
}

/// All figures of the screen except the map.
fn text(sample: &Sample, rates: &Rates) -> String {
    let mut parts = vec![
        format!("{:.1} s", sample.at_ms as f64 / 1e3),
        format!("{} accesses/s", count(rates.accesses)),
        format!(
            "{} faults/s: {}",
            count(rates.faults),
            named(&[
                ("map", rates.map),
                ("permission", rates.permission),
                ("spurious", rates.spurious),
                ("mmio", rates.mmio)
            ])
        ),
        format!("{} retries/s", count(rates.retries)),
    ];
    let causes: Vec<_> = rates.flushes_by.iter().map(|of| (of.cause.as_str(), of.flushes)).collect();
    parts.push(format!("{} flushes/s: {}", count(rates.flushes), named(&causes)));
    parts.push(format!("tlb {}", percent(rates.tlb_hit_percent)));
    let mapped = sample.mapped;
    let sizes =
        [("4K", mapped.k4), ("2M", mapped.m2), ("1G", mapped.g1)].map(|(of, leaves)| (of, leaves as f64));
    parts.push(format!("{} mapped: {}", bytes(sample.mapped_bytes), named(&sizes)));
    let overhead = crate::figures::percent(sample.table_bytes, sample.mapped_bytes);
    parts.push(format!("tables {} ({})", bytes(sample.table_bytes), percent(overhead)));
    parts.push(format!("{} pages/s dirty", count(rates.dirty)));
    if sample.ages.by != AgesBy::Unknown {
        let ages: Vec<String> = sample
            .ages
            .of
            .iter()
            .map(|age| {
                let within = age.within_ms.map_or("older".into(), |ms| format!("≤{}", time(ms)));
                format!("{within} {}", bytes(age.pages.saturating_mul(PAGE_SIZE)))
            })
            .collect();
        parts.push(format!("used {}", ages.join(", ")));
    }
    if let Some(swap) = sample.swap {
        let direct = sample.ahead.direct_reclaims;
        parts.push(format!("swap {} out, {} in, {direct} faults made room", swap.out, swap.r#in));
    }
    if sample.ahead.frames > 0 {
        let zeroed = crate::figures::percent(sample.ahead.zeroed, sample.ahead.frames);
        parts.push(format!("{} zeroed ahead", percent(zeroed)));
    }
    if sample.ended {
        parts.push("ended".into());
    }
    parts.join("  ")
}

/// The counts that are not zero: `map 1.2k, mmio 3`.
fn named(of: &[(&str, f64)]) -> String {
    let all: Vec<String> = of
        .iter()
        .filter(|(_, value)| *value > 0.0)
        .map(|(name, value)| format!("{name} {}", count(*value)))
        .collect();
    if all.is_empty() { "-".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Ahead;
    use crate::sample::Swapped;
    use crate::sample::tests::sample;

    #[test]
    fn a_line_has_every_figure() {
        let mut lines = Lines::new(false);
        lines.line(&sample(2));
        let swap = Some(Swapped { out: 5, r#in: 3 });
        let ahead = Ahead { frames: 8, zeroed: 7, direct_reclaims: 1 };
        let line = lines.line(&Sample { ended: true, swap, ahead, ..sample(4) });
        assert_eq!(
            line,
            "2.0 s  2.2M accesses/s  19.8k faults/s: map 3k, permission 240, spurious 60  250 retries/s  \
             1.18k flushes/s: migrate 980, dirty-log 200  tlb 97.30%  193M mapped: 4K 43.3k, 2M 12  \
             tables 464K (0.235%)  12k pages/s dirty  \
             used ≤0.5 s 78.1M, ≤1 s 35.2M, ≤4 s 46.9M, ≤16 s 0B, ≤64 s 7.81M, older 25M  \
             swap 5 out, 3 in, 1 faults made room  87.50% zeroed ahead  ended"
        );
    }

    #[test]
    fn json_has_sums_and_rates() {
        let mut lines = Lines::new(true);
        lines.line(&sample(2));
        let value: serde_json::Value = serde_json::from_str(&lines.line(&sample(4))).unwrap();
        assert_eq!((&value["watch"], &value["accesses"]), (&1.into(), &4_400_000.into()));
        assert_eq!(value["per_s"]["accesses"], 2_200_000.0);
        assert_eq!(value["per_s"]["flushes_by"][0]["cause"], "migrate");
        assert_eq!(value["heat"]["used"].as_str().unwrap().len(), 96);
    }
}
