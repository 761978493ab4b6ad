//! The sending process: memory and positions go out by `slat-migrate`.

use super::gate::Gate;
use super::state::Guest;
use crate::error::Error;
use crate::migration::failed;
use crate::run::args::Run;
use crate::run::events::Events;
use crate::run::guest_vm::Machine;
use crate::thread::idle;
use serde::Serialize;
use slat::{DirtyPage, DirtyWord, Format, Gfn, Hva, Idle, PAGE_SIZE, SlotId, SpaceId, Span};
use slat_migrate::{MemoryRange, MigrateError, PreCopy, Progress, Session, Source, VmLog};
use slat_mm::HostView;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::time::Duration;

/// Figures of the sender, under the keys of the report.
#[derive(Serialize)]
pub struct Sent {
    pub to: String,
    pub rounds: usize,
    /// Attempts that failed.
    pub failed_rounds: usize,
    pub bytes: u64,
    pub took_ms: f64,
    /// Downtime of the guest in milliseconds, until the receiver had everything.
    pub halted_ms: f64,
}

/// Sends the guest after it has run for a while. Returns `None` if the guest ended or was interrupted before.
pub fn send<F: Format>(
    machine: &Machine<F>,
    gate: &Gate,
    run: &Run,
    runs: u64,
    over: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Sent>, Error> {
    let Some(address) = &run.migrate.migrate_to else { return Ok(None) };
    gate.wait_for(run.migrate.migrate_after, over);
    if over() {
        return Ok(None);
    }
    let mut idle = idle()?;
    let log = VmLog::new(&machine.vm);
    let process = RandomState::new().build_hasher().finish();
    let mut source =
        Sending { machine, gate, runs, process, idle: &mut idle, log, whole: true, state: Vec::new() };
    let downtime = Duration::from_millis(run.migrate.downtime);
    let pre_copy = PreCopy::new().downtime(downtime).tries(10).auto_converge();
    // A receiver may be starting. A receiver that has closed the connection has refused the guest, or has died.
    let mut patience = Duration::from_secs(5);
    let outcome = pre_copy
        .send(&mut source, || address.connect(core::mem::replace(&mut patience, Duration::from_millis(200))));
    let outcome = match outcome {
        Ok(outcome) => outcome,
        // The guest runs here.
        Err(MigrateError::Cancelled) => return Ok(None),
        Err(error) => return Err(failed(&format!("--migrate-to {address}: "), error)),
    };
    gate.leave();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Some(Sent {
        to: address.to_string(),
        rounds: outcome.rounds.len(),
        failed_rounds: outcome.rounds.iter().filter(|round| !round.received).count(),
        bytes: outcome.rounds.iter().map(|round| round.sent.bytes).sum(),
        took_ms: ms(outcome.total),
        halted_ms: ms(outcome.halted),
    }))
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, rounds, failed_rounds, bytes, took_ms, halted_ms } = self;
        let mib = bytes >> 20;
        write!(
            f,
            "to {to}: {mib} MiB in {rounds} rounds, {failed_rounds} of them failed, in {took_ms:.0} ms"
        )?;
        write!(f, "; downtime {halted_ms:.1} ms")
    }
}

struct Sending<'m, F: Format> {
    machine: &'m Machine<F>,
    gate: &'m Gate,
    runs: u64,
    process: u64,
    idle: &'m mut Idle,
    log: VmLog<'m, F, HostView<Option<Events>>>,
    /// No part of the log was harvested.
    whole: bool,
    /// The positions at the last harvest.
    state: Vec<u8>,
}

/// Frames per range: `slat-migrate` takes fewer than 2³².
const RANGE: u64 = 1 << 31;

/// The slot of the positions' range, after those of the memory.
fn positions_in(memory: u64) -> SlotId {
    SlotId((memory / PAGE_SIZE).div_ceil(RANGE) as u32)
}

/// The ranges of a machine with this much memory: the memory, and the positions behind it.
pub fn ranges(memory: u64, vcpus: u32) -> Vec<MemoryRange> {
    let pages = memory / PAGE_SIZE;
    let starts = (0..pages).step_by(RANGE as usize);
    let mut spans: Vec<_> =
        starts.map(|start| Span::new(Gfn(start), Gfn((start + RANGE).min(pages)))).collect();
    spans.push(Span::sized(Gfn(pages), Guest::pages(memory, vcpus)));
    (0..).zip(spans).map(|(slot, gfns)| MemoryRange { slot: SlotId(slot), gfns }).collect()
}

impl<F: Format> Sending<'_, F> {
    /// The memslots now. More are placed while the guest runs.
    fn slots(&mut self) -> Vec<SlotId> {
        self.machine.vm.memory().snapshot(self.idle).iter().map(|slot| slot.id).collect()
    }
}

impl<F: Format> Source for Sending<'_, F> {
    type Error = Error;

    fn ranges(&self) -> Vec<MemoryRange> {
        ranges(self.machine.memory(), self.machine.vcpus)
    }

    fn session(&mut self) -> &mut Session {
        self.log.session()
    }

    /// Does nothing: each memslot logs from its first page on, so the first harvest has all written pages. Other pages
    /// need not be read and sent.
    fn mark_all(&mut self) -> Result<(), Error> {
        let slots = self.slots();
        if std::mem::replace(&mut self.whole, false) {
            return Ok(self.log.watch(slots)?);
        }
        Ok(self.log.mark_all(self.idle, slots)?)
    }

    fn harvest(&mut self) -> Result<Vec<DirtyWord>, Error> {
        // Includes the memslots placed since the last call.
        let slots = self.slots();
        self.log.watch(slots)?;
        let mut words = self.machine.harvesting(|| self.log.harvest(self.idle))?;
        // The memslots are regions; the ranges are by frames.
        for DirtyWord { first, .. } in &mut words {
            (first.slot, first.page) = (SlotId((first.gfn.0 / RANGE) as u32), first.gfn.0 % RANGE);
        }
        let (placed, positions) = (self.machine.placed(), self.gate.positions());
        self.state = Guest { runs: self.runs, process: self.process, placed, positions }.encode();
        let first = self.machine.memory() / PAGE_SIZE;
        let pages = self.state.len() as u64 / PAGE_SIZE;
        for page in (0..pages).step_by(64) {
            let (space, slot, gfn) = (SpaceId(0), positions_in(self.machine.memory()), Gfn(first + page));
            let bits = u64::MAX >> (64 - (pages - page).min(64));
            words.push(DirtyWord { first: DirtyPage { space, slot, page, gfn, hva: Hva(0) }, bits });
        }
        Ok(words)
    }

    fn commit(&mut self) {
        self.log.commit();
    }

    fn give_back(&mut self) {
        self.log.give_back();
    }

    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), Error> {
        if first.slot == positions_in(self.machine.memory()) {
            contents.copy_from_slice(&self.state[(first.page * PAGE_SIZE) as usize..][..contents.len()]);
            Ok(())
        } else {
            Ok(self.machine.space.read(self.idle, first.hva, contents)?)
        }
    }

    fn halt(&mut self) -> Result<(), Error> {
        self.gate.halt();
        Ok(())
    }

    fn resume(&mut self) {
        self.gate.resume();
    }

    fn slow_down(&mut self, percent: u8) {
        self.gate.slow_down(percent);
    }

    fn progress(&mut self, progress: Progress) -> ControlFlow<()> {
        // The last round ends soon; then the guest is complete at the receiver.
        if !progress.last && crate::interrupt::asked() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
