//! The scalable memslots series: memslots in trees, of which a change copies what it changes.

use crate::report::figure_text::{ns, tick, times, with};
use crate::report::page_model::{
    Better, Block, Mark, Plot, Source, Table, cell, dash, figures, marked, number, sides, words,
};
use crate::report::plot::{Axis, Line, Look, Scale, lines, values};
use crate::report::report_data::{Data, Row};
use crate::report::series::series_answer::{Answer, Parts, assemble, find, instead, ratio_line, within};
use crate::report::verdict::{Verdict, ratio};
use slat_series::PatchSeries;
use slat_series::scalable_memslots::{self, Row as Published, TABLE};

const BENCH: &str = "memslot-perf";
/// The largest number of slots that most tests have.
const MOST: u32 = 32_764;

fn here<'d>(data: &'d Data, slots: u32, test: &str) -> Option<&'d Row> {
    find(data, BENCH, test, &[("slots", &slots.to_string())])
}

pub fn answer(data: &Data) -> Answer {
    let largest = TABLE.iter().filter_map(|(test, rows)| Some((*test, rows.last()?)));
    let measured: Vec<(&str, Published, &Row)> =
        largest.filter_map(|(test, row)| Some((test, *row, here(data, row.0, test)?))).collect();
    let kept = sides("a sorted array", "trees");
    let verdicts = measured.iter().filter_map(|(test, (slots, [before, after]), row)| {
        Some(Verdict {
            claim: format!("{test}, {slots} slots"),
            published: ratio(before / after, &kept),
            ours: ratio(row.ratio?, &kept),
            from: Source::Here,
            tolerance: within(Better::More),
            note: instead(row),
        })
    });
    let verdicts: Vec<Verdict> = verdicts.collect();
    let published = scalable_memslots::ratio("unmap", MOST).unwrap_or(f64::NAN);
    let mut card = vec![ratio_line(Source::Series, published, &kept, "unmap, 32,764 slots")];
    if let Some(found) = here(data, MOST, "unmap").and_then(|row| row.ratio) {
        card.push(ratio_line(Source::Here, found, &kept, "unmap, 32,764 slots"));
    }
    card.extend(super::series_answer::headline(data, "memslot-perf"));
    assemble(
        data,
        Parts {
            series: PatchSeries::ScalableMemslots,
            title: "memslots that scale",
            about: "Memslots map guest frames to host addresses. Kept in one sorted array, every change copies all of them, and a host \
                    address is looked for one by one. The series keeps them in two trees. Here: a copy-on-write tree whose root is \
                    published, against the sorted array on the same engine, in the scenarios of KVM's `memslot_perf_test`.",
            card,
            verdicts,
            tables: vec![Block::Table(table(data))],
            plots: vec![growth(data)],
        },
    )
}

/// Before against after, the more slots there are: the series' points, and ours.
fn growth(data: &Data) -> Plot {
    const DRAWN: [&str; 3] = ["unmap", "move-active", "setup"];
    let mut all = Vec::new();
    for (nth, test) in DRAWN.into_iter().enumerate() {
        let rows = scalable_memslots::rows(test);
        let published =
            rows.iter().map(|&(slots, [before, after])| (f64::from(slots), before / after)).collect();
        let ours = rows
            .iter()
            .filter_map(|&(slots, _)| Some((f64::from(slots), here(data, slots, test)?.ratio?)))
            .collect();
        all.push(Line { name: test.into(), look: Look::Nth(nth), points: ours });
        all.push(Line { name: format!("the series: {test}"), look: Look::Rings(nth), points: published });
    }
    let ours = all.iter().step_by(2).flat_map(|line| line.points.iter().map(|point| point.1));
    let (least, most) = ours.fold((f64::INFINITY, 0.0), |(least, most), one| (one.min(least), one.max(most)));
    let kept = sides("a sorted array", "trees");
    let loses = if least < 1.0 { "; slat loses at the least" } else { "" };
    let title = format!(
        "Memslots in {kept}, of which slat has the latter: from {} to {} here{loses}",
        times(least),
        times(most)
    );
    let about = "Time of an iteration before, divided by its time after, against the number of memslots; both axes logarithmic. Lines \
                 are measured here, rings are the series'."
        .to_owned();
    let x = Axis {
        title: "Memslots".into(),
        scale: Scale::log_between(8.0, 50_000.0),
        tick,
        ticks: scalable_memslots::rows("unmap").iter().map(|(slots, _)| f64::from(*slots)).collect(),
    };
    let y = Axis::new("Times quicker", Scale::log(values(&all)), tick);
    let from = [Source::Series, Source::Here];
    let drawing = lines((&x, &y), &all);
    Plot::new("memslots-growth", (title, about), &from, &drawing, None)
}

fn table(data: &Data) -> Table {
    let tests = (0..TABLE[0].1.len()).rev().flat_map(|nth| TABLE.map(|(test, rows)| (test, rows[nth])));
    let rows = tests.map(|(test, row)| (test, row, here(data, row.0, test)));
    let us = |value: f64| with(value, "us");
    Table::of(
        "Time of an iteration; ✓: the ratio is within a factor of 1.25 of the series', or more; a dash: not measured this time",
        rows,
        [
            (number("slots"), &|(_, (slots, _), _)| cell(slots.to_string())),
            (words("test"), &|(test, ..)| cell(*test)),
            (figures("before", Source::Series), &|(_, (_, [before, _]), _)| cell(ns(before * 1e9))),
            (figures("after", Source::Series), &|(_, (_, [_, after]), _)| cell(ns(after * 1e9))),
            (figures("ratio", Source::Series), &|(_, (_, [before, after]), _)| cell(times(before / after))),
            (figures("sorted array", Source::Here), &|(.., here)| {
                dash(here.and_then(|row| row.baseline), us)
            }),
            (figures("slat", Source::Here), &|(.., here)| dash(*here, |row| us(row.slat))),
            (figures("ratio", Source::Here), &|(_, (_, [before, after]), here)| {
                let Some(ratio) = here.and_then(|row| row.ratio) else { return cell("–") };
                let like = ratio >= before / after / 1.25;
                marked(times(ratio), if like { Mark::Good } else { Mark::Bad })
            }),
        ],
    )
}
