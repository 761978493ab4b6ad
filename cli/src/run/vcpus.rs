//! One thread per vCPU: takes batches, places regions, runs the guest.

use super::args::NestedArgs;
use super::feed::Jobs;
use super::guest_vm::Machine;
use super::migrate::{Moves, Position, Recalled, Turn, compare, recall};
use super::nested::{Runs, Wires};
use crate::error::Error;
use crate::figures::{TlbCounts, VcpuCounts};
use crate::live::Live;
use crate::thread::{idle, joined};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use slat::{Gpa, Host, Idle, VcpuId};
use slat_vcpu::Cpu;
use slat_vcpu::guest::{Findings, Replay, Want};
use slat_vcpu::nested::{Ended, L1, Nest};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

/// Figures of all vCPUs together.
#[derive(Default)]
pub struct Outcome {
    pub accesses: u64,
    pub findings: Findings,
    pub tlb: TlbCounts,
    /// Times that a vCPU found its ring full.
    pub ring_full: u64,
    /// Nanoseconds of each fault; `None` before the first vCPU has ended.
    pub fault_ns: Option<Histogram<u64>>,
    pub interrupted: bool,
}

/// The parts of a run that all vCPU threads share.
pub struct Setup<'m, F: Nest> {
    pub machine: &'m Machine<F>,
    /// L1, between the machine and the guest that replays.
    pub l1: Option<&'m L1<F>>,
    pub args: &'m NestedArgs,
    /// The first addresses of the traced regions that are placed at the start.
    pub regions: &'m [u64],
    pub bar: &'m ProgressBar,
    pub live: &'m Live,
    pub moves: Moves<'m>,
}

impl<F: Nest> Setup<'_, F> {
    /// Places the next region of the guest that replays.
    fn place(&self, idle: &mut Idle) -> Result<Gpa, Error> {
        match self.l1 {
            Some(_) => self.machine.place_inside(),
            None => self.machine.place(idle),
        }
    }

    /// A trace from its beginning.
    fn fresh(&self, idle: &mut Idle, job: u64) -> Result<Recalled, Error> {
        let mut replay = Replay::new(self.machine.oracle_pages());
        for &region in self.regions {
            replay.layout.place(region, self.place(idle)?);
        }
        Ok(Recalled { job, batches: 0, replay })
    }

    /// Runs all vCPUs to the end of their traces. After an error the other vCPUs stop at their next batch.
    pub fn run_all(&self, jobs: Vec<Jobs>, interrupted: &AtomicBool) -> Result<Outcome, Error> {
        let failed = &AtomicBool::new(false);
        let stop = &move || failed.load(Relaxed) || interrupted.load(Relaxed);
        let mut all = Outcome::default();
        let mut first_error = None;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(jobs)
                .map(|(id, jobs)| {
                    crate::thread::start(scope, move || {
                        let result = self.run_one(VcpuId(id), jobs, stop);
                        if result.is_err() {
                            failed.store(true, Relaxed);
                        }
                        result
                    })
                })
                .collect();
            for thread in threads {
                match joined(thread.join()) {
                    Ok(one) => all.add(one),
                    Err(error) => first_error = first_error.take().or(Some(error)),
                }
            }
        });
        all.interrupted = interrupted.load(Relaxed);
        first_error.map_or(Ok(all), Err)
    }

    fn run_one(&self, id: VcpuId, jobs: Jobs, stop: &impl Fn() -> bool) -> Result<Outcome, Error> {
        let &Self { machine, moves, .. } = self;
        let mut idle = idle()?;
        let vcpu = machine.vm.vcpu(id).ok_or_else(|| Error::Machine(format!("vCPU {} is in use", id.0)))?;
        let mut runs = Runs::new(Cpu::new(vcpu, machine.window()), id, self.l1, self.args);
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
                None => self.fresh(&mut idle, job)?,
            };
            let mut reported = 0;
            let ended = loop {
                if runs.run(&mut idle, &mut wires, &mut replay)? == Ended::Wrong {
                    break true;
                }
                match replay.wants() {
                    Want::Region(addr) => replay.layout.place(addr, self.place(&mut idle)?),
                    Want::Batch => {
                        self.bar.inc(replay.accesses - reported);
                        self.live.set(id, counts(runs.cpu(), outcome.accesses + replay.accesses));
                        reported = replay.accesses;
                        turn.rest(|| Position {
                            job,
                            batches: made,
                            regions: replay.layout.regions().collect(),
                        });
                        // Wakes every 100 ms to check `stop`.
                        let batch = loop {
                            match batches.recv_timeout(Duration::from_millis(100)) {
                                Err(RecvTimeoutError::Timeout) if !stop() => {}
                                batch => break batch.ok().filter(|_| !stop()),
                            }
                        };
                        let Some(batch) = batch else { break false };
                        if !turn.go() {
                            // The guest has left: its vCPU continues in the other process.
                            break true;
                        }
                        replay.feed(batch);
                        made += 1;
                    }
                }
            };
            outcome.accesses += replay.accesses;
            outcome.findings = outcome.findings.with(replay.findings);
            if ended || stop() {
                break;
            }
            if let Some(arrivals) = moves.arrivals {
                arrivals.compared(compare(machine, &mut idle, &replay)?);
            }
        }
        outcome.ring_full = wires.ring_full;
        (outcome.tlb.hits, outcome.tlb.misses) = runs.cpu().tlb_counts();
        outcome.fault_ns = Some(runs.cpu().fault_ns.clone());
        Ok(outcome)
    }
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
        self.tlb.hits += other.tlb.hits;
        self.tlb.misses += other.tlb.misses;
        self.ring_full += other.ring_full;
        match (&mut self.fault_ns, other.fault_ns) {
            // Both histograms have the same bounds, so adding cannot fail.
            (Some(all), Some(one)) => drop(all.add(one)),
            (none, one) => *none = none.take().or(one),
        }
    }
}
