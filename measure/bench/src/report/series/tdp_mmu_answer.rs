//! The TDP MMU series: faults in parallel, by a walk that meets others at the entry.

use crate::report::figure_text::{percent, plain, with};
use crate::report::latency_plot;
use crate::report::page_model::{Block, Cell, Mark, Source, Table, cell, dash, figures, strong, words};
use crate::report::replay_plots;
use crate::report::report_data::{Data, Row, text};
use crate::report::series::series_answer::{Answer, Parts, assemble, baseline, line};
use crate::report::verdict::{Tolerance, Verdict, told};
use slat_series::PatchSeries;
use slat_series::tdp_mmu::{SAVED, VCPUS, WAITING};
use std::iter;

const BENCH: &str = "demand-paging";
const MUTEX: &str = "one mutex: before";
const LOCK: &str = "reader-writer lock: the series";
const WAITED: &str = "waiting for the MMU lock";

pub fn answer(data: &Data) -> Answer {
    let sim = data.sim(BENCH).map(|(_, sim)| sim);
    let at = |policy| sim.and_then(|sim| sim.at(VCPUS, policy));
    // The more vCPUs share the CPUs, the more there is to wait for.
    let waiting = data.benches(BENCH).filter_map(|(_, bench)| find(&bench.rows, MUTEX, WAITED));
    let busiest = waiting.max_by(|a, b| baseline(a).total_cmp(&baseline(b)));
    let mut verdicts = Vec::new();
    if let Some(row) = busiest {
        let share = baseline(row) / 100.0;
        verdicts.push(Verdict {
            claim: "with one mutex, vCPUs spend nearly all of their time waiting for it".into(),
            published: told(WAITING, "share"),
            ours: told(share, "share"),
            from: Source::Here,
            tolerance: Tolerance::None("none: the numbers of CPUs are too far apart"),
            note: format!(
                "of the time of faults; this machine has {} CPUs, and the series' 416. slat: {}",
                data.machine.cores,
                percent(row.slat / 100.0)
            ),
        });
    }
    let mut card =
        vec![line(Source::Series, percent(WAITING), "of 416 vCPUs' time waiting for the MMU lock")];
    for (policy, about) in
        [("exclusive", "waiting under one mutex, 416 vCPUs"), ("none", "waiting with slat, 416 vCPUs")]
    {
        card.extend(at(policy).map(|row| line(Source::Simulated, percent(row.waiting), about)));
    }
    let mut tables = vec![Block::Table(table(data))];
    tables.extend(floor(data));
    let mut plots = latency_plot::by_policy(data);
    plots.extend(data.replay().into_iter().flat_map(replay_plots::writes_and_faults));
    assemble(
        data,
        Parts {
            series: PatchSeries::TdpMmu,
            title: "faults in parallel, for hundreds of vCPUs",
            about: "KVM's MMU had one lock. The series walks tables while others change them, by compare-and-swap at the entry, under a \
                    reader-writer lock; it is what lets VMs of 416 vCPUs and 12 TiB migrate. Here: the same engine with one mutex \
                    (`exclusive`, before), with a reader-writer lock (`read-write`, as the series describes), and with no lock at all (`none`, \
                    slat as it ships).",
            card,
            verdicts,
            tables,
            plots,
        },
    )
}

fn find<'r>(rows: &'r [Row], name: &str, figure: &str) -> Option<&'r Row> {
    rows.iter().find(|row| row.is(name, &[("figure", figure)]))
}

/// A figure of a bench's rows, as text.
type Here<'h> = &'h dyn Fn(&[Row]) -> Option<String>;

