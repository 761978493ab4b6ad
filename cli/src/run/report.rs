//! The report of a run: a page of text, or one JSON object.

use super::args::Run;
use super::dirty_log::Harvests;
use super::feed::Fed;
use super::guest_vm::Machine;
use super::migrate::{Arrived, Sent};
use super::nested;
use super::vcpus::Outcome;
use crate::error::Error;
use crate::figures::{Ahead, Faults, Flushes, Mapped, RetryBy, TlbCounts, percent};
use serde::{Serialize, Serializer};
use slat::{Format, Gfn, Idle, PAGE_SIZE, Span, Stats};
use slat_mm::Lru;
use slat_vcpu::nested::L1Counts;
use std::io::Write;
use std::time::Duration;

#[derive(Serialize)]
struct Report {
    format: &'static str,
    #[serde(flatten)]
    fed: Fed,
    vcpus: u32,
    slots: usize,
    accesses: u64,
    accesses_per_s: f64,
    faults: Faults,
    fault_ns: FaultNs,
    tlb: TlbCounts,
    flushes: Flushes,
    mapped: Mapped,
    mapped_bytes: u64,
    table_bytes: u64,
    overhead_percent: f64,
    dirty_pages: u64,
    dirty_log: Harvests,
    swapped_out: u64,
    swapped_in: u64,
    refaults: u64,
    ahead: Ahead,
    generations: Vec<Generation>,
    /// The figures of L1, if the run was nested.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "by_name")]
    nested: Option<L1Counts>,
    verified_reads: u64,
    unchecked_reads: u64,
    corrupt_reads: u64,
    first_corruption: Option<String>,
    wall_s: f64,
    interrupted: bool,
    /// The figures of the migration, if the guest moved.
    #[serde(rename = "migrated_to", skip_serializing_if = "Option::is_none")]
    sent: Option<Sent>,
    #[serde(rename = "migrated_from", skip_serializing_if = "Option::is_none")]
    arrived: Option<Arrived>,
}

#[derive(Serialize)]
struct FaultNs {
    p50: u64,
    p99: u64,
    p999: u64,
}

#[expect(clippy::ref_option, reason = "as serde calls it")]
fn by_name<S: Serializer>(counts: &Option<L1Counts>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter().flat_map(L1Counts::named))
}

/// Pages last used between two aging passes.
#[derive(Serialize)]
struct Generation {
    node: u8,
    seq: u64,
    age_ms: u64,
    anon: u64,
    file: u64,
}

/// Prints the report to standard output.
pub fn print<F: Format>(
    run: &Run,
    machine: &Machine<F>,
    outcome: &Outcome,
    (harvests, nested): (Option<Harvests>, Option<L1Counts>),
    (sent, arrived): (Option<Sent>, Option<Arrived>),
    (fed, wall): (Fed, Duration),
) -> Result<(), Error> {
    let stats: Stats = machine.vm.stats();
    let mapped_bytes = stats.mapped_bytes();
    let quantile = |q: f64| outcome.fault_ns.as_ref().map_or(0, |histogram| histogram.value_at_quantile(q));
    let dirty_pages = harvests.as_ref().map_or_else(|| dirty_pages(machine), |log| log.pages);
    let mut dirty_log = harvests.unwrap_or_default();
    (dirty_log.by, dirty_log.ring_full) = (run.dirty_log.name(), outcome.ring_full);
    let findings = outcome.findings;
    let space = machine.space.stats();
    let lru = machine.space.lru().map(Lru::stats).unwrap_or_default();
    let report = Report {
        format: F::NAME,
        fed,
        vcpus: machine.vcpus,
        slots: machine.vm.memory().len(),
        accesses: outcome.accesses,
        accesses_per_s: outcome.accesses as f64 / wall.as_secs_f64(),
        faults: (&stats).into(),
        fault_ns: FaultNs { p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999) },
        tlb: outcome.tlb,
        flushes: stats.flushes.into(),
        mapped: (&stats).into(),
        mapped_bytes,
        table_bytes: stats.table_bytes,
        overhead_percent: percent(stats.table_bytes, mapped_bytes),
        dirty_pages,
        dirty_log,
        swapped_out: space.swapped_out,
        swapped_in: space.swapped_in,
        refaults: lru.refaults,
        ahead: Ahead::of(machine),
        generations: generations(machine),
        nested,
        verified_reads: findings.verified,
        unchecked_reads: findings.unchecked,
        corrupt_reads: findings.corrupt,
        first_corruption: findings.first.map(|(gpa, expected, found)| {
            format!("guest address {gpa}: expected byte {expected:#04x}, found {found:#04x}")
        }),
        wall_s: wall.as_secs_f64(),
        interrupted: outcome.interrupted,
        sent,
        arrived,
    };
    let mut out = std::io::stdout().lock();
    if run.json {
        serde_json::to_writer(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        report.page(&mut out)?;
    }
    Ok(out.flush()?)
}

