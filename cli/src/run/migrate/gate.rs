//! A gate that halts vCPUs. Each vCPU passes the gate before each batch of its trace, and rests behind it while the
//! gate is closed. While a vCPU rests, all its stores are in memory and in the dirty log, and its position is known.

use super::state::Position;
use parking_lot::{Condvar, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The gate.
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The position of each vCPU when it rested last.
    positions: Vec<Position>,
    /// Number of vCPUs that run.
    running: usize,
    halted: bool,
    /// True after the guest has left: no vCPU runs here again.
    gone: bool,
    /// The share of time that each vCPU must rest (auto-converge).
    percent: u32,
    /// Batches of all vCPUs.
    batches: u64,
}

impl Gate {
    /// A gate for `vcpus` vCPUs, all at rest.
    pub fn new(vcpus: u32) -> Self {
        let positions = vec![Position::default(); vcpus as usize];
        let state = State { positions, running: 0, halted: false, gone: false, percent: 0, batches: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Closes the gate and waits until all vCPUs rest.
    pub fn halt(&self) {
        let mut state = self.state.lock();
        state.halted = true;
        self.changed.wait_while(&mut state, |state| state.running > 0);
    }

    /// Opens the gate.
    pub fn resume(&self) {
        self.change(|state| state.halted = false);
    }

    /// Ends the run of all vCPUs here.
    pub fn leave(&self) {
        self.change(|state| state.gone = true);
    }

    /// Makes each vCPU rest for this share of its time.
    pub fn slow_down(&self, percent: u8) {
        self.change(|state| state.percent = percent.min(99).into());
    }

    /// Waits until the vCPUs have made this many batches, or until `stop`.
    pub fn wait_for(&self, batches: u64, stop: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.batches < batches && !stop() {
            self.changed.wait_for(&mut state, Duration::from_millis(100));
        }
    }

    /// The positions. A vCPU that runs is further than its position.
    pub fn positions(&self) -> Vec<Position> {
        self.state.lock().positions.clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

/// The gate for one vCPU. Dropping it makes the vCPU rest for good.
pub struct Turn<'g> {
    gate: Option<&'g Gate>,
    vcpu: usize,
    /// The time since which the vCPU runs.
    runs: Option<Instant>,
    ran: Duration,
}

impl<'g> Turn<'g> {
    /// The turn of vCPU `id`, which rests. Without a gate it is never halted.
    pub fn new(gate: Option<&'g Gate>, vcpu: u32) -> Self {
        Self { gate, vcpu: vcpu as usize, runs: None, ran: Duration::ZERO }
    }

    /// Rests at `position`.
    pub fn rest(&mut self, position: impl FnOnce() -> Position) {
        if let Some(gate) = self.gate {
            let position = position();
            gate.change(|state| {
                state.positions[self.vcpu] = position;
                state.batches += u64::from(self.runs.is_some());
            });
        }
        self.stop();
    }

    /// Waits until the vCPU may run. Returns false if the guest has left.
    pub fn go(&mut self) -> bool {
        let Some(gate) = self.gate else { return true };
        let mut state = gate.state.lock();
        if state.percent > 0 {
            let pause = self.ran * state.percent / (100 - state.percent);
            drop(state);
            sleep(pause);
            state = gate.state.lock();
        }
        gate.changed.wait_while(&mut state, |state| state.halted && !state.gone);
        if !state.gone {
            state.running += 1;
            self.runs = Some(Instant::now());
        }
        !state.gone
    }

    fn stop(&mut self) {
        if let (Some(gate), Some(since)) = (self.gate, self.runs.take()) {
            self.ran = since.elapsed();
            gate.change(|state| state.running -= 1);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::thread;

    #[test]
    fn a_halted_vcpu_makes_nothing_more_until_it_is_resumed_or_gone() {
        let (gate, made) = (&Gate::new(2), &AtomicU64::new(0));
        thread::scope(|scope| {
            for vcpu in 0..2 {
                scope.spawn(move || {
                    let mut turn = Turn::new(Some(gate), vcpu);
                    let mut batches = 0;
                    while turn.go() {
                        made.fetch_add(1, SeqCst);
                        batches += 1;
                        turn.rest(|| Position { batches, ..Position::default() });
                    }
                });
            }
            // Without this, a failed assertion would leave the vCPU threads running.
            let _leave = Leave(gate);
            let mut before = 0;
            for _ in 0..50 {
                gate.wait_for(before + 10, || false);
                gate.halt();
                let now = made.load(SeqCst);
                let batches: u64 = gate.positions().iter().map(|position| position.batches).sum();
                assert_eq!(now, batches, "the positions say what was made");
                thread::yield_now();
                assert_eq!(made.load(SeqCst), now);
                assert!(now >= before + 10);
                before = now;
                gate.resume();
            }
        });
    }

    struct Leave<'g>(&'g Gate);

    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.leave();
        }
    }

    #[test]
    fn a_vcpu_that_has_ended_is_not_waited_for() {
        let gate = Gate::new(1);
        let mut turn = Turn::new(Some(&gate), 0);
        assert!(turn.go());
        drop(turn);
        gate.halt();
    }
}
