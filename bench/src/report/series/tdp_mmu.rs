//! The TDP MMU series: faults in parallel, by a walk that meets others at the entry.

use super::super::data::{Data, Row};
use super::super::doc::{Block, Mark, Source, Table, cell, figures, marked, words};
use super::super::figure::{percent, plain, with};
use super::super::verdict::{Tolerance, Verdict, told};
use super::super::{latency, replay_plots};
use super::{Answer, Parts, assemble, line, or_dash};
use slat_series::PatchSeries;
use slat_series::tdp_mmu::{SAVED, VCPUS, WAITING};

const BENCH: &str = "demand-paging";
const MUTEX: &str = "one mutex: before";
const LOCK: &str = "reader-writer lock: the series";

pub fn answer(data: &Data) -> Answer {
    let sim = data.sim(BENCH).map(|(_, sim)| sim);
    let at = |policy| sim.and_then(|sim| sim.at(VCPUS, policy));
    // The more vCPUs share the CPUs, the more there is to wait for.
    let busiest =
        data.benches(BENCH).map(|(_, bench)| bench).max_by(|a, b| waits(&a.rows).total_cmp(&waits(&b.rows)));
    let mut verdicts = Vec::new();
    if let Some(row) = busiest.and_then(|bench| find(&bench.rows, MUTEX, "waiting for the MMU lock")) {
        let share = row.baseline.unwrap_or(f64::NAN) / 100.0;
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
    if let Some(row) = at("exclusive") {
        card.push(line(Source::Simulated, percent(row.waiting), "waiting under one mutex, 416 vCPUs"));
    }
    if let Some(row) = at("none") {
        card.push(line(Source::Simulated, percent(row.waiting), "waiting with slat, 416 vCPUs"));
    }
    let mut tables = vec![Block::Table(table(data))];
    tables.extend(floor(data));
    let mut plots = latency::by_policy(data);
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

fn waits(rows: &[Row]) -> f64 {
    find(rows, MUTEX, "waiting for the MMU lock").and_then(|row| row.baseline).unwrap_or(0.0)
}

/// A figure of a bench's rows, as text.
type Here<'h> = &'h dyn Fn(&[Row]) -> Option<String>;

/// The series' figures; ours for each setting that was measured; the simulation's at the series' size.
fn table(data: &Data) -> Table {
    let mut columns = vec![words("figure"), figures("416 vCPUs, handlers", Source::Series)];
    let benches: Vec<_> = data.benches(BENCH).map(|(_, bench)| bench).collect();
    for bench in &benches {
        let (vcpus, served) = (
            super::super::data::text(bench.params.get("vcpus")),
            super::super::data::text(bench.params.get("served")),
        );
        columns.push(figures(format!("{vcpus} vCPUs, pages served {served}"), Source::Here));
    }
    let sim = data.sim(BENCH).map(|(_, sim)| sim);
    if sim.is_some() {
        columns.push(figures(format!("{VCPUS} vCPUs"), Source::Simulated));
    }
    let at = |policy| sim.and_then(|sim| sim.at(VCPUS, policy));
    let wall = |policy| at(policy).map(|row| row.wall_ns as f64);
    let less = wall("exclusive").zip(wall("none")).map(|(before, slat)| 1.0 - slat / before);
    let share = |value: Option<f64>| value.map_or("–".into(), percent);
    let waiting = |name: &'static str, slat: bool| {
        move |rows: &[Row]| {
            let row = find(rows, name, "waiting for the MMU lock")?;
            Some(percent(if slat { row.slat } else { row.baseline? } / 100.0))
        }
    };
    let time = |name: &'static str| {
        move |rows: &[Row]| {
            let row = find(rows, name, "time")?;
            Some(percent(1.0 - row.slat / row.baseline?))
        }
    };
    let lines: [(&str, String, Here<'_>, String); 6] = [
        (
            "waiting for the lock, one mutex",
            percent(WAITING),
            &waiting(MUTEX, false),
            share(at("exclusive").map(|row| row.waiting)),
        ),
        (
            "waiting, reader-writer lock",
            "–".into(),
            &waiting(LOCK, false),
            share(at("read-write").map(|row| row.waiting)),
        ),
        ("waiting, slat", "–".into(), &waiting(MUTEX, true), share(at("none").map(|row| row.waiting))),
        ("time that slat saves against one mutex", percent(SAVED), &time(MUTEX), share(less)),
        (
            "time that slat saves against the reader-writer lock",
            "–".into(),
            &time(LOCK),
            share(wall("read-write").zip(wall("none")).map(|(before, slat)| 1.0 - slat / before)),
        ),
        (
            "faults a second, slat",
            "–".into(),
            &|rows| Some(plain(find(rows, MUTEX, "rate (ratio: slat / baseline)")?.slat * 1e3)),
            at("none").map_or("–".into(), |row| plain(row.rate())),
        ),
    ];
    let mut table = Table::new("Demand paging: every vCPU touches new memory, all at once", columns);
    for (name, published, here, simulated) in lines {
        let mut cells = vec![cell(name), cell(published)];
        cells.extend(benches.iter().map(|bench| cell(here(&bench.rows).unwrap_or("–".into()))));
        if sim.is_some() {
            cells.push(marked(simulated, Mark::Strong));
        }
        table.rows.push(cells);
    }
    table
}

/// What one fault costs, against the least it could cost.
fn floor(data: &Data) -> Option<Block> {
    let present = |row: &&Row| row.param("tables") == "present" && !row.param("vcpus").is_empty();
    let rows: Vec<&Row> = data.rows("fault-floor").filter(present).collect();
    let mut settings: Vec<(String, String)> =
        rows.iter().map(|row| (row.param("vcpus"), row.param("order"))).collect();
    settings.sort();
    settings.dedup();
    let columns = std::iter::once(words("who"))
        .chain(settings.iter().map(|(vcpus, order)| figures(format!("{vcpus} vCPU, {order}"), Source::Here)));
    let mut table = Table::new("What one 4K fault costs, tables present", columns.collect());
    let of = |name: Option<&str>| {
        settings
            .iter()
            .map(|(vcpus, order)| {
                let mut here =
                    rows.iter().filter(|row| row.param("vcpus") == *vcpus && row.param("order") == *order);
                match name {
                    None => or_dash(here.next().map(|row| row.slat), "ns"),
                    Some(name) => {
                        or_dash(here.find(|row| row.name == name).and_then(|row| row.baseline), "ns")
                    }
                }
            })
            .collect::<Vec<_>>()
    };
    let first = settings.first()?;
    table.rows.push(
        std::iter::once(marked("slat", Mark::Strong))
            .chain(of(None).into_iter().map(|text| marked(text, Mark::Strong)))
            .collect(),
    );
    for row in rows.iter().filter(|row| row.param("vcpus") == first.0 && row.param("order") == first.1) {
        table.rows.push(
            std::iter::once(cell(&row.name)).chain(of(Some(&row.name)).into_iter().map(cell)).collect(),
        );
    }
    let mut blocks = vec![Block::Table(table)];
    let migrated = data.rows("migrate").find(|row| row.name == "downtime");
    if let Some(row) = migrated {
        blocks.push(Block::Text(format!(
            "A running guest that writes all the time migrates over TCP: it stands still for {}, where it is halted first for {}. Every byte is compared.",
            with(row.slat, &row.unit),
            with(row.baseline.unwrap_or(f64::NAN), &row.unit),
        )));
    }
    Some(Block::Fold("What one fault costs, and a migration".into(), blocks))
}
