//! The checks. ckb-vm's own flat memory is the oracle: each register, byte, flag and cycle must be the same.

use crate::running_program::{End, Flat, Guest, Runs, Sparse, State};
use crate::slat_memory::SlatMemory;
use crate::snapshot::Snapshot;
use ckb_vm::memory::FLAG_DIRTY;
use ckb_vm::snapshot::{make_snapshot, resume};
use ckb_vm::{Bytes, CoreMachine, Error, Memory, SupportMachine};
use slat::Idle;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// A check's result: a line of figures, or the difference that it found.
pub type Checked = Result<String, String>;

/// A program, its argument, and its end state on ckb-vm's flat memory.
pub struct Program {
    pub name: String,
    pub elf: Bytes,
    pub which: u64,
    end: End,
    state: State,
    dirty: Vec<u64>,
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn text(error: Error) -> String {
    error.to_string()
}

impl Program {
    /// Reads the program, and runs it on the oracle.
    pub fn read(folder: &Path, name: &str, which: u64) -> Result<Self, String> {
        let path = folder.join(name);
        let elf = Bytes::from(std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?);
        let mut guest = Guest::<Flat>::load(&elf, which).map_err(text)?;
        let end = guest.run_until(u64::MAX);
        let (state, dirty) = (guest.state().map_err(text)?, guest.dirty().map_err(text)?);
        Ok(Self { name: name.into(), elf, which, end, state, dirty })
    }

    /// The number of cycles that the program takes.
    pub fn cycles(&self) -> u64 {
        self.state.cycles
    }

    /// A machine at the program's beginning.
    pub fn load<M: Runs>(&self) -> Result<Guest<M>, String> {
        Guest::load(&self.elf, self.which).map_err(text)
    }

    /// Checks that a guest ended in the oracle's state.
    fn ended<M: Runs>(&self, guest: &mut Guest<M>, end: &End) -> Result<(), String> {
        if *end != self.end {
            return Err(format!("ended by {end:?}, not {:?}", self.end));
        }
        same(&guest.state().map_err(text)?, &self.state)
    }

    /// Runs the program to its end on ckb-vm's sparse memory and on slat. State and dirty pages must be the same.
    pub fn runs(&self) -> Checked {
        let mut sparse = self.load::<Sparse>()?;
        let end = sparse.run_until(u64::MAX);
        self.ended(&mut sparse, &end).map_err(|error| format!("sparse memory: {error}"))?;
        let mut guest = self.load::<SlatMemory>()?;
        let end = guest.run_until(u64::MAX);
        self.ended(&mut guest, &end)?;
        let dirty = guest.dirty().map_err(text)?;
        // A store across two pages that fails on the second one has made the first page dirty without a write.
        let more =
            if matches!(end, End::Failed(_)) { dirty.len() - self.dirty.len().min(dirty.len()) } else { 0 };
        if more > 1 || more == 0 && dirty != self.dirty || !self.dirty.iter().all(|page| dirty.contains(page))
        {
            return Err(format!("the log has {} pages, ckb-vm {}", dirty.len(), self.dirty.len()));
        }
        Ok(format!("{:?} after {} cycles, {} pages dirty", self.end, self.cycles(), dirty.len()))
    }

    /// Stops the program again and again, harvests the pages written since the last stop, and lets a fresh machine go
    /// on from there.
    pub fn stops(&self, times: u64) -> Checked {
        let (mut guest, mut oracle) = (self.load::<SlatMemory>()?, self.load::<Flat>()?);
        let (mut snapshot, mut harvested) = (Snapshot::default(), 0);
        for time in 1..=times {
            let cycles = self.cycles() * time / (times + 1);
            if (guest.run_until(cycles), oracle.run_until(cycles)) != (End::Stopped, End::Stopped) {
                return Err("it does not stop where it should".into());
            }
            harvested += snapshot.stop(&mut guest.machine).map_err(text)?;
            same(&guest.state().map_err(text)?, &oracle.state().map_err(text)?)?;
            self.goes_on(&snapshot, time)?;
        }
        let end = guest.run_until(u64::MAX);
        self.ended(&mut guest, &end)?;
        Ok(format!("{times} stops, {harvested} pages harvested, the same end from each"))
    }

    /// Checks that a fresh machine that goes on from a snapshot ends in the oracle's state.
    fn goes_on(&self, snapshot: &Snapshot, time: u64) -> Result<(), String> {
        let mut fresh = Guest::<SlatMemory>::empty();
        snapshot.restore(&mut fresh.machine).map_err(text)?;
        let end = fresh.run_until(u64::MAX);
        self.ended(&mut fresh, &end).map_err(|error| format!("restored after stop {time}: {error}"))
    }

    /// Another thread harvests while the guest runs. The guest stops near its end, and a fresh machine goes on from
    /// there.
    pub fn harvested_meanwhile(&self) -> Checked {
        let mut guest = self.load::<SlatMemory>()?;
        let (vm, stopped) = (guest.machine.memory().vm.clone(), AtomicBool::new(false));
        let (mut snapshot, harvests, pages) = thread::scope(|scope| {
            let harvester = scope.spawn(|| {
                let mut idle = Idle::take().ok_or("no token")?;
                let (mut snapshot, mut harvests, mut pages) = (Snapshot::default(), 0, 0);
                while !stopped.load(Relaxed) {
                    pages += snapshot.harvest(&vm, &mut idle).map_err(|error| error.to_string())?;
                    harvests += 1;
                    thread::sleep(std::time::Duration::from_micros(200));
                }
                Ok::<_, String>((snapshot, harvests, pages))
            });
            let end = guest.run_until(self.cycles() * 7 / 8);
            stopped.store(true, Relaxed);
            let harvested = harvester.join().map_err(|_| "the harvester panicked")??;
            if end == End::Stopped { Ok(harvested) } else { Err(format!("it ended by {end:?}")) }
        })?;
        let last = snapshot.stop(&mut guest.machine).map_err(text)?;
        self.goes_on(&snapshot, 1)?;
        Ok(format!("{harvests} harvests beside it, {pages} pages, and {last} at the stop"))
    }

    /// Takes ckb-vm's own snapshots, which read dirty flags, from slat's log.
    pub fn by_flags(&self) -> Checked {
        let (mut guest, mut oracle) = (self.load::<SlatMemory>()?, self.load::<Flat>()?);
        clean(guest.machine.memory_mut()).map_err(text)?;
        clean(oracle.machine.memory_mut()).map_err(text)?;
        let ends = (guest.run_until(self.cycles() / 2), oracle.run_until(self.cycles() / 2));
        let taken = make_snapshot(&mut guest.machine).map_err(text)?;
        let expected = make_snapshot(&mut oracle.machine).map_err(text)?;
        if ends != (End::Stopped, End::Stopped) || taken.page_indices != expected.page_indices {
            return Err("other pages are in the snapshot".into());
        }
        let mut fresh = self.load::<SlatMemory>()?;
        resume(&mut fresh.machine, &taken).map_err(text)?;
        fresh.machine.set_cycles(guest.machine.cycles());
        let end = fresh.run_until(u64::MAX);
        self.ended(&mut fresh, &end)?;
        Ok(format!("{} pages, as with flat memory; the same end", taken.pages.len()))
    }
}

fn clean(memory: &mut impl Memory) -> Result<(), Error> {
    (0..memory.memory_pages() as u64).try_for_each(|page| memory.clear_flag(page, FLAG_DIRTY))
}

fn same(state: &State, expected: &State) -> Result<(), String> {
    state.differs(expected).map_or(Ok(()), |what| Err(format!("differs from ckb-vm's flat memory: {what}")))
}
