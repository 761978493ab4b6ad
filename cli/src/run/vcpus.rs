//! One thread per vCPU: takes batches, places regions, runs the guest.

use super::feed::Jobs;
use super::figures::VcpuCounts;
use super::machine::Machine;
use super::migrate::{Moves, Position, Recalled, Turn, compare, recall};
use super::nested::{Left, NestedArgs, Runs, Wires};
use super::progress::Bar;
use super::watch::{Live, VcpuLive};
use crate::error::Error;
use crate::thread::idle;
use hdrhistogram::Histogram;
use slat::{Gpa, Host, Idle, VcpuId};
use slat_vcpu::Cpu;
use slat_vcpu::guest::{Findings, Replay, Want};
use slat_vcpu::nested::{L1, Nest};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

/// Figures of all vCPUs together.
#[derive(Default)]
pub struct Outcome {
    pub accesses: u64,
    pub findings: Findings,
    pub tlb_hits: u64,
    pub tlb_misses: u64,
    /// Times that a vCPU found its ring full.
    pub ring_full: u64,
    /// Nanoseconds of each fault; `None` before the first vCPU has ended.
    pub fault_ns: Option<Histogram<u64>>,
    pub interrupted: bool,
}

/// The machine that the vCPUs run on.
pub struct Setup<'m, F: Nest> {
    pub machine: &'m Machine<F>,
    /// L1, between the machine and the guest that replays.
    pub l1: Option<&'m L1<F>>,
    pub args: &'m NestedArgs,
}

impl<F: Nest> Setup<'_, F> {
    /// Places the next region of the guest that replays.
    fn place(&self, idle: &mut Idle) -> Result<Gpa, Error> {
        match self.l1 {
            Some(_) => self.machine.place_inside(),
            None => self.machine.place(idle),
        }
    }
}

/// Runs all vCPUs to the end of their traces. `regions` are placed at the start. After an error the other vCPUs stop
/// at their next batch.
pub fn run_all<F: Nest>(
    setup: &Setup<'_, F>,
    jobs: Vec<Jobs>,
    regions: &[u64],
    (bar, live): (&Bar, &Live),
    moves: Moves<'_>,
    interrupted: &AtomicBool,
) -> Result<Outcome, Error> {
    let failed = &AtomicBool::new(false);
    let stop = &move || failed.load(Relaxed) || interrupted.load(Relaxed);
    let mut all = Outcome::default();
    let mut first_error = None;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(jobs)
            .map(|(id, jobs)| {
                crate::thread::start(scope, move || {
                    let result = run_one(setup, VcpuId(id), jobs, regions, (bar, live.vcpu(id)), moves, stop);
                    if result.is_err() {
                        failed.store(true, Relaxed);
                    }
                    result
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(Ok(one)) => all.add(one),
                Ok(Err(error)) => first_error = first_error.take().or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all.interrupted = interrupted.load(Relaxed);
    first_error.map_or(Ok(all), Err)
}

fn run_one<F: Nest>(
    setup: &Setup<'_, F>,
    id: VcpuId,
    jobs: Jobs,
    regions: &[u64],
    (bar, live): (&Bar, &VcpuLive),
    moves: Moves<'_>,
    stop: &impl Fn() -> bool,
) -> Result<Outcome, Error> {
    let &Setup { machine, l1, args } = setup;
    let mut idle = idle()?;
    let vcpu = machine.vm.vcpu(id).ok_or_else(|| Error::Machine(format!("vCPU {} is in use", id.0)))?;
    let mut runs = Runs::new(Cpu::new(vcpu, machine.window()), id, l1, args);
    let mut wires = Wires { machine, id, ring_full: 0 };
    let mut outcome = Outcome::default();
    let mut turn = Turn::new(moves.gate, id.0);
    let mut recalled = None;
    if let Some(arrivals) = moves.arrivals {
        recalled = recall(machine, id.0, &jobs, arrivals, stop);
        if recalled.is_none() {
            return Ok(outcome);
        }
    }
    let first = recalled.as_ref().map_or(0, |recalled| recalled.job);
    for (job, batches) in (0..).zip(jobs).skip(first as usize) {
        let Recalled { mut replay, batches: mut made, .. } = match recalled.take() {
            Some(recalled) => recalled,
            None => fresh(setup, &mut idle, job, regions)?,
        };
        let (mut reported, mut gone, mut is_wrong) = (0, false, false);
        loop {
            if let Left::Wrong = runs.run(&mut idle, &mut wires, &mut replay)? {
                is_wrong = true;
                break;
            }
            match replay.wants() {
                Want::Region(addr) => replay.layout.place(addr, setup.place(&mut idle)?),
                Want::Batch => {
                    bar.add(replay.accesses - reported);
                    live.set(counts(runs.cpu(), outcome.accesses + replay.accesses));
                    reported = replay.accesses;
                    turn.rest(|| Position { job, batches: made, regions: replay.layout.regions().collect() });
                    // Wakes every 100 ms to check `stop`.
                    let batch = loop {
                        match batches.recv_timeout(Duration::from_millis(100)) {
                            Err(RecvTimeoutError::Timeout) if !stop() => {}
                            Ok(batch) if !stop() => break Some(batch),
                            _ => break None,
                        }
                    };
                    match batch {
                        Some(batch) if turn.go() => {
                            replay.feed(batch);
                            made += 1;
                        }
                        // The guest has left: its vCPU continues in the other process.
                        Some(_) => {
                            gone = true;
                            break;
                        }
                        None => break,
                    }
                }
            }
        }
        outcome.accesses += replay.accesses;
        outcome.findings = outcome.findings.with(replay.findings);
        if gone || is_wrong || stop() {
            break;
        }
        if let Some(arrivals) = moves.arrivals {
            arrivals.compared(compare(machine, &mut idle, &replay)?);
        }
    }
    outcome.ring_full = wires.ring_full;
    (outcome.tlb_hits, outcome.tlb_misses) = runs.cpu().tlb_counts();
    outcome.fault_ns = Some(runs.cpu().fault_ns.clone());
    Ok(outcome)
}

/// A trace from its beginning.
fn fresh<F: Nest>(
    setup: &Setup<'_, F>,
    idle: &mut Idle,
    job: u64,
    regions: &[u64],
) -> Result<Recalled, Error> {
    let mut replay = Replay::new(setup.machine.oracle_pages());
    for &region in regions {
        replay.layout.place(region, setup.place(idle)?);
    }
    Ok(Recalled { job, batches: 0, replay })
}

/// The counters of a vCPU after this many accesses.
fn counts<F: slat::Format, H: Host>(cpu: &Cpu<'_, F, H>, accesses: u64) -> VcpuCounts {
    let (hits, misses) = cpu.tlb_counts();
    VcpuCounts { accesses, faults: cpu.fault_ns.len(), hits, misses }
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.accesses += other.accesses;
        self.findings = self.findings.with(other.findings);
        self.tlb_hits += other.tlb_hits;
        self.tlb_misses += other.tlb_misses;
        self.ring_full += other.ring_full;
        self.fault_ns = match (self.fault_ns.take(), other.fault_ns) {
            (Some(mut all), Some(one)) => {
                // Both histograms have the same bounds, so adding cannot fail.
                let _ = all.add(one);
                Some(all)
            }
            (all, one) => all.or(one),
        };
    }
}
