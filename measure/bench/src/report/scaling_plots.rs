//! One simulation on the page: how each policy fares as vCPUs become more.

use crate::report::figure_text::{ns, of_time, percent, plain, short_ns, tick, with};
use crate::report::page_model::{
    Better, Block, Mark, Plot, Source, Table, cell, dash, figures, marked, number, words,
};
use crate::report::plot;
use crate::report::plot::{Axis, Line, Look, Scale, values};
use crate::report::report_data::{Sim, SimRow};
use std::iter;

/// Figures, beside the one that ranks the policies, that are worth a plot.
const PLOTTED: [&str; 2] = ["average pass", "fault beside it"];

/// Plots.
pub fn plots(sim: &Sim) -> Vec<Plot> {
    let Some(first) = sim.rows.iter().find_map(SimRow::first) else { return Vec::new() };
    let plotted = PLOTTED.into_iter().filter(|name| **name != first.name);
    let figures = iter::once(&*first.name).chain(plotted).map(|name| figure(sim, name));
    figures.chain([if grows(sim) { efficiency(sim) } else { waiting(sim) }]).flatten().collect()
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

/// Of a line, its figure at `x`.
fn at(line: &Line, x: f64) -> Option<f64> {
    line.points.iter().find(|point| point.0.total_cmp(&x).is_eq()).map(|point| point.1)
}

/// A plot in which slat is one of several lines, the one that looks so: see [`look`].
pub struct Ranking<'r> {
    pub id: String,
    /// Where slat loses is added to it.
    pub title: String,
    pub about: String,
    pub axes: (Axis, Axis),
    pub lines: Vec<Line>,
    pub better: Better,
    /// The caption of the table of what is drawn.
    pub caption: &'r str,
    /// The name of the horizontal axis, for that table, and the format of its values.
    pub at: (&'r str, fn(f64) -> String),
    /// A figure, as people read it.
    pub text: &'r dyn Fn(f64) -> String,
    pub from: Source,
}

impl Ranking<'_> {
    /// The plot, with the table that it draws; `places` names those where slat loses.
    pub fn plot(self, places: impl Fn(&str) -> String) -> Plot {
        let Self { id, mut title, about, axes: (x, y), lines, better, caption, at: (head, name), .. } = self;
        let mut all: Vec<f64> =
            lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        let mut table = Table::of(caption, &all, [(number(head), &|x| cell(name(**x)))]);
        for line in &lines {
            table.add(figures(&line.name, self.from), all.iter().map(|&x| dash(at(line, x), self.text)));
        }
        let slat = lines.iter().find(|line| line.look == Look::Nth(0));
        if let Some(slat) = slat {
            // A line without the compared work is no baseline.
            let other = |line: &&Line| line.name != slat.name && !line.name.contains("no aging");
            let others: Vec<&Line> = lines.iter().filter(other).collect();
            let worse = |&&(x, mine): &&(f64, f64)| {
                others.iter().filter_map(|line| at(line, x)).any(|theirs| better.is_worse(mine, theirs))
            };
            let lost: Vec<String> = slat.points.iter().filter(worse).map(|point| name(point.0)).collect();
            if !lost.is_empty() {
                title = format!("{title}; slat loses at {}", places(&lost.join(", ")));
            }
        }
        let drawing = plot::lines((&x, &y), &lines);
        Plot::new(id, (title, about), &[self.from], &drawing, Some(table))
    }
}

/// A title: of two policies, each with its figure, and of the largest number of vCPUs.
type Title<'c> = dyn Fn([(&str, String); 2], u32) -> String + 'c;

/// A figure of a simulation against the number of vCPUs, a line for each policy.
struct Chart<'c> {
    /// Behind the simulation's name.
    id: String,
    caption: &'c str,
    better: Better,
    text: &'c dyn Fn(f64) -> String,
    /// Of the policy with the largest last value, and the one with the least; with the largest number of vCPUs.
    title: &'c Title<'c>,
    /// More for the description in words.
    about: &'c str,
    y: (String, fn(f64) -> String),
    linear: bool,
}

