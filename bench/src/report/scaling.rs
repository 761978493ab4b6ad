//! One simulation on the page: how each policy fares as vCPUs become more.

use super::data::{Sim, SimRow};
use super::doc::{
    Better, Block, Cell, Mark, Plot, Ranked, Source, Table, cell, figures, marked, number, words,
};
use super::figure::{ns, of_time, percent, plain, tick, with};
use super::plot::{Axis, Line, Look, Scale, lines};

/// Figures, beside the one that ranks the policies, that are worth a plot.
const PLOTTED: [&str; 2] = ["average pass", "fault beside it"];

/// Plots.
pub fn plots(sim: &Sim) -> Vec<Plot> {
    let Some(first) = sim.rows.iter().find_map(SimRow::first) else { return Vec::new() };
    let mut plots = vec![figure(sim, &first.name)];
    plots.extend(PLOTTED.iter().filter(|name| **name != first.name).map(|name| figure(sim, name)));
    plots.push(if grows(sim) { efficiency(sim) } else { waiting(sim) });
    plots.into_iter().flatten().collect()
}

/// Tables.
pub fn tables(command: &str, sim: &Sim) -> Vec<Block> {
    let Some(first) = sim.rows.iter().find_map(SimRow::first) else { return Vec::new() };
    vec![
        Block::Heading(format!("Simulated: {}", sim.sim)),
        Block::Table(table(sim, &first.name)),
        Block::Fold(
            format!("Every figure of `slat {command}`"),
            vec![Block::Table(every_figure(sim)), Block::Table(hottest(sim))],
        ),
    ]
}

/// How the line of a policy looks, the same in all plots: first slat as it ships, then how it was before, then as the series
/// describes it.
pub fn look(policy: &str) -> Look {
    Look::Nth(match policy {
        "none" | "slat" | "unhook" | "page-batched" | "heeded" => 0,
        "exclusive" | "locked" | "leaf by leaf, exclusive" | "range" | "ignored" => 1,
        "read-write" | "lockless" | "leaf by leaf" | "page" | "heeded, batched" => 2,
        "no aging" => 4,
        "slat, no aging" => 5,
        _ => 3,
    })
}

/// The axis of vCPUs.
pub fn vcpus(all: &[u32]) -> Axis {
    let [first, last] = [all.first(), all.last()].map(|vcpus| f64::from(*vcpus.unwrap_or(&1)));
    Axis {
        title: "vCPUs".into(),
        // A little room, so that the last marker is whole.
        scale: Scale::log_between(first * 0.9, last * 1.1),
        tick,
        ticks: all.iter().map(|&vcpus| vcpus.into()).collect(),
    }
}

type Value<'v> = &'v dyn Fn(&SimRow) -> Option<f64>;

fn policies(sim: &Sim, value: Value<'_>) -> Vec<Line> {
    let line = |policy: &str| {
        let rows = sim.vcpus().into_iter().filter_map(|vcpus| sim.at(vcpus, policy));
        let points: Vec<(f64, f64)> = rows.filter_map(|row| Some((row.vcpus.into(), value(row)?))).collect();
        Line { name: policy.to_owned(), look: look(policy), points }
    };
    sim.policies().into_iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

fn values(lines: &[Line]) -> impl Iterator<Item = f64> + '_ {
    lines.iter().flat_map(|line| line.points.iter().map(|point| point.1))
}

/// The policy with the largest last value, and the one with the least.
fn extremes(lines: &[Line]) -> Option<[(&str, f64); 2]> {
    let last = || lines.iter().filter_map(|line| Some((line.name.as_str(), line.points.last()?.1)));
    let most = last().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let least = last().min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some([most, least])
}

/// slat among the policies, if it is one; what does not do the work that is compared is none to be better than.
fn ranked(lines: &[Line], better: Better) -> Option<Ranked> {
    let slat = lines.iter().find(|line| line.look == Look::Nth(0))?;
    let others = lines.iter().filter(|line| line.name != slat.name && !line.name.contains("no aging"));
    let others = others.map(|line| line.name.clone()).collect();
    Some(Ranked { slat: slat.name.clone(), others, better })
}

/// With how many vCPUs another policy is better than slat, as the end of a title.
fn loses(ranked: Option<&Ranked>, lines: &[Line]) -> String {
    let Some(Ranked { slat, others, better }) = ranked else { return String::new() };
    let of =
        |name: &String| lines.iter().find(|line| line.name == *name).map_or(&[][..], |line| &line.points);
    let worse = |&&(vcpus, mine): &&(f64, f64)| {
        let theirs = others.iter().flat_map(&of).filter(|point| point.0.total_cmp(&vcpus).is_eq());
        theirs.into_iter().any(|&(_, theirs)| better.is_worse(mine, theirs))
    };
    let at: Vec<String> = of(slat).iter().filter(worse).map(|point| plain(point.0)).collect();
    if at.is_empty() { String::new() } else { format!("; slat loses at {} vCPUs", at.join(", ")) }
}

