//! The five patch series that slat answers: the figures they report, and what became of them.
//!
//! Each file has one series' own table as constants, and sets ours beside it: measured here, where this machine is large
//! enough, and simulated, where it is not. A [`Verdict`] is one figure of a series' that a reader might quote, and
//! whether it is reproduced. What is not is shown like the rest.

mod change_pte;
mod mglru_aging;
mod numa_protection;
mod scalable_memslots;
mod tdp_mmu;

use super::data::{Bench, Data, Row, Sim};
use super::doc::{
    Block, Card, CardLine, Mark, Plot, Section, Source, Table, cell, figures, marked, number, words,
};
use super::figure::{times, with};
use super::scaling;
use crate::levers::Grid;
use crate::registry;
use slat_series::PatchSeries;

/// What a series' part of the page is made of.
pub struct Answer {
    pub section: Section,
    pub card: Card,
    pub verdicts: Vec<Verdict>,
}

/// One figure of a series', and ours.
pub struct Verdict {
    pub claim: String,
    pub published: String,
    pub ours: String,
    pub from: Source,
    pub mark: Mark,
    pub note: String,
}

/// All five, in order.
pub fn answers(data: &Data) -> Vec<Answer> {
    [
        mglru_aging::answer,
        scalable_memslots::answer,
        numa_protection::answer,
        tdp_mmu::answer,
        change_pte::answer,
    ]
    .map(|answer| answer(data))
    .into()
}

/// What the answers differ in.
struct Parts {
    series: PatchSeries,
    title: &'static str,
    /// What the series is about, and what of it is here.
    about: &'static str,
    card: Vec<CardLine>,
    verdicts: Vec<Verdict>,
    /// The series' table beside ours.
    tables: Vec<Block>,
    plots: Vec<Plot>,
}

fn assemble(data: &Data, parts: Parts) -> Answer {
    let mut verdicts = parts.verdicts;
    // Those that answer it.
    let names: Vec<&str> = registry::all()
        .iter()
        .filter_map(|row| Some(row.about.name).filter(|_| row.about.series == parts.series))
        .collect();
    let sims: Vec<(&str, &Sim)> = names.iter().filter_map(|name| data.sim(name)).collect();
    verdicts.extend(sims.iter().flat_map(|(_, sim)| against(sim)));
    let mut blocks = vec![Block::Text(parts.about.to_owned())];
    blocks.extend(levers(data, parts.series));
    let plots: Vec<Plot> = sims.iter().flat_map(|(_, sim)| scaling::plots(sim)).chain(parts.plots).collect();
    if !plots.is_empty() {
        blocks.push(Block::Plots(plots));
    }
    if !verdicts.is_empty() {
        blocks.push(Block::Table(reproduced(&verdicts)));
    }
    blocks.extend(parts.tables);
    for (command, sim) in &sims {
        blocks.extend(scaling::tables(command, sim));
    }
    for (command, bench) in names.iter().flat_map(|name| data.benches(name)) {
        blocks.push(Block::Fold(
            format!("Every row of `slat {command}`"),
            vec![Block::Table(every_row(bench))],
        ));
    }
    let name = parts.series.name();
    let title = format!("The {name} series: {}", parts.title);
    let id = format!("series-{}", parts.series.id());
    Answer {
        card: Card { title: format!("{name}: {}", parts.title), to: id.clone(), lines: parts.card },
        section: Section { id, title, short: name.to_owned(), blocks },
        verdicts,
    }
}

/// What brings what, in the benches that answer a series; of each bench the run that has the most of the figures.
fn levers(data: &Data, series: PatchSeries) -> Vec<Block> {
    let rows = registry::all().iter().filter(|row| row.about.series == series);
    let grids = rows.flat_map(|row| row.about.levers.iter().map(|grid| (row.about.name, grid)));
    let blocks = |(bench, grid): (&str, &Grid)| {
        let filled = data.benches(bench).map(|(_, bench)| grid.fill(&bench.rows));
        let filled = filled.max_by_key(|filled| filled.iter().flatten().flatten().count())?;
        let mut columns = vec![words("")];
        columns.extend(grid.columns.iter().map(|(name, _)| figures(*name, Source::Here)));
        let mut table = Table::new(format!("What brings what. {}", grid.what), columns);
        for ((name, _, unit), figures) in grid.rows.iter().zip(filled) {
            if figures.iter().all(Option::is_none) {
                continue;
            }
            let cells = figures.iter().enumerate().map(|(at, figure)| {
                let Some(figure) = figure else { return cell("–") };
                let factor = figure.factor.filter(|_| at > 0);
                let factor = factor.map_or(String::new(), |factor| format!(" ({})", times(factor)));
                cell(with(figure.median, unit) + &factor)
            });
            table.rows.push(std::iter::once(cell(*name)).chain(cells).collect());
        }
        (!table.rows.is_empty()).then(|| [Block::Table(table), Block::Text(grid.says.replace('\n', " "))])
    };
    grids.filter_map(blocks).flatten().collect()
}