impl Chart<'_> {
    fn plot(self, sim: &Sim, value: &dyn Fn(&SimRow) -> Option<f64>) -> Option<Plot> {
        let line = |policy: &str| {
            let rows = sim.vcpus().into_iter().filter_map(|vcpus| sim.at(vcpus, policy));
            let points = rows.filter_map(|row| Some((row.vcpus.into(), value(row)?))).collect();
            Line { name: policy.to_owned(), look: look(policy), points }
        };
        let lines: Vec<Line> =
            sim.policies().into_iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let last = || lines.iter().filter_map(|line| Some((line.name.as_str(), line.points.last()?.1)));
        let extremes =
            [last().max_by(|a, b| a.1.total_cmp(&b.1))?, last().min_by(|a, b| a.1.total_cmp(&b.1))?];
        let largest = sim.vcpus().last().copied()?;
        let title = (self.title)(extremes.map(|(policy, value)| (policy, (self.text)(value))), largest);
        let ends: Vec<String> =
            last().map(|(policy, value)| format!("{policy} {}", (self.text)(value))).collect();
        let axes = if self.linear { "which are on a logarithmic axis" } else { "both axes logarithmic" };
        let about = format!(
            "A line for each policy against the number of vCPUs, {axes}.{} At {largest}: {}.",
            self.about,
            ends.join(", ")
        );
        let scale = if self.linear { Scale::linear(values(&lines)) } else { Scale::log(values(&lines)) };
        let ranking = Ranking {
            id: format!("{}-{}", sim.sim, self.id),
            title,
            about,
            axes: (vcpus(&sim.vcpus()), Axis::new(self.y.0, scale, self.y.1)),
            lines,
            better: self.better,
            caption: self.caption,
            at: ("vCPUs", plain),
            text: self.text,
            from: Source::Simulated,
        };
        Some(ranking.plot(|vcpus| format!("{vcpus} vCPUs")))
    }
}

/// A figure of this name.
fn figure(sim: &Sim, name: &str) -> Option<Plot> {
    let unit = sim.rows.iter().find_map(|row| row.figure(name)).map(|figure| figure.unit.clone())?;
    let scale = of_time(&unit);
    // Its unit is on the axis.
    let called = match name.strip_prefix("ns per ") {
        Some(what) => format!("Time per {what}"),
        None => capital(name),
    };
    let chart = Chart {
        id: name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"),
        caption: name,
        better: Better::Less,
        text: &|value| if scale.is_some() { ns(value) } else { with(value, &unit) },
        title: &|[(most, high), (least, low)], largest| {
            format!("{called} at {largest} vCPUs: {high} with `{most}`, {low} with `{least}`")
        },
        about: "",
        y: match scale {
            Some(_) => (called.clone(), short_ns),
            None if unit.is_empty() => (called.clone(), tick),
            None => (format!("{called}, {unit}"), tick),
        },
        linear: false,
    };
    chart.plot(sim, &|row| Some(row.figure(name)?.value * scale.unwrap_or(1.0)))
}

/// The throughput of a vCPU, as a share of its throughput alone.
fn efficiency(sim: &Sim) -> Option<Plot> {
    let first = sim.vcpus().first().copied()?;
    let share = |row: &SimRow| {
        let alone = sim.at(first, &row.policy)?.rate() / f64::from(first);
        Some(100.0 * row.rate() / f64::from(row.vcpus) / alone).filter(|share| share.is_finite())
    };
    let chart = Chart {
        id: "efficiency".into(),
        caption: "operations of a vCPU, as a share of what it does alone",
        better: Better::More,
        text: &|share| percent(share / 100.0),
        title: &|[(most, high), (least, low)], largest| {
            format!(
                "Efficiency at {largest} vCPUs: with `{most}` each does {high} of what it does alone, with `{least}` {low}"
            )
        },
        about: " A level line is perfect scaling; one that halves with each doubling gets nothing done by more vCPUs.",
        y: ("Work of a vCPU (alone: 100 %)".into(), short_percent),
        linear: false,
    };
    chart.plot(sim, &share)
}

