//! A series' section of the page: the parts that all series have.

use crate::lever_tables;
use crate::levers::Grid;
use crate::report::figure_text::{times, with};
use crate::report::page_model::{
    Better, Block, Card, CardLine, Plot, Section, Sides, Source, Table, cell, dash, figures, strong, words,
};
use crate::report::plot::Look;
use crate::report::report_data::{Bench, Data, Row, Sim, text};
use crate::report::scaling_plots;
use crate::report::verdict;
use crate::report::verdict::{Tolerance, Verdict};
use crate::scenarios::ALL;
use crate::threads::bench_report::Settings;
use slat_series::PatchSeries;
use std::iter;

/// The parts of a series' section of the page.
pub struct Answer {
    pub section: Section,
    pub card: Card,
    pub verdicts: Vec<Verdict>,
}

/// The differences between the answers.
pub struct Parts {
    pub series: PatchSeries,
    pub title: &'static str,
    /// The subject of the series, and the part of it that is here.
    pub about: &'static str,
    pub card: Vec<CardLine>,
    pub verdicts: Vec<Verdict>,
    /// The series' table beside ours.
    pub tables: Vec<Block>,
    pub plots: Vec<Plot>,
}

pub fn assemble(data: &Data, parts: Parts) -> Answer {
    let mut verdicts = parts.verdicts;
    // The scenarios that answer it.
    let answering = ALL.iter().filter(|row| row.series == parts.series);
    let names: Vec<&str> = answering.map(|row| row.name).collect();
    let sims: Vec<(&str, &Sim)> = names.iter().filter_map(|name| data.sim(name)).collect();
    verdicts.extend(sims.iter().flat_map(|(_, sim)| verdict::against(sim)));
    let mut blocks = vec![Block::Text(parts.about.to_owned())];
    blocks.extend(levers(data, parts.series));
    let plots: Vec<Plot> =
        sims.iter().flat_map(|(_, sim)| scaling_plots::plots(sim)).chain(parts.plots).collect();
    if !plots.is_empty() {
        blocks.push(Block::Plots(plots));
    }
    if !verdicts.is_empty() {
        blocks.push(Block::Table(verdict::table(&verdicts)));
    }
    blocks.extend(parts.tables);
    for (command, sim) in &sims {
        blocks.extend(scaling_plots::tables(command, sim));
    }
    for (command, bench) in names.iter().flat_map(|name| data.benches(name)) {
        let rows = Block::Table(every_row(bench));
        blocks.push(Block::Fold(format!("Every row of `slat {command}`"), vec![rows]));
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

/// The contribution of each idea, in the benches that answer a series; of each bench, the run with the most figures.
pub fn levers(data: &Data, series: PatchSeries) -> Vec<Block> {
    let rows = ALL.iter().filter(|row| row.series == series);
    let grids = rows.flat_map(|row| row.measured.levers.iter().map(|grid| (row.name, grid)));
    let blocks = |(bench, grid): (&str, &Grid)| {
        let filled = data.benches(bench).map(|(_, bench)| grid.fill(&bench.rows));
        let filled = filled.max_by_key(|filled| filled.iter().flatten().flatten().count())?;
        let no_gain = grid.no_gain(&filled).into_iter().map(|loses| loses.replace('*', ""));
        let says = iter::once(grid.says.replace('\n', " ")).chain(no_gain).map(Block::Text);
        let rows: Vec<_> =
            grid.rows.iter().zip(&filled).filter(|(_, row)| row.iter().any(Option::is_some)).collect();
        let caption = format!("Contribution of each idea. {}", grid.what);
        let mut table = Table::of(caption, &rows, [(words(""), &|((name, ..), _)| cell(*name))]);
        for (at, (name, _)) in grid.columns.iter().enumerate() {
            let cell = |((.., unit), row): &(&(_, _, &str), &Vec<Option<lever_tables::Figure>>)| {
                dash(row[at].as_ref(), |figure| {
                    let factor = figure.factor.map(|factor| format!(" ({}{})", times(factor), figure.sign()));
                    with(figure.median, unit) + &factor.unwrap_or_default()
                })
            };
            table.add(figures(*name, Source::Here), rows.iter().map(cell));
        }
        Some(iter::once(table.unless_empty()?).chain(says.collect::<Vec<_>>()))
    };
    grids.filter_map(blocks).flatten().collect()
}

/// How far two machines may be apart in a ratio that is said to be reproduced.
pub fn within(better: Better) -> Tolerance {
    Tolerance::Factor(1.25, better, "it is another machine, with caches and clocks of its own")
}

/// A figure of a card.
pub fn line(from: Source, figure: impl Into<String>, about: impl Into<String>) -> CardLine {
    CardLine { from, figure: figure.into(), about: about.into() }
}

/// A ratio of a card: of what against what, and where.
pub fn ratio_line(from: Source, value: f64, sides: &Sides, place: &str) -> CardLine {
    let Sides { before, after } = sides;
    let about = format!("{before} against {after}, {place}");
    let loses = from != Source::Series && value < 1.0;
    losing(line(from, times(value), about), loses)
}

/// The line, which says so where slat loses.
pub fn losing(line: CardLine, loses: bool) -> CardLine {
    let about = if loses { line.about + ": slat loses" } else { line.about };
    CardLine { about, ..line }
}

/// Every row of a bench.
pub fn every_row(bench: &Bench) -> Table {
    let settings = |row: &Row| {
        let texts = row.params.iter().map(|(key, value)| format!("{key}: {}", text(Some(value))));
        cell(texts.collect::<Vec<_>>().join(", "))
    };
    Table::of(
        Settings(&bench.params).to_string(),
        &bench.rows,
        [
            (words("baseline, or operation"), &|row| cell(&row.name)),
            (words("settings"), &|row| settings(row)),
            (figures("baseline", Source::Here), &|row| dash(row.baseline, |value| with(value, &row.unit))),
            (figures("slat", Source::Here), &|row| strong(with(row.slat, &row.unit))),
            (figures("baseline / slat", Source::Here), &|row| dash(row.ratio, times)),
            (figures("the same ratio", Source::Series), &|row| dash(row.series_ratio, times)),
        ],
    )
}

/// A row by name and parameters.
pub fn find<'d>(data: &'d Data, bench: &'d str, name: &str, params: &[(&str, &str)]) -> Option<&'d Row> {
    data.rows(bench).find(|row| row.is(name, params))
}

/// slat's figure of a row, and the baseline's.
pub fn instead(row: &Row) -> String {
    format!("{} instead of {}", with(row.slat, &row.unit), with(baseline(row), &row.unit))
}

/// The baseline's figure; no number where slat ran alone.
pub fn baseline(row: &Row) -> f64 {
    row.baseline.unwrap_or(f64::NAN)
}

/// The figures of a simulation at its largest size, for a card: before, and slat.
pub fn headline(data: &Data, sim: &str) -> Option<CardLine> {
    let (_, sim) = data.sim(sim)?;
    let vcpus = sim.vcpus().last().copied()?;
    let of = |look: Look| {
        let row =
            sim.rows.iter().find(|row| row.vcpus == vcpus && scaling_plots::look(&row.policy) == look)?;
        Some((row.policy.as_ref(), row.first()?))
    };
    let ((before, was), (after, is)) = of(Look::Nth(1)).zip(of(Look::Nth(0)))?;
    let figure = format!("{} → {}", with(was.value, &was.unit), with(is.value, &is.unit));
    let about = format!("{}: {before}, {after}, {vcpus} vCPUs", is.name);
    Some(losing(line(Source::Simulated, figure, about), is.value > was.value))
}