impl Report {
    fn page(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { format, vcpus, slots, accesses, wall_s, mapped_bytes, dirty_pages, .. } = self;
        let Fed { traces, lines, skipped_lines, garbled_lines, beyond_lines } = &self.fed;
        writeln!(out, "guest     {traces} on {vcpus} vCPUs, {slots} memslots, {format}")?;
        write!(out, "trace     {lines} lines, {skipped_lines} of them no accesses, {garbled_lines} garbled")?;
        match beyond_lines {
            0 => writeln!(out)?,
            lines => writeln!(out, ", {lines} that reach beyond 2^57")?,
        }
        if self.interrupted {
            writeln!(out, "INTERRUPTED before the traces ended: figures up to the interrupt")?;
        }
        writeln!(out, "accesses  {accesses} in {wall_s:.2} s: {:.1} M/s", self.accesses_per_s / 1e6)?;
        let Faults { total, map, permission, spurious, mmio, retry, retry_by, asked_again } = self.faults;
        writeln!(
            out,
            "faults    {total}: {map} mapped, {permission} permission, {spurious} spurious, {mmio} mmio; {retry} retries"
        )?;
        let RetryBy { moved, covered, lost } = retry_by;
        writeln!(
            out,
            "          retries: {moved} moved, {covered} covered, {lost} lost; host asked again: {asked_again}"
        )?;
        let FaultNs { p50, p99, p999 } = self.fault_ns;
        writeln!(out, "          p50 {p50} ns, p99 {p99} ns, p99.9 {p999} ns")?;
        let TlbCounts { hits, misses } = self.tlb;
        let lookups = hits + misses;
        writeln!(out, "tlb       {:.3}% of {lookups} look-ups hit", percent(hits, lookups))?;
        let Flushes { requested, paid, pages } = self.flushes;
        writeln!(out, "flushes   {requested} requested, {paid} paid, {pages} pages")?;
        let (unit, shift) = if *mapped_bytes < 1 << 20 { ("KiB", 10) } else { ("MiB", 20) };
        let Mapped { k4, m2, g1 } = self.mapped;
        writeln!(
            out,
            "mapped    {} {unit}: {k4} x 4K, {m2} x 2M, {g1} x 1G; {dirty_pages} pages dirty",
            mapped_bytes >> shift
        )?;
        write!(out, "tables    {} KiB", self.table_bytes >> 10)?;
        match mapped_bytes {
            0 => writeln!(out)?,
            _ => writeln!(out, ": {:.3}% of it", self.overhead_percent)?,
        }
        self.host(out)?;
        if let Some(nested) = &self.nested {
            nested::page(nested, out)?;
        }
        if let Some(sent) = &self.sent {
            writeln!(out, "migrated  {sent}")?;
        }
        if let Some(arrived) = &self.arrived {
            writeln!(out, "migrated  {arrived}")?;
        }
        let Self { verified_reads, corrupt_reads, unchecked_reads, .. } = self;
        writeln!(
            out,
            "checked   {verified_reads} reads right, {corrupt_reads} corrupt, {unchecked_reads} past the oracle's memory"
        )?;
        if let Some(first) = &self.first_corruption {
            writeln!(out, "CORRUPT   {first}")?;
        }
        Ok(())
    }

    /// The lines on what the host did beside the guest.
    fn host(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Ahead { frames, zeroed, direct_reclaims } = self.ahead;
        if frames > 0 {
            writeln!(out, "frames    {frames} taken, {:.1}% of them zeroed ahead", percent(zeroed, frames))?;
        }
        let Harvests { by, harvests, told_pages, lost_pages, ring_full, .. } = self.dirty_log;
        if harvests > 0 {
            writeln!(
                out,
                "log       by {by}: {told_pages} pages logged in {harvests} harvests, {lost_pages} lost; {ring_full} exits with a full ring"
            )?;
        }
        let Self { swapped_out, swapped_in, refaults, generations, .. } = self;
        if !generations.is_empty() {
            let pages: u64 = generations.iter().map(|generation| generation.anon + generation.file).sum();
            writeln!(
                out,
                "swap      {swapped_out} pages out, {swapped_in} in; {refaults} refaults; {direct_reclaims} faults made room; {pages} pages in {} generations",
                generations.len()
            )?;
        }
        Ok(())
    }
}

/// The generations of the LRU, oldest first; empty without an LRU.
fn generations<F: Format>(machine: &Machine<F>) -> Vec<Generation> {
    let Some(lru) = machine.space.lru() else { return Vec::new() };
    let all =
        lru.generations().into_iter().flat_map(|of_node| {
            let node = of_node.node.0;
            of_node.generations.into_iter().map(move |slat_mm::Generation { seq, age, anon, file }| {
                Generation { node, seq, age_ms: age.as_millis() as u64, anon, file }
            })
        });
    all.collect()
}

/// Pages of 4 KiB whose Dirty bit is set. Used where no log knows them.
fn dirty_pages<F: Format>(machine: &Machine<F>) -> u64 {
    let Some(mut idle) = Idle::take() else { return 0 };
    let mut pages = 0;
    let gfns = Span::new(Gfn(0), Gfn(machine.hvas().len() / PAGE_SIZE));
    machine.vm.memory().lockless(&mut idle).for_each(gfns, |mapping| {
        if mapping.leaf.dirty {
            pages += mapping.gfns.len();
        }
    });
    pages
}