/// The share of their time that vCPUs wait.
fn waiting(sim: &Sim) -> Option<Plot> {
    let chart = Chart {
        id: "waiting".into(),
        caption: "share of their time that vCPUs wait",
        better: Better::Less,
        text: &|share| percent(share / 100.0),
        title: &|[(most, high), (least, low)], largest| {
            format!("At {largest} vCPUs each waits {high} of its time with `{most}`, {low} with `{least}`")
        },
        about: "",
        y: ("Waiting for locks and lines".into(), short_percent),
        linear: true,
    };
    chart.plot(sim, &|row| Some(100.0 * row.waiting))
}

/// With its first letter capital.
fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
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

/// vCPUs down, policies across: the figure that ranks them, and how long vCPUs wait.
fn table(sim: &Sim, name: &str) -> Table {
    let vcpus = sim.vcpus();
    let caption = format!("{name}, and the share of their time that vCPUs wait for locks and cache lines");
    let mut table = Table::of(caption, &vcpus, [(number("vCPUs"), &|vcpus| cell(vcpus.to_string()))]);
    let policies = sim.policies();
    let first = |vcpus: u32, policy: &str| sim.at(vcpus, policy).and_then(SimRow::first);
    let best = |vcpus: u32| {
        let all = policies.iter().filter_map(|policy| first(vcpus, policy));
        all.map(|figure| figure.value).fold(f64::INFINITY, f64::min)
    };
    for policy in &policies {
        let cells = vcpus.iter().map(|&vcpus| {
            let Some(figure) = first(vcpus, policy) else { return cell("–") };
            let is_best = figure.value.total_cmp(&best(vcpus)).is_eq();
            marked(with(figure.value, &figure.unit), if is_best { Mark::Strong } else { Mark::None })
        });
        table.add(figures(*policy, Source::Simulated), cells);
    }
    for policy in &policies {
        let waiting = vcpus.iter().map(|&vcpus| dash(sim.at(vcpus, policy), |row| percent(row.waiting)));
        table.add(figures(format!("waiting, {policy}"), Source::Simulated), waiting);
    }
    table
}

fn every_figure(sim: &Sim) -> Table {
    let all = |row: &SimRow| {
        let texts = row.figures.iter().map(|one| format!("{}: {}", one.name, with(one.value, &one.unit)));
        texts.collect::<Vec<_>>().join("; ")
    };
    let count = |count: u64| cell(plain(count as f64));
    Table::of(
        "Everything that was counted",
        &sim.rows,
        [
            (number("vCPUs"), &|row| cell(row.vcpus.to_string())),
            (words("policy"), &|row| cell(&*row.policy)),
            (words("figures"), &|row| cell(all(row))),
            (figures("waiting", Source::Simulated), &|row| cell(percent(row.waiting))),
            (figures("operations", Source::Simulated), &|row| count(row.operations)),
            (figures("flushes", Source::Simulated), &|row| count(row.flushes)),
            (figures("kicks", Source::Simulated), &|row| count(row.kicks)),
            (figures("time", Source::Simulated), &|row| cell(ns(row.wall_ns as f64))),
        ],
    )
}

/// The cache lines that were waited for longest, with the most vCPUs.
fn hottest(sim: &Sim) -> Table {
    let largest = sim.vcpus().last().copied().unwrap_or(0);
    let rows = sim.rows.iter().filter(|row| row.vcpus == largest);
    Table::of(
        format!("The hottest cache lines with {largest} vCPUs"),
        rows.flat_map(|row| row.lines.iter().take(4).map(move |line| (row, line))),
        [
            (words("policy"), &|(row, _)| cell(&*row.policy)),
            (words("line"), &|(_, line)| cell(&line.name)),
            (words("touched most at"), &|(_, line)| cell(format!("`{}`", line.site))),
            (figures("transfers", Source::Simulated), &|(_, line)| cell(plain(line.transfers as f64))),
            (figures("waited for, all CPUs", Source::Simulated), &|(_, line)| {
                cell(ns(line.waited_ns as f64))
            }),
        ],
    )
}
