//! The NUMA protection series: NUMA balancing unmaps the pages that it protects, not whole ranges.

use crate::report::figure_text::{plain, with};
use crate::report::page_model::{Better, Block, Source, Table, cell, dash, figures, sides, strong, words};
use crate::report::replay_plots;
use crate::report::report_data::{Data, Row};
use crate::report::series::series_answer::{Answer, Parts, assemble, baseline, line, losing, within};
use crate::report::verdict::{Tolerance, Verdict, ratio, told};
use slat_series::PatchSeries;
use slat_series::numa_protection::{AVERAGE, BEST, WORST};

const BENCH: &str = "numa-balancing";
const BEFORE: &str = "range: before";
const YIELDING: &str = "range, yielding: KVM";
const LOCKED: &str = "page, locked: KVM with the series";
const PAGE: &str = "page: the series";

fn mean<'d>(data: &'d Data, device: &'d str, of: &'d str) -> impl Iterator<Item = &'d Row> {
    data.rows(BENCH).filter(move |row| row.param("device") == device && row.param("mean of") == of)
}

pub fn answer(data: &Data) -> Answer {
    let [before, after] = AVERAGE.flushes;
    let of = |name: &str| mean(data, "none", "remote flushes").find(|row| row.name == name);
    let flushes = of(BEFORE);
    let pinned = mean(data, "pins all memory", "remote flushes").find(|row| row.name == BEFORE);
    let mut verdicts = Vec::new();
    let yielding = of(YIELDING).zip(of(LOCKED));
    let walk =
        |yields: bool| if yields { "ranges, a walk that yields" } else { "ranges, a walk that does not" };
    if let Some((row, page)) = yielding.or(flushes.zip(of(PAGE)))
        && let Some(page) = page.baseline
    {
        let whole = baseline(row);
        verdicts.push(Verdict {
            claim: "remote flushes, by range and page by page".into(),
            published: ratio(before / after, &sides(walk(true), "page by page")),
            ours: ratio(whole / page, &sides(walk(yielding.is_some()), "page by page")),
            from: Source::Here,
            tolerance: within(Better::More),
            note: format!(
                "{} by range, {} page by page, {} with slat: one for each 16 MiB",
                plain(whole.round()),
                plain(page.round()),
                plain(row.slat.round())
            ),
        });
    }
    if let Some(row) = pinned {
        verdicts.push(Verdict {
            claim: "with an assigned device, whose memory is pinned, there is nothing to flush".into(),
            published: told(0.0, "flushes"),
            ours: told(row.slat, "flushes"),
            from: Source::Here,
            tolerance: Tolerance::Same("a page that is pinned is not protected"),
            note: format!("by ranges it is {}", with(baseline(row), "flushes")),
        });
    }
    let mut card = vec![line(
        Source::Series,
        format!("{} → {}", plain(before), plain(after)),
        "remote flushes of a boot",
    )];
    if let Some(row) = flushes {
        let figure = format!("{} → {}", plain(baseline(row).round()), plain(row.slat.round()));
        let about = "remote flushes of a replay, by range and with slat";
        card.push(losing(line(Source::Here, figure, about), row.ratio.is_some_and(|ratio| ratio < 1.0)));
    }
    card.extend(super::series_answer::headline(data, "numa-balancing"));
    let mut tables = vec![Block::Table(published())];
    tables.extend(ours(data));
    assemble(
        data,
        Parts {
            series: PatchSeries::NumaProtection,
            title: "NUMA balancing without needless flushes",
            about: "To learn which node uses a page, the host makes it inaccessible for a while. KVM unmapped the whole range that was \
                    looked at; the series unmaps the pages that are protected indeed. The series counts ten boots of a guest; here \
                    traces of a boot and of programs are replayed while their vCPUs change nodes, so the counts are not to be compared, their ratios are.",
            card,
            verdicts,
            tables,
            plots: data.replay().map(replay_plots::causes).into_iter().collect(),
        },
    )
}

fn published() -> Table {
    Table::of(
        "The series' counts",
        [AVERAGE, BEST, WORST],
        [
            (words("ten boots"), &|boot| cell(boot.name)),
            (figures("unmap calls, before", Source::Series), &|boot| cell(plain(boot.calls[0]))),
            (figures("after", Source::Series), &|boot| cell(plain(boot.calls[1]))),
            (figures("remote flushes, before", Source::Series), &|boot| cell(plain(boot.flushes[0]))),
            (figures("after", Source::Series), &|boot| cell(plain(boot.flushes[1]))),
        ],
    )
}

/// Every policy beside slat's: as many tables as there are kinds of guests.
fn ours(data: &Data) -> Vec<Block> {
    const COUNTED: [&str; 5] =
        ["remote flushes", "unmap calls", "guest faults", "pages moved to their node", "guest wall time"];
    let guests = [
        ("none", "Ours, a guest with no device"),
        ("pins all memory", "Ours, a guest with an assigned device"),
    ];
    let tables = guests.map(|(device, caption)| {
        let mut names: Vec<&str> = data
            .rows(BENCH)
            .filter(|row| row.param("device") == device)
            .map(|row| row.name.as_str())
            .collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        let counted = COUNTED.iter().filter_map(|name| Some((name, mean(data, device, name).next()?)));
        let counted: Vec<(&&str, &Row)> = counted.collect();
        let mut table = Table::of(
            caption,
            &counted,
            [
                (words("mean of"), &|(name, _)| cell(**name)),
                (figures("slat", Source::Here), &|(_, first)| strong(with(first.slat, &first.unit))),
            ],
        );
        for name in names {
            let before = |(counted, first): &(&&'static str, &Row)| {
                let row = mean(data, device, counted).find(|row| row.name == name);
                dash(row.and_then(|row| row.baseline), |value| with(value, &first.unit))
            };
            table.add(figures(name, Source::Here), counted.iter().map(before));
        }
        table
    });
    tables.into_iter().filter_map(Table::unless_empty).collect()
}
