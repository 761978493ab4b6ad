//! How far the simulations can be believed: the costs that they assume, and the ranking of the policies when a cost is wrong.

use crate::report::figure_text::{plain, times, with};
use crate::report::page_model::{
    Block, Mark, Section, Source, Table, cell, dash, figures, marked, number, words,
};
use crate::report::report_data::{Data, Sim, Swept};
use slat_machine::Costs;

/// The section, if anything was simulated.
pub fn section(data: &Data) -> Option<Section> {
    let (_, first) = data.sims().next()?;
    let mut blocks = vec![Block::Text(
        "Simulated figures are of the engine as it ships, compiled a second time on simulated atomics and locks. It runs on hundreds of \
         CPUs in virtual time. Each shared operation costs what the table says, and waits for the CPU that holds the cache line, for the \
         holder of the lock, or for the memory's bandwidth. They show ranking and shape. They do not model caches' sizes, hyperthreads, \
         frequency, unfair locks, other load, and what the host does besides what a bench says."
            .into(),
    )];
    blocks.push(Block::Heading("Does the ranking hang on uncertain costs?".into()));
    blocks.extend(data.sims().filter_map(|(_, sim)| sweep(sim)).map(Block::Table));
    blocks.push(Block::Heading("The costs of operations".into()));
    blocks.push(Block::Table(costs(first)));
    Some(Section {
        id: "simulations".into(),
        title: "How far to believe the simulations".into(),
        short: "Simulations".into(),
        blocks,
    })
}

/// Each uncertain cost, halved and doubled.
fn sweep(sim: &Sim) -> Option<Table> {
    let first = sim.sweep.first()?;
    let vcpus = first.rows.first()?.vcpus;
    let unit = sim.at(vcpus, &first.rows.first()?.policy)?.first()?;
    let mut table = Table::of(
        format!("{}: {} with {vcpus} vCPUs, with one cost changed", sim.sim, unit.name),
        &sim.sweep,
        [(words("cost"), &|swept| cell(&swept.cost)), (number("times"), &|swept| cell(times(swept.factor)))],
    );
    for (nth, row) in first.rows.iter().enumerate() {
        let value = |swept: &Swept| dash(swept.rows.get(nth), |row| with(row.value, &unit.unit));
        table.add(figures(&*row.policy, Source::Simulated), sim.sweep.iter().map(value));
    }
    let holds = |swept: &Swept| {
        if swept.ranking_holds { marked("holds", Mark::Good) } else { marked("changes", Mark::Bad) }
    };
    table.add(words("ranking"), sim.sweep.iter().map(holds));
    Some(table)
}

fn costs(sim: &Sim) -> Table {
    let known = Costs::FIELDS.iter().filter_map(|field| Some((field, *sim.costs.get(field.name)?)));
    let from = |name: &str| sim.costs_from.get(name).map_or("", AsRef::as_ref);
    Table::of(
        "The costs of the simulated machine",
        known,
        [
            (words("cost"), &|(field, _)| cell(format!("`{}`", field.name))),
            (number("value"), &|(_, value)| cell(plain(*value))),
            (words("unit"), &|(field, _)| cell(field.unit)),
            (words("from"), &|(field, _)| {
                let from = from(field.name);
                marked(from, if from == "measured" { Mark::Good } else { Mark::Open })
            }),
            (words("operation"), &|(field, _)| cell(field.about)),
        ],
    )
}
