//! The change-pte series: KSM changes what a page maps to without a moment in which it maps nothing.

use crate::report::figure_text::{percent, with};
use crate::report::page_model::{Block, Source, Table, cell, dash, figures, sides, strong, words};
use crate::report::report_data::{Data, Row};
use crate::report::series::series_answer::{Answer, Parts, assemble, baseline, find, instead, line, losing};
use crate::report::verdict::{Told, Tolerance, Verdict, told};
use slat_series::PatchSeries;
use slat_series::change_pte::{SYSTEM_TIME, TABLE};

const BENCH: &str = "ksm-perf";

pub fn answer(data: &Data) -> Answer {
    let less = |before: f64, after: f64| 1.0 - after / before;
    let published = less(SYSTEM_TIME[0], SYSTEM_TIME[1]);
    let time = |of: &str| sides(format!("time in {of}, reasons ignored"), "heeded");
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
            claim: "less time when the reasons for changes are heeded".into(),
            published: Told { sides: Some(time("kernel")), ..told(published, "share") },
            ours: Told { sides: Some(time("MMU code")), ..told(ours, "share") },
            from: Source::Here,
            tolerance: Tolerance::None("none: the series' is of all of the kernel's time"),
            note: instead(row),
        });
    }
    if let Some(row) = windows {
        verdicts.push(Verdict {
            claim: "no guest faults for want of a translation while a page is replaced".into(),
            published: told(0.0, "faults"),
            ours: told(row.slat, "faults"),
            from: Source::Here,
            tolerance: Tolerance::Same("a page that is replaced is never missing"),
            note: format!("where the reasons are not heeded: {}", with(baseline(row), "faults")),
        });
    }
    let mut card = vec![line(Source::Series, percent(published), "less kernel time while KSM merges")];
    card.extend(ours.map(|ours| {
        losing(line(Source::Here, percent(ours), "less time in MMU code, three VMs"), ours < 0.0)
    }));
    card.extend(super::series_answer::headline(data, "ksm-perf"));
    let mut tables = vec![Block::Table(published_table())];
    tables.extend(table(data));
    assemble(
        data,
        Parts {
            series: PatchSeries::ChangePte,
            title: "a page is replaced, never missing",
            about: "A merge tells KVM of a change of a page, and KVM unmapped it; a guest that touches the page meanwhile faults. The \
                    series keeps it mapped where that is safe: read-only to another frame with the same contents, and the like. \
                    Here: the same KSM under the same engine, with the reasons for changes heeded and not.",
            card,
            verdicts,
            tables,
            plots: Vec::new(),
        },
    )
}

fn published_table() -> Table {
    let text = |unit: &str, [mean, deviation]: [f64; 2]| {
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        cell(format!("{mean:.1} ± {deviation:.1}{unit}"))
    };
    Table::of(
        "The series' test, a guest that builds a kernel beside KSM",
        TABLE,
        [
            (words("ksm02"), &|(name, ..)| cell(*name)),
            (figures("before, mean ± deviation", Source::Series), &|(_, unit, [before, _])| {
                text(unit, *before)
            }),
            (figures("after", Source::Series), &|(_, unit, [_, after])| text(unit, *after)),
            (figures("less", Source::Series), &|(.., [before, after])| {
                cell(percent(1.0 - after[0] / before[0]))
            }),
        ],
    )
}

fn table(data: &Data) -> Option<Block> {
    // The others are in the tables of what brings what.
    let first = |row: &&Row| {
        row.param("pages") != "2 MiB" && row.param("guest") != "resting" && row.param("reason").is_empty()
    };
    let less = |row: &Row| Some(1.0 - row.slat / row.baseline.filter(|before| *before > 0.0)?);
    let table = Table::of(
        "Ours",
        data.rows(BENCH).filter(first),
        [
            (words("KSM under running guests"), &|row| cell(row.param("figure"))),
            (words("of all rounds"), &|row| cell(&row.name)),
            (figures("reasons not heeded", Source::Here), &|row| {
                dash(row.baseline, |value| with(value, &row.unit))
            }),
            (figures("heeded: slat", Source::Here), &|row| strong(with(row.slat, &row.unit))),
            (figures("less", Source::Here), &|row| dash(less(row), percent)),
        ],
    );
    table.unless_empty()
}
