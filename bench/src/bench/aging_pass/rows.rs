//! Samples into rows, and what must hold for them.

use super::super::harness::Series;
use super::super::report::{Check, Row, params};
use super::leaf_bits::LeafBits;
use super::{Entrant, Sample};
use serde_json::{Map, Value};
use slat::age::Scan;
use slat_cli::size;
use slat_series::PatchSeries;

fn series(entrants: &[Entrant], samples: &[Vec<Sample>], who: Entrant) -> Option<Series> {
    let at = entrants.iter().position(|&entrant| entrant == who)?;
    Some(Series::new(samples[at].iter().map(|sample| sample.ps).collect()))
}

fn params_of(bits: &LeafBits, baseline: &str) -> Map<String, Value> {
    let pages = if bits.sparse { "one page in each 2M" } else { "every page" };
    params! {
        "memory": size::text(bits.bytes), "mapped": pages, "tables": bits.order.name(), "baseline": baseline,
    }
}

/// The figures of one order of tables, in picoseconds a leaf.
pub fn rows(bits: &LeafBits, entrants: &[Entrant], samples: &[Vec<Sample>]) -> Vec<Row> {
    let of = |who| series(entrants, samples, who);
    let mut rows = Vec::new();
    let (Some(read), Some(idle)) = (of(Entrant::LinearRead), of(Entrant::Idle(Scan::detect()))) else {
        return rows;
    };
    let params = params_of(bits, "reading the same memory, linearly");
    let looks = [
        ("idle, every table looked at", Entrant::Idle(Scan::detect())),
        ("idle, every table, portable scan", Entrant::Idle(Scan::Portable)),
        ("idle, one entry after the other", Entrant::EntryByEntry),
        ("idle, passed over by links", Entrant::PassedOver),
    ];
    for (name, who) in looks {
        rows.extend(of(who).map(|slat| {
            Row::compare(name, params.clone(), "ps a leaf", &read, &slat).answering(PatchSeries::MglruAging)
        }));
    }
    let Some(rmw) = of(Entrant::LockedRmw) else { return rows };
    let params = params_of(bits, "the idle pass, and a locked instruction for each young page");
    for permille in [1000, 100, 10] {
        let density = f64::from(permille) / 1000.0;
        let floor = Series::new(vec![idle.median() + density * rmw.median()]);
        let name = format!("{}% of pages young", density * 100.0);
        rows.extend(
            of(Entrant::Active(permille))
                .map(|slat| Row::compare(&name, params.clone(), "ps a leaf", &floor, &slat)),
        );
    }
    rows
}

/// What was found is what was there.
pub fn checks(bits: &LeafBits, samples: &[Vec<Sample>]) -> Vec<Check> {
    let all = samples.iter().flatten();
    let wrong = all.clone().filter(|sample| !sample.right).count();
    let name = format!("{}, {}: a pass finds what is young", size::text(bits.bytes), bits.order.name());
    vec![Check { name, ok: wrong == 0, detail: format!("{wrong} of {} did not", all.count()) }]
}
