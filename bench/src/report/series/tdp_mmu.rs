//! The TDP MMU series: faults in parallel, by a walk that meets others at the entry.

use super::super::data::{Data, Row, text};
use super::super::doc::{Block, Cell, Mark, Source, Table, cell, dash, figures, strong, words};
use super::super::figure::{percent, plain, with};
use super::super::verdict::{Tolerance, Verdict, told};
use super::super::{latency, replay_plots};
use super::{Answer, Parts, assemble, baseline, line};
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
    columns.extend(benches.iter().map(|bench| {
        let [vcpus, served] = ["vcpus", "served"].map(|key| text(bench.params.get(key)));
        figures(format!("{vcpus} vCPUs, pages served {served}"), Source::Here)
    }));
    let sim = data.sim(BENCH).map(|(_, sim)| sim);
    columns.extend(sim.map(|_| figures(format!("{VCPUS} vCPUs"), Source::Simulated)));
    let at = |policy| sim.and_then(|sim| sim.at(VCPUS, policy));
    let waits = |policy| Some(percent(at(policy)?.waiting));
    let saves = |policy| Some(percent(1.0 - at("none")?.wall_ns as f64 / at(policy)?.wall_ns as f64));
    let waiting = |name: &'static str, figure: fn(&Row) -> Option<f64>| {
        move |rows: &[Row]| Some(percent(figure(find(rows, name, "waiting for the MMU lock")?)? / 100.0))
    };
    let time = |name: &'static str| {
        move |rows: &[Row]| {
            let row = find(rows, name, "time")?;
            Some(percent(1.0 - row.slat / row.baseline?))
        }
    };
    let none = || "–".to_owned();
    let lines: [(&str, String, Here<'_>, Option<String>); 6] = [
        (
            "waiting for the lock, one mutex",
            percent(WAITING),
            &waiting(MUTEX, |row| row.baseline),
            waits("exclusive"),
        ),
        ("waiting, reader-writer lock", none(), &waiting(LOCK, |row| row.baseline), waits("read-write")),
        ("waiting, slat", none(), &waiting(MUTEX, |row| Some(row.slat)), waits("none")),
        ("time that slat saves against one mutex", percent(SAVED), &time(MUTEX), saves("exclusive")),
        ("time that slat saves against the reader-writer lock", none(), &time(LOCK), saves("read-write")),
        (
            "faults a second, slat",
            none(),
            &|rows| Some(plain(find(rows, MUTEX, "rate (ratio: slat / baseline)")?.slat * 1e3)),
            at("none").map(|row| plain(row.rate())),
        ),
    ];
    let mut table = Table::new("Demand paging: every vCPU touches new memory, all at once", columns);
    for (name, published, here, simulated) in lines {
        let mut cells = vec![cell(name), cell(published)];
        cells.extend(benches.iter().map(|bench| dash(here(&bench.rows), |text| text)));
        cells.extend(sim.map(|_| strong(simulated.unwrap_or_else(none))));
        table.rows.push(cells);
    }
    table
}

/// What one fault costs, against the least it could cost.
fn floor(data: &Data) -> Option<Block> {
    let present = |row: &&Row| row.param("tables") == "present" && !row.param("vcpus").is_empty();
    let rows: Vec<&Row> = data.rows("fault-floor").filter(present).collect();
    let setting = |row: &Row| (row.param("vcpus"), row.param("order"));
    let mut settings: Vec<_> = rows.iter().map(|row| setting(row)).collect();
    settings.sort();
    settings.dedup();
    let first = settings.first()?;
    let mut columns = vec![words("who")];
    columns.extend(
        settings.iter().map(|(vcpus, order)| figures(format!("{vcpus} vCPU, {order}"), Source::Here)),
    );
    let mut table = Table::new("What one 4K fault costs, tables present", columns);
    let ns = |value: f64| with(value, "ns");
    let of = |at: &(String, String)| -> Vec<&Row> {
        rows.iter().copied().filter(|row| setting(row) == *at).collect()
    };
    let slat =
        settings.iter().map(|at| Cell { mark: Mark::Strong, ..dash(of(at).first(), |row| ns(row.slat)) });
    table.rows.push(std::iter::once(strong("slat")).chain(slat).collect());
    for row in of(first) {
        let before = |at| of(at).into_iter().find(|other| other.name == row.name)?.baseline;
        let cells = settings.iter().map(|at| dash(before(at), ns));
        table.rows.push(std::iter::once(cell(&row.name)).chain(cells).collect());
    }
    let mut blocks = vec![Block::Table(table)];
    blocks.extend(data.rows("migrate").find(|row| row.name == "downtime").map(|row| {
        Block::Text(format!(
            "A running guest that writes all the time migrates over TCP: it stands still for {}, where it is halted first for {}. Every byte is compared.",
            with(row.slat, &row.unit),
            with(baseline(row), &row.unit),
        ))
    }));
    Some(Block::Fold("What one fault costs, and a migration".into(), blocks))
}
