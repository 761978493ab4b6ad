//! The MGLRU aging series: the multi-gen LRU asks secondary MMUs which pages were used, without the MMU lock.

use crate::report::figure_text::{ns, of_time, tick, times, with};
use crate::report::page_model::{
    Better, Block, Cell, Mark, Plot, Source, Table, cell, dash, figures, number, sides, strong, words,
};
use crate::report::plot::{Axis, Line, Look, Scale, lines, values};
use crate::report::replay_plots;
use crate::report::report_data::{Data, Row, Sim};
use crate::report::scaling_plots;
use crate::report::series::series_answer::{
    Answer, Parts, assemble, find, instead, line, losing, ratio_line, within,
};
use crate::report::verdict::{Verdict, ratio};
use slat_series::PatchSeries;
use slat_series::mglru_aging::{Row as Published, TABLE};

const BENCH: &str = "access-tracking-perf";
const PASS: &str = "page by page, lock (no opt) → slat";
/// The lever of the series alone: the lock.
const LOCK: &str = "page by page: lock (no opt) → lockless (opt)";
const UNLOCKED: &str = "reader-writer lock: no aging → opt";

/// The row with the most vCPUs that the series has, too, and the series' own.
fn last<'d>(data: &'d Data, name: &str, figure: &str) -> Option<(&'d Row, u32, &'static Published)> {
    let rows = data.rows(BENCH).filter(|row| row.is(name, &[("figure", figure)]));
    let both = rows.filter_map(|row| {
        let vcpus = row.param("vcpus").parse().ok()?;
        Some((row, vcpus, slat_series::mglru_aging::with(vcpus)?))
    });
    both.last()
}

pub fn answer(data: &Data) -> Answer {
    let sim = data.sim(BENCH).map(|(_, sim)| sim);
    let lock = sides("lock held", "no lock held");
    let mut verdicts = Vec::new();
    let mut card = vec![ratio_line(
        Source::Series,
        TABLE[7].pass[0] / TABLE[7].pass[1],
        &lock,
        "page by page, 112 vCPUs",
    )];
    if let Some((row, vcpus, series)) = last(data, LOCK, "average pass")
        && let Some(found) = row.ratio
    {
        verdicts.push(Verdict {
            claim: format!("an aging pass, page by page, beside {vcpus} vCPUs that fault"),
            published: ratio(series.pass[0] / series.pass[1], &lock),
            ours: ratio(found, &lock),
            from: Source::Here,
            tolerance: within(Better::More),
            note: instead(row),
        });
        let place = format!("page by page, {vcpus} vCPUs on {} CPUs", data.machine.cores);
        card.push(ratio_line(Source::Here, found, &lock, &place));
    }
    if let Some((row, vcpus, series)) = last(data, UNLOCKED, "vCPU wall time")
        && let Some(found) = row.ratio
    {
        let aging = sides("with aging, no lock held", "without aging");
        verdicts.push(Verdict {
            claim: format!("time of {vcpus} vCPUs to fault their memory in"),
            published: ratio(series.wall[2] / series.wall[0], &aging),
            ours: ratio(1.0 / found, &aging),
            from: Source::Here,
            tolerance: within(Better::Less),
            note: "under the reader-writer lock of the series".into(),
        });
    }
    if let Some((row, vcpus, _)) = last(data, PASS, "average pass")
        && let Some(before) = row.baseline
    {
        let figure = format!("{} → {}", with(before, &row.unit), with(row.slat, &row.unit));
        let about = format!("a pass page by page, lock held, and slat's by tables, {vcpus} vCPUs");
        card.push(losing(line(Source::Here, figure, about), row.slat > before));
    }
    if let Some(found) = sim.and_then(|sim| simulated(sim, 112, "pass")) {
        card.push(ratio_line(Source::Simulated, found, &lock, "page by page, 112 vCPUs"));
    }
    let mut tables = vec![
        Block::Table(table(
            "How long an aging pass takes while vCPUs fault memory in",
            (data, PASS, "average pass"),
            (sim, "pass"),
            |row| row.pass,
        )),
        Block::Table(table(
            "How long the vCPUs take for all of their memory while it is aged",
            (data, "no opt → slat, both aging", "vCPU wall time"),
            (sim, "wall"),
            |row| [row.wall[1], row.wall[2]],
        )),
    ];
    tables.extend(reclaimed(data));
    assemble(
        data,
        Parts {
            series: PatchSeries::MglruAging,
            title: "aging that asks the guests, and takes no lock",
            about: "A host that ages by its own Accessed bits does not see what guests use. The series lets the multi-gen LRU ask KVM \
                    while it ages, without the MMU lock, so that vCPUs that fault meanwhile are not held up. Here: the same, and slat's \
                    own pass, which goes table by table. The series' machine has 112 CPUs; the real rows are of vCPUs that share this one's.",
            card,
            verdicts,
            tables,
            plots: std::iter::once(shorter(data, sim)).chain(data.replay().map(replay_plots::ages)).collect(),
        },
    )
}

