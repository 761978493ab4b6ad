//! The scalable memslots series: memslots in trees, of which a change copies what it changes.

use super::super::data::{Data, Row};
use super::super::doc::{Block, Plot, Source, Table, cell, figures, marked, number, words};
use super::super::figure::{ns, tick, times, with};
use super::super::plot::{Axis, Line, Look, Scale, lines};
use super::{Answer, Parts, Verdict, as_large, assemble, find, line};

/// Tests in the order of the seed's tables, by the names of `slat bench memslot-perf`.
const TESTS: [&str; 6] = ["map", "unmap", "unmap-2m", "move-active", "move-inactive", "setup"];

/// Slots in use; before and after of each test, in seconds.
const TABLE: [(u32, [[f64; 2]; 6]); 6] = [
    (
        10,
        [
            [0.0192, 0.0186],
            [0.0313, 0.0310],
            [0.000_348, 0.000_351],
            [0.000_110, 0.000_094_8],
            [0.000_111, 0.000_093_3],
            [0.000_342, 0.000_283],
        ],
    ),
    (
        30,
        [
            [0.0192, 0.0190],
            [0.0325, 0.0310],
            [0.000_373, 0.000_373],
            [0.000_100, 0.000_086_5],
            [0.000_106, 0.000_091_8],
            [0.000_989, 0.000_775],
        ],
    ),
    (
        50,
        [
            [0.0192, 0.0190],
            [0.0339, 0.0311],
            [0.000_399, 0.000_395],
            [0.000_099_9, 0.000_085_4],
            [0.000_099_2, 0.000_082_6],
            [0.001_41, 0.000_990],
        ],
    ),
    (
        100,
        [
            [0.0195, 0.0191],
            [0.0374, 0.0312],
            [0.000_470, 0.000_447],
            [0.000_095_6, 0.000_080_0],
            [0.000_101, 0.000_084_0],
            [0.002_60, 0.001_74],
        ],
    ),
    (
        509,
        [
            [0.0232, 0.0223],
            [0.0724, 0.0315],
            [0.001_55, 0.000_869],
            [0.000_101, 0.000_079_2],
            [0.000_108, 0.000_084_7],
            [0.0135, 0.008_03],
        ],
    ),
    (
        32_764,
        [
            [0.200, 0.0541],
            [3.88, 0.0351],
            [3.88, 0.0348],
            [0.001_42, 0.000_078_6],
            [0.001_48, 0.000_088_0],
            [16.1, 0.59],
        ],
    ),
];

const BENCH: &str = "memslot-perf";

/// The seed's largest map has 8194 slots, since its test can do no more.
fn slots_of(slots: u32, test: &str) -> u32 {
    if slots == 32_764 && test == "map" { 8194 } else { slots }
}

fn here<'d>(data: &'d Data, slots: u32, test: &str) -> Option<&'d Row> {
    find(data, BENCH, test, &[("slots", &slots_of(slots, test).to_string())])
}

pub fn answer(data: &Data) -> Answer {
    let (largest, seeds) = TABLE[5];
    let measured: Vec<(&str, [f64; 2], &Row)> = TESTS
        .into_iter()
        .zip(seeds)
        .filter_map(|(test, seed)| Some((test, seed, here(data, largest, test)?)))
        .collect();
    let verdicts = measured.iter().filter_map(|(test, [before, after], row)| {
        let (ratio, seed) = (row.ratio?, before / after);
        Some(Verdict {
            claim: format!("{test}, {} slots: before against after", slots_of(largest, test)),
            seed: times(seed),
            ours: times(ratio),
            from: Source::Here,
            mark: as_large(ratio, seed),
            note: format!("{} instead of {}", with(row.slat, &row.unit), with(row.baseline?, &row.unit)),
        })
    });
    let verdicts: Vec<Verdict> = verdicts.collect();
    let mut card = vec![line(Source::Seed, times(seeds[1][0] / seeds[1][1]), "quicker unmap, 32k slots")];
    if let Some(ratio) = here(data, largest, "unmap").and_then(|row| row.ratio) {
        card.push(line(Source::Here, times(ratio), "quicker unmap, 32,764 slots"));
    }
    card.extend(super::headline(data, "memslot-perf"));
    assemble(
        data,
        Parts {
            id: "scalable-memslots",
            title: "memslots that scale",
            about: "Memslots map guest frames to host addresses. Kept in one sorted array, every change copies all of them, and a host \
                    address is looked for one by one. The series keeps them in two trees. Here: a copy-on-write tree whose root is \
                    published, against the sorted array on the same engine, in the scenarios of KVM's `memslot_perf_test`.",
            card,
            verdicts,
            tables: vec![Block::Table(table(data))],
            benches: &[BENCH],
            sims: &[BENCH],
            plots: growth(data).into_iter().collect(),
        },
    )
}

