//! Runs that test correctness: the caller chooses the delay before each access, and so the order of accesses, and
//! sees each access.
//!
//! [`run`](crate::run) computes what a program costs; this [`run`] tests whether it is right. Cache lines have no
//! place and no price, and no CPU runs ahead of another. The [`Explorer`] chooses a delay before each access to
//! shared memory. When the access's turn has come, the explorer sees it just before it is made. At that moment memory
//! contains all earlier accesses. The explorer may end the run there.
//!
//! A run that is ended, or in which every CPU waits for another, keeps its coroutines suspended. Their stacks are
//! leaked and nothing on them is dropped. Nothing that they borrowed is used again.
//!
//! ```
//! use slat_machine::explore::{Act, Ended, Explorer, run};
//! use slat_machine::{AtomicU64, Costs, Job, Ordering::Relaxed};
//! use std::cell::Cell;
//!
//! /// Delays CPU 1, and counts accesses.
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

use crate::costs::Costs;
use crate::cpu::{Machine, with};
use crate::run::{Job, Running, begin, drive};
pub use crate::schedule::{Access, Act, Ended, Explorer};
use core::mem::ManuallyDrop;

/// Runs each job on its own CPU, in the order that `explorer` chooses. Operations other than accesses cost what
/// `costs` says.
pub fn run(costs: &Costs, explorer: &dyn Explorer, jobs: Vec<Job<'_>>) -> Ended {
    // SAFETY: only the lifetime differs. The machine is dropped below, or leaked with coroutines that never run
    // again, and only a running coroutine calls the explorer.
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

/// Ends the run of the caller and never returns. Does nothing outside of a run.
pub fn stop() {
    with(Machine::stop);
}

/// The number of the running CPU; `None` outside of a run.
pub fn cpu() -> Option<u32> {
    with(Machine::me)
}