/// The table that a plot draws.
fn drawn(title: &str, lines: &[Line], text: &dyn Fn(f64) -> String) -> Table {
    let columns = std::iter::once(number("vCPUs"))
        .chain(lines.iter().map(|line| figures(&line.name, Source::Simulated)));
    let mut table = Table::new(title, columns.collect());
    let mut all: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    for vcpus in all {
        let of = |line: &Line| {
            line.points.iter().find(|point| point.0.total_cmp(&vcpus).is_eq()).map(|point| point.1)
        };
        let cells = lines.iter().map(|line| cell(of(line).map_or("–".into(), text)));
        table.rows.push(std::iter::once(cell(plain(vcpus))).chain(cells).collect());
    }
    table
}

/// A figure of this name against vCPUs, both logarithmic.
fn figure(sim: &Sim, name: &str) -> Option<Plot> {
    let unit = sim.rows.iter().find_map(|row| row.figure(name)).map(|figure| figure.unit.clone())?;
    let scale = of_time(&unit);
    let lines_of = policies(sim, &|row| Some(row.figure(name)?.value * scale.unwrap_or(1.0)));
    let [(most, high), (least, low)] = extremes(&lines_of)?;
    let largest = sim.vcpus().last().copied()?;
    // Its unit is on the axis.
    let called = match name.strip_prefix("ns per ") {
        Some(what) => format!("Time per {what}"),
        None => capital(name),
    };
    let ranked = ranked(&lines_of, Better::Less);
    let text = |value: f64| if scale.is_some() { ns(value) } else { with(value, &unit) };
    let title = format!(
        "{called} at {largest} vCPUs: {} with `{most}`, {} with `{least}`{}",
        text(high),
        text(low),
        loses(ranked.as_ref(), &lines_of)
    );
    let (y_title, y_tick): (String, fn(f64) -> String) = match scale {
        Some(_) => (called, short_ns),
        None if unit.is_empty() => (called, tick),
        None => (format!("{called}, {unit}"), tick),
    };
    let x = vcpus(&sim.vcpus());
    let y = Axis::new(y_title, Scale::log(values(&lines_of)), y_tick);
    let ends: Vec<String> = lines_of
        .iter()
        .filter_map(|line| Some(format!("{} {}", line.name, text(line.points.last()?.1))))
        .collect();
    let about = format!(
        "A line for each policy against the number of vCPUs, both axes logarithmic. At {largest}: {}.",
        ends.join(", ")
    );
    let svg = lines(&title, &about, (&x, &y), &lines_of);
    Some(Plot {
        figures: Some(drawn(name, &lines_of, &text)),
        ranked,
        ..Plot::new(
            format!("{}-{}", sim.sim, name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")),
            (title, about),
            [Source::Simulated],
            svg,
        )
    })
}

/// With its first letter capital.
fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Nanoseconds on an axis.
pub fn short_ns(value: f64) -> String {
    let units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)];
    let (unit, scale) = units.into_iter().find(|(_, scale)| value >= *scale * 0.9995).unwrap_or(("ns", 1.0));
    format!("{} {unit}", tick(value / scale))
}

fn short_percent(value: f64) -> String {
    format!("{} %", tick(value))
}

/// Whether more vCPUs do more: else there is no efficiency to speak of.
fn grows(sim: &Sim) -> bool {
    let of =
        |vcpus: Option<&u32>| sim.rows.iter().find(|row| Some(&row.vcpus) == vcpus).map(|row| row.operations);
    let all = sim.vcpus();
    of(all.first()).zip(of(all.last())).is_some_and(|(few, many)| many >= 4 * few)
}

/// What a vCPU gets done, as a share of what it does alone.
fn efficiency(sim: &Sim) -> Option<Plot> {
    let first = sim.vcpus().first().copied()?;
    let share = |row: &SimRow| {
        let alone = sim.at(first, &row.policy)?.rate() / f64::from(first);
        Some(100.0 * row.rate() / f64::from(row.vcpus) / alone).filter(|share| share.is_finite())
    };
    let lines_of = policies(sim, &share);
    let [(most, high), (least, low)] = extremes(&lines_of)?;
    let largest = sim.vcpus().last().copied()?;
    let ranked = ranked(&lines_of, Better::More);
    let title = format!(
        "Efficiency at {largest} vCPUs: with `{most}` each does {} of what it does alone, with `{least}` {}{}",
        percent(high / 100.0),
        percent(low / 100.0),
        loses(ranked.as_ref(), &lines_of)
    );
    let x = vcpus(&sim.vcpus());
    let y = Axis::new("Work of a vCPU (alone: 100 %)", Scale::log(values(&lines_of)), short_percent);
    let about = "A line for each policy against the number of vCPUs, both axes logarithmic. A level line is perfect scaling; one that \
                 halves with each doubling gets nothing done by more vCPUs."
        .to_owned();
    let svg = lines(&title, &about, (&x, &y), &lines_of);
    Some(Plot {
        figures: Some(drawn("operations of a vCPU, as a share of what it does alone", &lines_of, &|share| {
            percent(share / 100.0)
        })),
        ranked,
        ..Plot::new(format!("{}-efficiency", sim.sim), (title, about), [Source::Simulated], svg)
    })
}

