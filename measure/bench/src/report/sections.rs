//! A section of the page for each series: its text, claims, sentences, published figures, and the contribution of each idea.

use crate::lever_tables;
use crate::levers::Grid;
use crate::report::claims::{Claim, claims, counterpart};
use crate::report::facts::{Fact, measured};
use crate::report::published::{TEXTS, Text, published};
use crate::report::report_data::Data;
use crate::report::sentences::{Sentence, sentences};
use crate::scenarios::ALL;
use serde::Serialize;

/// See the module's header.
#[derive(Debug, Serialize)]
pub struct Section {
    pub id: &'static str,
    pub name: &'static str,
    pub title: &'static str,
    pub about: &'static str,
    /// The names of before and after.
    pub sides: [&'static str; 2],
    /// The benches that answer the series.
    pub benches: Vec<&'static str>,
    pub sentences: Vec<Sentence>,
    pub claims: Vec<Claim>,
    pub published: Vec<Beside>,
    pub ideas: Vec<Ideas>,
}

/// A published figure, and ours beside it.
#[derive(Debug, Serialize)]
pub struct Beside {
    #[serde(flatten)]
    pub fact: Fact,
    pub here: Option<Fact>,
}

/// A filled [`Grid`].
#[derive(Debug, Serialize)]
pub struct Ideas {
    pub what: &'static str,
    pub says: String,
    pub columns: Vec<&'static str>,
    /// Name, unit, and a figure for each column.
    pub rows: Vec<(&'static str, &'static str, Vec<Option<lever_tables::Figure>>)>,
    /// Where an idea does not win, in sentences.
    pub no_gain: Vec<String>,
}

/// All sections.
pub fn sections(data: &Data) -> Vec<Section> {
    let measured = measured(data);
    TEXTS.iter().map(|text| section(data, text, &measured)).collect()
}

fn section(data: &Data, text: &Text, measured: &[Fact]) -> Section {
    let answering = ALL.iter().filter(|row| row.series == text.series);
    let benches: Vec<&str> = answering.clone().map(|row| row.name).collect();
    let published = published(text.series);
    let sims = || benches.iter().filter_map(|name| data.sim(name));
    let facts: Vec<&Fact> = published.iter().chain(measured).collect();
    let beside = |fact: &Fact| Beside { fact: fact.clone(), here: counterpart(fact, measured).cloned() };
    let grids = answering.flat_map(|row| row.measured.levers.iter().map(|grid| (row.name, grid)));
    Section {
        id: text.series.id(),
        name: text.series.name(),
        title: text.title,
        about: text.about,
        sides: text.sides,
        sentences: sentences(text.series, &facts, sims()),
        claims: claims(text, (&published, measured), sims()),
        published: published.iter().map(beside).collect(),
        ideas: grids.filter_map(|(bench, grid)| ideas(data, bench, grid)).collect(),
        benches,
    }
}

/// A grid, of the run with the most of its figures; none if no run has one.
fn ideas(data: &Data, bench: &str, grid: &'static Grid) -> Option<Ideas> {
    let filled = data.benches().filter(|run| run.bench == bench).map(|run| grid.fill(&run.rows));
    let filled = filled.max_by_key(|filled| filled.iter().flatten().flatten().count())?;
    let no_gain = grid.no_gain(&filled).into_iter().map(|loses| loses.replace('*', "")).collect();
    let rows = grid.rows.iter().zip(filled).filter(|(_, figures)| figures.iter().any(Option::is_some));
    let rows: Vec<_> = rows.map(|(&(name, _, unit), figures)| (name, unit, figures)).collect();
    let columns = grid.columns.iter().map(|(name, _)| *name).collect();
    let ideas = Ideas { what: grid.what, says: grid.says.replace('\n', " "), columns, rows, no_gain };
    (!ideas.rows.is_empty()).then_some(ideas)
}
