//! The choice of the schedule in a run that tests correctness: accesses, and the explorer that delays and sees them.

use crate::prices::Ps;
use core::panic::Location;

/// The effect of an operation on a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads it.
    Load,
    /// Writes it.
    Store,
    /// Both, at once.
    Rmw,
}

/// An access to shared memory that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// The CPU that makes the access.
    pub cpu: u32,
    /// The address of the word in this process.
    pub address: usize,
    /// The kind of access.
    pub access: Access,
    /// The place in the program.
    pub site: &'static Location<'static>,
}

/// Chooses the schedule of a run and sees each access. The machine calls it on the CPU's own stack, between accesses.
/// An explorer may read all memory that the CPUs share, by `core`'s atomics.
pub trait Explorer {
    /// The delay of a CPU before this access, in picoseconds.
    fn delay(&self, act: Act) -> Ps;

    /// Called before an access is made. False ends the run.
    fn sees(&self, act: Act) -> bool;
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// All jobs returned.
    All,
    /// The explorer, or a job by `stop`, ended the run.
    Stopped,
    /// Every CPU that has not ended waits for another CPU.
    Stuck,
}
