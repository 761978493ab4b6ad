//! The receiving process: rounds of pages fill its memory while its vCPUs recall their traces.

use super::address::Listener;
use super::send::ranges;
use super::state::{Guest, Position};
use crate::error::Error;
use crate::run::machine::Machine;
use crate::thread::idle;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use slat::{Format, Gfn, Idle, PAGE_SIZE, Span};
use slat_migrate::{MemoryRange, MigrateError, Receiver, Target};
use slat_mm::MmError;
use std::fmt;
use std::time::{Duration, Instant};

/// Figures of the receiver, under the keys of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Arrived {
    pub at: String,
    /// Nanoseconds from the last round until the last vCPU ran.
    pub resumed_ms: f64,
    /// Pages compared byte by byte after the vCPUs' traces ended.
    pub compared_pages: u64,
    /// Of these, pages with a wrong byte.
    pub wrong_pages: u64,
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, resumed_ms, compared_pages, wrong_pages } = self;
        write!(f, "from {at}: ran {resumed_ms:.1} ms after it was complete")?;
        write!(f, "; {compared_pages} pages compared in the end, {wrong_pages} wrong")
    }
}

/// The state of the arriving guest.
#[derive(Default)]
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
    resumed: Duration,
    compared: u64,
    wrong: u64,
}

impl Arrivals {
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
        state.resumed = state.complete.map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// Adds pages that were compared at the end, and how many of them were wrong.
    pub fn compared(&self, [pages, wrong]: [u64; 2]) {
        let mut state = self.state.lock();
        state.compared += pages;
        state.wrong += wrong;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// The figures for the report.
    pub fn report(&self, at: String) -> Arrived {
        let state = self.state.lock();
        let resumed_ms = state.resumed.as_secs_f64() * 1e3;
        Arrived { at, resumed_ms, compared_pages: state.compared, wrong_pages: state.wrong }
    }
}

/// Receives the guest that replays `runs` from the first process that connects.
pub fn arrive<F: Format>(
    machine: &Machine<F>,
    listener: &Listener,
    runs: u64,
    arrivals: &Arrivals,
) -> Result<(), Error> {
    let received = receive(machine, listener, runs, arrivals);
    arrivals.change(|state| match received {
        Ok(()) => state.complete = Some(Instant::now()),
        Err(_) => state.failed = true,
    });
    received
}

fn receive<F: Format>(
    machine: &Machine<F>,
    listener: &Listener,
    runs: u64,
    arrivals: &Arrivals,
) -> Result<(), Error> {
    let own = ranges(machine.memory(), machine.vcpus);
    let most = own.iter().map(|range| range.gfns.len() * PAGE_SIZE).sum();
    let target =
        Arriving { machine, runs, arrivals, own, idle: idle()?, state: Vec::new(), placed: 0, wanted: 0 };
    let mut receiver = Receiver::new(target, most);
    receiver.receive(|| listener.accept()).map_err(|error| match error {
        MigrateError::Guest(error) => error,
        error => Error::Machine(format!("--migrate-from: {error}")),
    })?;
    receiver.into_target().complete()
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
    /// Number of regions placed here, and number of regions of the guest.
    placed: u64,
    wanted: u64,
}

impl<F: Format> Arriving<'_, F> {
    /// The bytes of the state that these frames hold; `None` if the frames are guest memory.
    fn of_state(&mut self, gfns: Span<Gfn>) -> Option<&mut [u8]> {
        let first = self.machine.memory() / PAGE_SIZE;
        let at = gfns.start.0.checked_sub(first)? * PAGE_SIZE;
        self.state.get_mut(at as usize..)?.get_mut(..(gfns.len() * PAGE_SIZE) as usize)
    }

    /// Fills guest memory. From then on its regions have places.
    fn fill(
        &mut self,
        gfns: Span<Gfn>,
        fill: impl FnOnce(&mut Idle, &Machine<F>, Span<slat::Hva>) -> Result<(), MmError>,
    ) -> Result<(), Error> {
        let hvas = Machine::<F>::hvas_of(gfns);
        self.place(Machine::<F>::regions_below(gfns.end))?;
        fill(&mut self.idle, self.machine, hvas)?;
        if self.machine.logs {
            // This is a write of the host, not of the guest.
            self.machine.vm.mark_dirty(hvas);
        }
        Ok(())
    }

    fn place(&mut self, regions: u64) -> Result<(), Error> {
        while self.placed < regions {
            self.machine.region(&mut self.idle, self.placed)?;
            self.placed += 1;
            self.machine.set_placed(self.placed);
        }
        Ok(())
    }

    /// Stores a part of the positions. They count when all parts are here.
    fn update(&mut self) -> Result<(), Error> {
        let Some(guest) = Guest::decode(&self.state) else { return Ok(()) };
        if guest.runs != self.runs || guest.positions.len() != self.machine.vcpus as usize {
            return Err(Error::Usage(
                "--migrate-from: the guest that comes replays other traces, or so many vCPUs: give both runs the same".into(),
            ));
        }
        self.wanted = guest.placed;
        self.arrivals.change(|state| {
            state.positions = guest.positions;
            state.updates += 1;
        });
        Ok(())
    }

    /// Lets the vCPUs run here.
    fn complete(mut self) -> Result<(), Error> {
        self.place(self.wanted)
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
        if let Some(state) = self.of_state(gfns) {
            state.copy_from_slice(contents);
            return self.update();
        }
        self.fill(gfns, |idle, machine, hvas| machine.space.write(idle, hvas.start, contents))
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Error> {
        if let Some(state) = self.of_state(gfns) {
            state.fill(0);
            return self.update();
        }
        self.fill(gfns, |idle, machine, hvas| machine.space.dontneed(idle, hvas))
    }
}
