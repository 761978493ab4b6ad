//! The receiving process: rounds of pages fill its memory while its vCPUs recall their traces.

use super::send::ranges;
use super::state::{Guest, Position};
use crate::error::Error;
use crate::migration::{failed, store};
use crate::run::address::{Address, Listener};
use crate::run::guest_vm::Machine;
use crate::thread::idle;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use slat::{Format, Gfn, Hva, Idle, PAGE_SIZE, Span};
use slat_migrate::{MemoryRange, Receiver, Target, WireError};
use std::fmt;
use std::time::{Duration, Instant};

/// Figures of the receiver, under the keys of the report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Arrived {
    pub at: String,
    /// Milliseconds from the last round until the last vCPU ran.
    pub resumed_ms: f64,
    /// Pages compared byte by byte after the vCPUs' traces ended.
    pub compared_pages: u64,
    /// Of these, pages with a wrong byte.
    pub wrong_pages: u64,
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, resumed_ms, compared_pages, wrong_pages } = self;
        write!(f, "from {at}: resumed {resumed_ms:.1} ms after it was complete")?;
        write!(f, "; {compared_pages} pages compared at the end, {wrong_pages} wrong")
    }
}

/// The state of the arriving guest.
pub struct Arrivals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The position of each vCPU in the last round.
    positions: Vec<Position>,
    /// Number of rounds that carried positions.
    updates: u64,
    /// Time at which the guest was complete here.
    complete: Option<Instant>,
    failed: bool,
    arrived: Arrived,
}

impl Arrivals {
    /// The guest that is to arrive at this address.
    pub fn new(at: &Address) -> Self {
        let arrived = Arrived { at: at.to_string(), ..Arrived::default() };
        Self { state: Mutex::new(State { arrived, ..State::default() }), changed: Condvar::new() }
    }

    /// Waits for a position of vCPU `id` newer than `seen`. Returns the position, and whether the guest is complete;
    /// `None` if no guest arrives.
    pub fn next(&self, vcpu: u32, seen: &mut u64) -> Option<(Position, bool)> {
        let mut state = self.state.lock();
        while state.updates == *seen && state.complete.is_none() && !state.failed {
            self.changed.wait_for(&mut state, Duration::from_millis(100));
            if crate::interrupt::asked() {
                return None;
            }
        }
        *seen = state.updates;
        let position = state.positions.get(vcpu as usize).cloned().unwrap_or_default();
        (!state.failed).then_some((position, state.complete.is_some()))
    }

    /// Reports that a vCPU runs.
    pub fn resumed(&self) {
        let mut state = self.state.lock();
        state.arrived.resumed_ms = state.complete.map_or(0.0, |since| since.elapsed().as_secs_f64() * 1e3);
    }

    /// Adds pages that were compared at the end, and how many of them were wrong.
    pub fn compared(&self, [pages, wrong]: [u64; 2]) {
        let arrived = &mut self.state.lock().arrived;
        arrived.compared_pages += pages;
        arrived.wrong_pages += wrong;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// The figures for the report.
    pub fn report(&self) -> Arrived {
        self.state.lock().arrived.clone()
    }
}

/// Receives the guest that replays `runs` from the first process that connects.
pub fn arrive<F: Format>(
    machine: &Machine<F>,
    listener: &Listener,
    runs: u64,
    arrivals: &Arrivals,
) -> Result<(), Error> {
    let receive = || {
        let own = ranges(machine.memory(), machine.vcpus);
        let target =
            Arriving { machine, runs, arrivals, own, idle: idle()?, state: Vec::new(), process: None };
        // `create` compares the memory, and says which flags differ.
        let received = Receiver::new(target, u64::MAX).receive(|| listener.accept());
        received.map_err(|error| failed("--migrate-from: ", error))
    };
    let received = receive();
    arrivals.change(|state| match received {
        Ok(()) => state.complete = Some(Instant::now()),
        Err(_) => state.failed = true,
    });
    received
}

struct Arriving<'m, F: Format> {
    machine: &'m Machine<F>,
    runs: u64,
    arrivals: &'m Arrivals,
    /// The memory ranges of this machine.
    own: Vec<MemoryRange>,
    idle: Idle,
    /// The positions as bytes.
    state: Vec<u8>,
    /// The process that the guest comes from.
    process: Option<u64>,
}

impl<F: Format> Arriving<'_, F> {
    /// The bytes of the state that these frames hold; `None` if the frames are guest memory.
    fn of_state(&mut self, gfns: Span<Gfn>) -> Option<&mut [u8]> {
        let first = self.machine.memory() / PAGE_SIZE;
        let at = gfns.start.0.checked_sub(first)? * PAGE_SIZE;
        self.state.get_mut(at as usize..)?.get_mut(..(gfns.len() * PAGE_SIZE) as usize)
    }

    /// Fills guest memory, whose regions have places from then on, or a part of the positions.
    fn fill(&mut self, gfns: Span<Gfn>, contents: Option<&[u8]>) -> Result<(), Error> {
        if let Some(state) = self.of_state(gfns) {
            match contents {
                Some(contents) => state.copy_from_slice(contents),
                None => state.fill(0),
            }
            return self.update();
        }
        self.machine.place_all(&mut self.idle, Machine::<F>::regions_below(gfns.end))?;
        self.store(Machine::<F>::hvas_of(gfns), contents)
    }

    fn store(&mut self, hvas: Span<Hva>, contents: Option<&[u8]>) -> Result<(), Error> {
        Ok(store(&self.machine.space, &self.machine.vm, &mut self.idle, hvas, contents)?)
    }

    /// Takes the positions over. They count when all parts are here.
    fn update(&mut self) -> Result<(), Error> {
        let Some(guest) = Guest::decode(&self.state) else { return Ok(()) };
        if guest.runs != self.runs || guest.positions.len() != self.machine.vcpus as usize {
            return Err(Error::Usage(
                "--migrate-from: the guest that comes replays other traces, or so many vCPUs: give both runs the same".into(),
            ));
        }
        // The vCPUs have recalled their traces as far as that guest was, and cannot go back.
        if *self.process.get_or_insert(guest.process) != guest.process {
            return Err(Error::Usage(
                "--migrate-from: a part of another process's guest came before: start this run again to receive this one".into(),
            ));
        }
        self.machine.place_all(&mut self.idle, guest.placed)?;
        self.arrivals.change(|state| {
            state.positions = guest.positions;
            state.updates += 1;
        });
        Ok(())
    }
}

impl<F: Format> Target for Arriving<'_, F> {
    type Error = Error;

    fn create(&mut self, ranges: &[MemoryRange]) -> Result<(), Error> {
        if ranges != self.own {
            return Err(Error::Usage(
                "--migrate-from: the guest that comes has other memory, or other vCPUs: give both runs the same -m and -v".into(),
            ));
        }
        let state = ranges.last().map_or(0, |range| range.gfns.len() * PAGE_SIZE);
        self.state = vec![0; state as usize];
        Ok(())
    }

    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Error> {
        self.fill(gfns, Some(contents))
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Error> {
        if self.of_state(gfns).is_none() {
            // Memory behind the last region was never written.
            let placed = self.machine.hvas().end;
            let hvas = Machine::<F>::hvas_of(gfns);
            let there = Span::new(hvas.start, hvas.end.min(placed));
            return if there.is_empty() { Ok(()) } else { self.store(there, None) };
        }
        self.fill(gfns, None)
    }

    fn refused(&mut self, why: &WireError) {
        eprintln!("slat: --migrate-from refused a connection, and waits for another: {why}");
    }
}
