//! The change-pte series: KSM changes what a page maps to without a moment in which it maps nothing.

use super::super::data::Data;
use super::super::doc::{Block, Mark, Source, Table, cell, figures, marked, words};
use super::super::figure::{percent, with};
use super::{Answer, Parts, Verdict, assemble, find, line};

/// `ksm02` of LTP: mean and standard deviation, before and after. Seconds, and pages.
const TABLE: [(&str, [f64; 2], [f64; 2]); 4] = [
    ("real time", [675.460_632, 37.035_435], [672.515_503, 37.340_954]),
    ("user time", [857.771_423, 4.395_942], [855.817_322, 4.051_633]),
    ("system time", [215.929_657, 3.976_172], [200.902_710, 3.894_153]),
    ("pages", [4_773.066_895, 675.352_783], [4899.0, 742.413_452]),
];

const BENCH: &str = "ksm-perf";

pub fn answer(data: &Data) -> Answer {
    let less = |before: f64, after: f64| 1.0 - after / before;
    let seed = less(TABLE[2].1[0], TABLE[2].2[0]);
    let mean = find(data, BENCH, "mean", &[("figure", "time in MMU code")]);
    let ours = mean.and_then(|row| Some(less(row.baseline?, row.slat)));
    let windows = find(
        data,
        BENCH,
        "median, best and worst",
        &[("figure", "faults for want of a translation inside changes of the entry")],
    );
    let mut verdicts = Vec::new();
    if let Some((row, ours)) = mean.zip(ours) {
        verdicts.push(Verdict {
            claim: "less time in the MMU's code when the reasons for changes are heeded".into(),
            seed: percent(seed),
            ours: percent(ours),
            from: Source::Here,
            mark: if ours >= seed * super::AS_LARGE { Mark::Good } else { Mark::Bad },
            note: format!(
                "{} instead of {}; the seed's is of all of the kernel's time",
                with(row.slat, &row.unit),
                with(row.baseline.unwrap_or(f64::NAN), &row.unit)
            ),
        });
    }
    if let Some(row) = windows {
        verdicts.push(Verdict {
            claim: "no guest faults for want of a translation while a page is replaced".into(),
            seed: "0 faults".into(),
            ours: with(row.slat, "faults"),
            from: Source::Here,
            mark: if row.slat == 0.0 { Mark::Good } else { Mark::Bad },
            note: format!(
                "where the reasons are not heeded: {}",
                with(row.baseline.unwrap_or(f64::NAN), "faults")
            ),
        });
    }
    let mut card = vec![line(Source::Seed, percent(seed), "less kernel time while KSM merges")];
    card.extend(ours.map(|ours| line(Source::Here, percent(ours), "less time in MMU code, three VMs")));
    card.extend(super::headline(data, "ksm-perf"));
    let mut tables = vec![Block::Table(seed_table())];
    tables.extend(table(data));
    assemble(
        data,
        Parts {
            id: "change-pte",
            title: "a page is replaced, never missing",
            about: "A merge tells KVM of a change of a page, and KVM unmapped it; a guest that touches the page meanwhile faults. The \
                    series keeps it mapped where that is safe: read-only to another frame with the same contents, and the like. \
                    Here: the same KSM under the same engine, with the reasons for changes heeded and not.",
            card,
            verdicts,
            tables,
            benches: &[BENCH],
            sims: &[BENCH],
            plots: Vec::new(),
        },
    )
}

fn seed_table() -> Table {
    let columns = vec![
        words("ksm02"),
        figures("before, mean ± deviation", Source::Seed),
        figures("after", Source::Seed),
        figures("less", Source::Seed),
    ];
    let mut table = Table::new("The seed's test, a guest that builds a kernel beside KSM", columns);
    for (name, before, after) in TABLE {
        let unit = if name == "pages" { "" } else { " s" };
        let text = |[mean, deviation]: [f64; 2]| format!("{mean:.1} ± {deviation:.1}{unit}");
        table.rows.push(vec![
            cell(name),
            cell(text(before)),
            cell(text(after)),
            cell(percent(1.0 - after[0] / before[0])),
        ]);
    }
    table
}

fn table(data: &Data) -> Option<Block> {
    let columns = vec![
        words("KSM under running guests"),
        words("of all rounds"),
        figures("reasons not heeded", Source::Here),
        figures("heeded: slat", Source::Here),
        figures("less", Source::Here),
    ];
    let mut table = Table::new("Ours", columns);
    for row in data.rows(BENCH) {
        let less = row.baseline.filter(|before| *before > 0.0).map(|before| 1.0 - row.slat / before);
        table.rows.push(vec![
            cell(row.param("figure")),
            cell(&row.name),
            cell(super::or_dash(row.baseline, &row.unit)),
            marked(with(row.slat, &row.unit), Mark::Strong),
            cell(less.map_or("–".into(), percent)),
        ]);
    }
    (!table.rows.is_empty()).then_some(Block::Table(table))
}