/// What a simulation says of a series' figures.
fn against(sim: &Sim) -> impl Iterator<Item = Verdict> {
    sim.against_series.iter().map(|one| Verdict {
        claim: one.what.clone(),
        published: with(one.published, &one.unit),
        ours: with(one.simulated, &one.unit),
        from: Source::Simulated,
        mark: match (one.fitted, one.reproduced) {
            (true, _) => Mark::Open,
            (false, true) => Mark::Good,
            (false, false) => Mark::Bad,
        },
        note: if one.fitted { format!("fitted: proves nothing. {}", one.detail) } else { one.detail.clone() },
    })
}

fn reproduced(verdicts: &[Verdict]) -> Table {
    let columns = vec![
        words("claim"),
        figures("", Source::Series),
        number("ours"),
        words("where"),
        words("verdict"),
        words("note"),
    ];
    let mut table = Table::new("What is reproduced, and what is not", columns);
    for one in verdicts {
        let verdict = match one.mark {
            Mark::Good => "reproduced",
            Mark::Bad => "not reproduced",
            _ => "no verdict",
        };
        table.rows.push(vec![
            cell(&one.claim),
            cell(&one.published),
            marked(&one.ours, Mark::Strong),
            cell(one.from.name().replace(' ', "\u{a0}")),
            marked(verdict, one.mark),
            cell(&one.note),
        ]);
    }
    table
}

/// The share of a series' ratio from which on ours is taken for as large: two machines are never alike.
const AS_LARGE: f64 = 0.9;

/// Whether a measured ratio is as large as the series'.
fn as_large(ratio: f64, published: f64) -> Mark {
    if ratio >= published * AS_LARGE { Mark::Good } else { Mark::Bad }
}

/// A figure of a card.
fn line(from: Source, figure: impl Into<String>, about: impl Into<String>) -> CardLine {
    CardLine { from, figure: figure.into(), about: about.into() }
}

/// Everything that a bench has told.
fn every_row(bench: &Bench) -> Table {
    let settings: Vec<String> =
        bench.params.iter().map(|(key, value)| format!("{key} {}", super::data::text(Some(value)))).collect();
    let columns = vec![
        words("baseline, or what is done"),
        words("settings"),
        figures("baseline", Source::Here),
        figures("slat", Source::Here),
        figures("baseline / slat", Source::Here),
        figures("the same ratio", Source::Series),
    ];
    let mut table = Table::new(settings.join(", "), columns);
    table.rows = bench
        .rows
        .iter()
        .map(|row| {
            vec![
                cell(&row.name),
                cell(
                    row.params
                        .iter()
                        .map(|(key, value)| format!("{key}: {}", super::data::text(Some(value))))
                        .collect::<Vec<_>>()
                        .join(", "),
                ),
                cell(row.baseline.map_or("–".into(), |value| with(value, &row.unit))),
                marked(with(row.slat, &row.unit), Mark::Strong),
                cell(row.ratio.map_or("–".into(), times)),
                cell(row.series_ratio.map_or("–".into(), times)),
            ]
        })
        .collect();
    table
}

/// A row by name and parameters.
fn find<'d>(data: &'d Data, bench: &'d str, name: &str, params: &[(&str, &str)]) -> Option<&'d Row> {
    data.rows(bench).find(|row| row.is(name, params))
}

/// A figure, or a dash.
fn or_dash(value: Option<f64>, unit: &str) -> String {
    value.map_or("–".into(), |value| with(value, unit))
}

/// What a simulation says at its largest size, for a card: its slowest policy against its quickest.
fn headline(data: &Data, sim: &str) -> Option<CardLine> {
    let (_, sim) = data.sim(sim)?;
    let vcpus = sim.vcpus().last().copied()?;
    let values = || {
        sim.rows.iter().filter(|row| row.vcpus == vcpus).filter_map(|row| Some((row.first()?, &row.policy)))
    };
    let (slowest, before) = values().max_by(|a, b| a.0.value.total_cmp(&b.0.value))?;
    let (quickest, after) = values().min_by(|a, b| a.0.value.total_cmp(&b.0.value))?;
    let about = format!("{}: {before} against {after}, {vcpus} vCPUs", quickest.name);
    let figure = if quickest.value > 0.0 {
        times(slowest.value / quickest.value)
    } else {
        with(slowest.value, &slowest.unit)
    };
    Some(line(Source::Simulated, figure, about))
}