/// How much shorter a pass is without the lock: the series' points, and ours.
fn shorter(data: &Data, sim: Option<&Sim>) -> Plot {
    let published: Vec<(f64, f64)> =
        TABLE.iter().map(|row| (row.vcpus.into(), row.pass[0] / row.pass[1])).collect();
    let here = data.rows(BENCH).filter(|row| row.is(LOCK, &[("figure", "average pass")]));
    let here = here.filter_map(|row| Some((row.param("vcpus").parse().ok()?, row.ratio?))).collect();
    let point = |vcpus: u32| Some((f64::from(vcpus), simulated(sim?, vcpus, "pass")?));
    let simulated = sim.map_or(Vec::new(), |sim| sim.vcpus().into_iter().filter_map(point).collect());
    let line = |name: &str, look, points| Line { name: name.into(), look, points };
    let mut all = vec![
        line("the series", Look::Rings(5), published),
        line("simulated: locked / lockless", Look::Nth(2), simulated),
        line("real, here: locked / lockless", Look::Nth(0), here),
    ];
    all.retain(|line| !line.points.is_empty());
    let title = "An aging pass, page by page: lock held against no lock held".to_owned();
    let about = "The length of an aging pass under the MMU lock, divided by its length without, against the number of vCPUs that fault meanwhile; \
                 both axes logarithmic. The series is on 112 CPUs; what is real here shares the CPUs of this machine. All passes go page by page."
        .to_owned();
    let x = scaling_plots::vcpus(&TABLE.map(|row| row.vcpus));
    let y = Axis::new("Times shorter", Scale::log(values(&all)), tick);
    let from: &[Source] = match sim {
        Some(_) => &[Source::Series, Source::Simulated, Source::Here],
        None => &[Source::Series, Source::Here],
    };
    Plot::new("aging-shorter", (title, about), from, &lines((&x, &y), &all), None)
}

/// The figure with this word in its name: `locked` over `lockless`.
fn simulated(sim: &Sim, vcpus: u32, word: &str) -> Option<f64> {
    Some(figure(sim, vcpus, "locked", word)? / figure(sim, vcpus, "lockless", word)?)
}

/// In nanoseconds.
fn figure(sim: &Sim, vcpus: u32, policy: &str, word: &str) -> Option<f64> {
    let figure = sim.at(vcpus, policy)?.figures.iter().find(|figure| figure.name.contains(word))?;
    Some(figure.value * of_time(&figure.unit)?)
}

/// The series' columns before and after, beside ours.
fn table(
    caption: &str,
    (data, slat, name): (&Data, &str, &str),
    (sim, word): (Option<&Sim>, &str),
    columns: fn(&Published) -> [f64; 2],
) -> Table {
    let here =
        |row: &Published| find(data, BENCH, slat, &[("figure", name), ("vcpus", &row.vcpus.to_string())]);
    let simulated =
        |row: &Published, policy| dash(sim.and_then(|sim| figure(sim, row.vcpus, policy, word)), ns);
    let seconds = |time: f64| cell(ns(time * 1e9));
    let ratio = |ratio: Option<f64>| Cell { mark: Mark::Strong, ..dash(ratio, times) };
    Table::of(
        caption,
        &TABLE,
        [
            (number("vCPUs"), &|row| cell(row.vcpus.to_string())),
            (figures("no opt", Source::Series), &|row| seconds(columns(row)[0])),
            (figures("opt", Source::Series), &|row| seconds(columns(row)[1])),
            (figures("ratio", Source::Series), &|row| cell(times(columns(row)[0] / columns(row)[1]))),
            (figures("no opt", Source::Here), &|row| {
                dash(here(row).and_then(|row| Some(with(row.baseline?, &row.unit))), |text| text)
            }),
            (figures("slat", Source::Here), &|row| dash(here(row), |row| with(row.slat, &row.unit))),
            (figures("ratio", Source::Here), &|row| ratio(here(row).and_then(|row| row.ratio))),
            (figures("locked", Source::Simulated), &|row| simulated(row, "locked")),
            (figures("lockless", Source::Simulated), &|row| simulated(row, "lockless")),
            (figures("slat", Source::Simulated), &|row| simulated(row, "slat")),
            (figures("locked / lockless", Source::Simulated), &|row| {
                ratio(sim.and_then(|sim| self::simulated(sim, row.vcpus, word)))
            }),
        ],
    )
}

/// Which pages come back where memory is short.
fn reclaimed(data: &Data) -> Option<Block> {
    let figure = "pages brought in again";
    let other = |row: &Row, name: &str| {
        let (guest, limit) = (row.param("guest"), row.param("limit"));
        let params = [("figure", figure), ("guest", guest.as_str()), ("limit", limit.as_str())];
        let other = find(data, "reclaim", name, &params).and_then(|row| row.baseline);
        dash(other, |value| with(value, "pages"))
    };
    let table = Table::of(
        "Pages that went too early, and had to come back",
        data.rows("reclaim").filter(|row| row.is("exact LRU", &[("figure", figure)])),
        [
            (words("guest, with room for"), &|row| {
                cell(format!("{}, {}", row.param("guest"), row.param("limit")))
            }),
            (figures("aging that asks: slat", Source::Here), &|row| strong(with(row.slat, "pages"))),
            (figures("that does not: before", Source::Here), &|row| other(row, "walk-secondary off: before")),
            (figures("exact LRU", Source::Here), &|row| other(row, "exact LRU")),
            (figures("Belady's optimum", Source::Here), &|row| other(row, "Belady's optimum")),
        ],
    );
    table.unless_empty()
}
