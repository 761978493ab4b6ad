//! Runs that explore: the caller chooses how long each access is held up, and so the order; and looks on.
//!
//! [`run`](crate::run) asks what a program costs. [`run`] here asks whether it is right: cache lines have no place and no
//! price, no CPU runs ahead of another, and before each access to shared memory the [`Explorer`] says for how long this CPU is
//! held up. When its turn has come, the explorer sees the access, just before it is made: what it finds in memory is what
//! all accesses before have left. It may end the run there.
//!
//! A run that is ended, or in which every CPU waits for another, leaves its coroutines where they are: their stacks are
//! leaked, and nothing on them is dropped. What they borrowed is not used again.
//!
//! ```
//! use slat_machine::explore::{Act, Ended, Explorer, run};
//! use slat_machine::{AtomicU64, Costs, Job, Ordering::Relaxed};
//! use std::cell::Cell;
//!
//! /// Holds up CPU 1, and counts.
//! struct Late(Cell<u64>);
//! impl Explorer for Late {
//!     fn delay(&self, act: Act) -> u64 {
//!         if act.cpu == 1 { 1_000_000 } else { 1000 }
//!     }
//!     fn sees(&self, _: Act) -> bool {
//!         self.0.set(self.0.get() + 1);
//!         true
//!     }
//! }
//! let (word, late) = (AtomicU64::new(0), Late(Cell::new(0)));
//! let set = |to| { let word = &word; Job::new("sets", move || word.store(to, Relaxed)) };
//! assert_eq!(run(&Costs::SERVER, &late, vec![set(1), set(2), set(3)]), Ended::All);
//! assert_eq!((word.free().load(Relaxed), late.0.get()), (2, 3), "the second came last");
//! ```

use crate::Costs;
use crate::cpu::{Machine, Paused, Ps, with};
pub use crate::lines::Access;
use crate::run::{Job, Running, begin, drive};
use core::mem::ManuallyDrop;
use core::panic::Location;

/// An access to shared memory that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// The CPU that makes it.
    pub cpu: u32,
    /// Of the word, in this process.
    pub address: usize,
    /// What is done to it.
    pub access: Access,
    /// Where in the program.
    pub site: &'static Location<'static>,
}

/// Chooses the schedule of a run, and looks on. Called on the CPU's own stack, between accesses: it may read all memory
/// that the CPUs share, but by plain atomics of `core`'s.
pub trait Explorer {
    /// For how long a CPU is held up before this access of its own, in picoseconds.
    fn delay(&self, act: Act) -> Ps;

    /// An access is about to be made. False ends the run.
    fn sees(&self, act: Act) -> bool;
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// All jobs have.
    All,
    /// The explorer, or a job by [`stop`], ended it.
    Stopped,
    /// Every CPU that has not ended waits for another.
    Stuck,
}

/// Each job runs on a CPU of its own, in the order that `explorer` chooses. What is not an access costs what `costs` say.
pub fn run(costs: &Costs, explorer: &dyn Explorer, jobs: Vec<Job<'_>>) -> Ended {
    // SAFETY: only the lifetime differs. The machine is dropped below, or leaked with coroutines that never run again; and
    // only a coroutine that runs calls the explorer.
    let explorer = unsafe { core::mem::transmute::<&dyn Explorer, &'static dyn Explorer>(explorer) };
    let machine = Machine::new(costs, jobs.iter().map(|job| job.vcpu)).explored_by(explorer);
    let machine = ManuallyDrop::new(Box::new(machine));
    let mut coroutines: ManuallyDrop<Vec<Option<Running>>> =
        ManuallyDrop::new(jobs.into_iter().map(|job| Some(begin(&machine, job))).collect());
    let ended = drive(&machine, &mut coroutines, |_, _| {});
    if ended == Ended::All {
        drop(ManuallyDrop::into_inner(coroutines));
        drop(ManuallyDrop::into_inner(machine));
    }
    ended
}

/// Ends the run in which it is called, and then never returns. Outside of one it does nothing.
pub fn stop() {
    with(Machine::stop);
}

/// Number of the CPU that runs; `None` outside of a run.
pub fn cpu() -> Option<u32> {
    with(Machine::me)
}

impl Machine {
    fn stop(&self) {
        self.stopped.set(true);
        loop {
            self.pause(Paused::Blocked);
        }
    }

    /// An access in a run that explores.
    pub(crate) fn explored(&self, explorer: &dyn Explorer, act: Act) {
        self.spend(explorer.delay(act));
        self.in_turn();
        if !explorer.sees(act) {
            self.stop();
        }
    }
}
