//! How far the simulations can be believed: the costs that they assume, and the ranking of the policies when a cost is wrong.

use super::data::{Data, Sim};
use super::doc::{Block, Mark, Section, Source, Table, cell, figures, marked, number, words};
use super::figure::{plain, times, with};
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
    for (_, sim) in data.sims() {
        blocks.extend(sweep(sim).map(Block::Table));
    }
    blocks.push(Block::Heading("What things are taken to cost".into()));
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
    let mut columns = vec![words("cost"), number("times")];
    columns.extend(first.rows.iter().map(|row| figures(&*row.policy, Source::Simulated)));
    columns.push(words("ranking"));
    let mut table =
        Table::new(format!("{}: {} with {vcpus} vCPUs, with one cost changed", sim.sim, unit.name), columns);
    for swept in &sim.sweep {
        let mut cells = vec![cell(&swept.cost), cell(times(swept.factor))];
        cells.extend(swept.rows.iter().map(|row| cell(with(row.value, &unit.unit))));
        let (ranking, mark) =
            if swept.ranking_holds { ("holds", Mark::Good) } else { ("changes", Mark::Bad) };
        cells.push(marked(ranking, mark));
        table.rows.push(cells);
    }
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
            (words("of what"), &|(field, _)| cell(field.about)),
        ],
    )
}