/// Before against after, the more slots there are: the seed's points, and ours.
fn growth(data: &Data) -> Option<Plot> {
    const DRAWN: [&str; 3] = ["unmap", "move-active", "setup"];
    let mut all = Vec::new();
    for (nth, test) in DRAWN.into_iter().enumerate() {
        let column = TESTS.iter().position(|one| *one == test)?;
        let seed = TABLE.map(|(slots, tests)| (f64::from(slots), tests[column][0] / tests[column][1]));
        let ours = TABLE
            .iter()
            .filter_map(|(slots, _)| Some((f64::from(*slots), here(data, *slots, test)?.ratio?)))
            .collect();
        all.push(Line { name: test.into(), look: Look::Nth(nth), points: ours });
        all.push(Line { name: format!("the seed: {test}"), look: Look::Rings(nth), points: seed.into() });
    }
    let last =
        all.iter().step_by(2).filter_map(|line| line.points.last()).map(|point| point.1).fold(0.0, f64::max);
    let title = format!(
        "Before against after: the more slots, the more there is to gain, up to {} here",
        times(last)
    );
    let about = "What an iteration took before, divided by what it takes after, against the number of memslots; both axes logarithmic. Lines \
                 are measured here, rings are the seed's."
        .to_owned();
    let x = Axis {
        title: "Memslots".into(),
        scale: Scale::log_between(8.0, 50_000.0),
        tick,
        ticks: TABLE.map(|(slots, _)| f64::from(slots)).to_vec(),
    };
    let values = all.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let y = Axis { title: "Times quicker".into(), scale: Scale::log(values), tick, ticks: Vec::new() };
    let svg = lines(&title, &about, (&x, &y), &all);
    Some(Plot {
        id: "memslots-growth".into(),
        title,
        from: vec![Source::Seed, Source::Here],
        about,
        svg,
        figures: None,
    })
}

fn table(data: &Data) -> Table {
    let columns = vec![
        number("slots"),
        words("test"),
        figures("before", Source::Seed),
        figures("after", Source::Seed),
        figures("ratio", Source::Seed),
        figures("sorted array", Source::Here),
        figures("slat", Source::Here),
        figures("ratio", Source::Here),
    ];
    let caption = "What an iteration takes; ✓: the ratio is at least nine tenths of the seed's; a dash: not measured this time";
    let mut table = Table::new(caption, columns);
    for (slots, tests) in TABLE.into_iter().rev() {
        for (test, [before, after]) in TESTS.into_iter().zip(tests) {
            let row = here(data, slots, test);
            let ratio = row.and_then(|row| row.ratio);
            let mark = ratio.map_or(super::Mark::None, |ratio| as_large(ratio, before / after));
            let unit = |value: f64| with(value, "us");
            table.rows.push(vec![
                cell(slots_of(slots, test).to_string()),
                cell(test),
                cell(ns(before * 1e9)),
                cell(ns(after * 1e9)),
                cell(times(before / after)),
                cell(row.and_then(|row| row.baseline).map_or("–".into(), unit)),
                cell(row.map_or("–".into(), |row| unit(row.slat))),
                marked(ratio.map_or("–".into(), times), mark),
            ]);
        }
    }
    table
}