/// The share of their time that vCPUs wait.
fn waiting(sim: &Sim) -> Option<Plot> {
    let lines_of = policies(sim, &|row| Some(100.0 * row.waiting));
    let [(most, high), (least, low)] = extremes(&lines_of)?;
    let largest = sim.vcpus().last().copied()?;
    let ranked = ranked(&lines_of, Better::Less);
    let title = format!(
        "At {largest} vCPUs each waits {} of its time with `{most}`, {} with `{least}`{}",
        percent(high / 100.0),
        percent(low / 100.0),
        loses(ranked.as_ref(), &lines_of)
    );
    let x = vcpus(&sim.vcpus());
    let y = Axis::new("Waiting for locks and lines", Scale::linear(values(&lines_of)), short_percent);
    let about =
        "A line for each policy against the number of vCPUs, which are on a logarithmic axis.".to_owned();
    let svg = lines(&title, &about, (&x, &y), &lines_of);
    Some(Plot {
        figures: Some(drawn("share of their time that vCPUs wait", &lines_of, &|share| {
            percent(share / 100.0)
        })),
        ranked,
        ..Plot::new(format!("{}-waiting", sim.sim), (title, about), [Source::Simulated], svg)
    })
}

/// vCPUs down, policies across: the figure that ranks them, and how long vCPUs wait.
fn table(sim: &Sim, name: &str) -> Table {
    let policies = sim.policies();
    let mut columns = vec![number("vCPUs")];
    columns.extend(policies.iter().map(|policy| figures(*policy, Source::Simulated)));
    columns.extend(policies.iter().map(|policy| figures(format!("waiting, {policy}"), Source::Simulated)));
    let mut table = Table::new(
        format!("{name}, and the share of their time that vCPUs wait for locks and cache lines"),
        columns,
    );
    for vcpus in sim.vcpus() {
        let rows = || policies.iter().map(|policy| sim.at(vcpus, policy));
        let best = rows()
            .flatten()
            .filter_map(SimRow::first)
            .map(|figure| figure.value)
            .fold(f64::INFINITY, f64::min);
        let mut cells = vec![cell(vcpus.to_string())];
        cells.extend(rows().map(|row| match row.and_then(SimRow::first) {
            Some(figure) if figure.value.total_cmp(&best).is_eq() => {
                marked(with(figure.value, &figure.unit), Mark::Strong)
            }
            Some(figure) => cell(with(figure.value, &figure.unit)),
            None => cell("–"),
        }));
        cells.extend(rows().map(|row| cell(row.map_or("–".into(), |row| percent(row.waiting)))));
        table.rows.push(cells);
    }
    table
}

fn every_figure(sim: &Sim) -> Table {
    let columns = vec![
        number("vCPUs"),
        words("policy"),
        words("figures"),
        figures("waiting", Source::Simulated),
        figures("operations", Source::Simulated),
        figures("flushes", Source::Simulated),
        figures("kicks", Source::Simulated),
        figures("time", Source::Simulated),
    ];
    let mut table = Table::new("Everything that was counted", columns);
    for row in &sim.rows {
        let all: Vec<String> = row
            .figures
            .iter()
            .map(|figure| format!("{}: {}", figure.name, with(figure.value, &figure.unit)))
            .collect();
        let counts = [row.operations, row.flushes, row.kicks].map(|count| cell(plain(count as f64)));
        let mut cells: Vec<Cell> = vec![
            cell(row.vcpus.to_string()),
            cell(&*row.policy),
            cell(all.join("; ")),
            cell(percent(row.waiting)),
        ];
        cells.extend(counts);
        cells.push(cell(ns(row.wall_ns as f64)));
        table.rows.push(cells);
    }
    table
}

/// The cache lines that were waited for longest, with the most vCPUs.
fn hottest(sim: &Sim) -> Table {
    let columns = vec![
        words("policy"),
        words("line"),
        words("touched most at"),
        figures("transfers", Source::Simulated),
        figures("waited for, all CPUs", Source::Simulated),
    ];
    let largest = sim.vcpus().last().copied().unwrap_or(0);
    let mut table = Table::new(format!("The hottest cache lines with {largest} vCPUs"), columns);
    for row in sim.rows.iter().filter(|row| row.vcpus == largest) {
        table.rows.extend(row.lines.iter().take(4).map(|line| {
            vec![
                cell(&*row.policy),
                cell(&line.name),
                cell(format!("`{}`", line.site)),
                cell(plain(line.transfers as f64)),
                cell(ns(line.waited_ns as f64)),
            ]
        }));
    }
    table
}