/// The series' figures; ours for each setting that was measured; the simulation's at the series' size.
fn table(data: &Data) -> Table {
    let sim = data.sim(BENCH).map(|(_, sim)| sim);
    let at = |policy| sim.and_then(|sim| sim.at(VCPUS, policy));
    let waits = |policy| Some(percent(at(policy)?.waiting));
    let saves = |policy| Some(percent(1.0 - at("none")?.wall_ns as f64 / at(policy)?.wall_ns as f64));
    let waiting = |name: &'static str, figure: fn(&Row) -> Option<f64>| {
        move |rows: &[Row]| Some(percent(figure(find(rows, name, WAITED)?)? / 100.0))
    };
    let time = |name: &'static str| {
        move |rows: &[Row]| {
            let row = find(rows, name, "time")?;
            Some(percent(1.0 - row.slat / row.baseline?))
        }
    };
    let lines: [(&str, Option<f64>, Here<'_>, Option<String>); 6] = [
        (
            "waiting for the lock, one mutex",
            Some(WAITING),
            &waiting(MUTEX, |row| row.baseline),
            waits("exclusive"),
        ),
        ("waiting, reader-writer lock", None, &waiting(LOCK, |row| row.baseline), waits("read-write")),
        ("waiting, slat", None, &waiting(MUTEX, |row| Some(row.slat)), waits("none")),
        ("time that slat saves against one mutex", Some(SAVED), &time(MUTEX), saves("exclusive")),
        ("time that slat saves against the reader-writer lock", None, &time(LOCK), saves("read-write")),
        (
            "faults a second, slat",
            None,
            &|rows| Some(plain(find(rows, MUTEX, "rate (ratio: slat / baseline)")?.slat * 1e3)),
            at("none").map(|row| plain(row.rate())),
        ),
    ];
    let mut table = Table::of(
        "Demand paging: every vCPU touches new memory, all at once",
        &lines,
        [
            (words("figure"), &|(name, ..)| cell(*name)),
            (figures("416 vCPUs, handlers", Source::Series), &|(_, published, ..)| dash(*published, percent)),
        ],
    );
    for (_, bench) in data.benches(BENCH) {
        let [vcpus, served] = ["vcpus", "served"].map(|key| text(bench.params.get(key)));
        let head = figures(format!("{vcpus} vCPUs, pages served {served}"), Source::Here);
        table.add(head, lines.iter().map(|(_, _, here, _)| dash(here(&bench.rows), |text| text)));
    }
    if sim.is_some() {
        let simulated = |(.., text): &(_, _, _, Option<String>)| strong(text.as_deref().unwrap_or("–"));
        table.add(figures(format!("{VCPUS} vCPUs"), Source::Simulated), lines.iter().map(simulated));
    }
    table
}

/// The cost of one fault, against the least possible cost.
fn floor(data: &Data) -> Option<Block> {
    let present = |row: &&Row| row.param("tables") == "present" && !row.param("vcpus").is_empty();
    let rows: Vec<&Row> = data.rows("fault-floor").filter(present).collect();
    let setting = |row: &Row| (row.param("vcpus"), row.param("order"));
    let mut settings: Vec<_> = rows.iter().map(|row| setting(row)).collect();
    settings.sort();
    settings.dedup();
    let of = |at: &(String, String)| -> Vec<&Row> {
        rows.iter().copied().filter(|row| setting(row) == *at).collect()
    };
    // Behind slat.
    let peers = of(settings.first()?);
    let who: Vec<Option<&str>> = iter::once(None).chain(peers.iter().map(|row| Some(&*row.name))).collect();
    let mut table = Table::of(
        "Cost of one 4K fault, tables present",
        who.iter().copied(),
        [(words("who"), &|who| who.map_or_else(|| strong("slat"), cell))],
    );
    for at in &settings {
        let (rows, ns) = (of(at), |value: f64| with(value, "ns"));
        let cells = who.iter().map(|who| match who {
            None => Cell { mark: Mark::Strong, ..dash(rows.first(), |row| ns(row.slat)) },
            Some(name) => dash(rows.iter().find(|row| row.name == *name).and_then(|row| row.baseline), ns),
        });
        table.add(figures(format!("{} vCPU, {}", at.0, at.1), Source::Here), cells);
    }
    let mut blocks = vec![Block::Table(table)];
    blocks.extend(data.rows("migrate").find(|row| row.name == "downtime").map(|row| {
        Block::Text(format!(
            "A running guest that writes all the time migrates over TCP: it stands still for {}, where it is halted first for {}. Every byte is compared.",
            with(row.slat, &row.unit),
            with(baseline(row), &row.unit),
        ))
    }));
    Some(Block::Fold("Cost of one fault, and of a migration".into(), blocks))
}
