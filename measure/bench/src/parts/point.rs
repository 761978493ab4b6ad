//! The result of one run of a scenario.

use crate::parts::setting::{Column, Setting};
use crate::world::RunStats;

/// The result of a run with a [`Setting`].
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// As it was asked for.
    pub vcpus: u32,
    /// As it was asked for.
    pub column: Column,
    /// The first is *the* figure: what is compared, ranked and swept. Less is better.
    pub figures: Vec<Figure>,
    /// Faults, moves, pages: what a figure "per operation" divides by.
    pub operations: u64,
    /// The share of their time that vCPUs waited for locks and lines, 0 to 1; 0 on threads.
    pub waiting: f64,
    /// Shootdowns made.
    pub flushes: u64,
    /// Kicks sent.
    pub kicks: u64,
    /// The statistics of the run.
    pub stats: RunStats,
    /// Whether the engine did what it was asked.
    pub checks: Vec<Check>,
    /// The run was ended at its bound in virtual time: the first two figures are lower bounds.
    pub unfinished: bool,
}

impl Point {
    /// The result of a run that ended by itself.
    pub fn of(setting: &Setting<'_>, figures: Vec<Figure>, stats: RunStats) -> Self {
        Self {
            vcpus: setting.vcpus,
            column: setting.column,
            figures,
            operations: 0,
            waiting: stats.waiting(),
            flushes: 0,
            kicks: stats.kicks,
            stats,
            checks: Vec::new(),
            unfinished: false,
        }
    }
}

/// A number that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Of what.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// Of which unit.
    pub unit: &'static str,
}

impl Figure {
    /// Of what, how much, of which unit.
    pub fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, value, unit }
    }
}

/// Something that has to be true for the figures to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The condition.
    pub name: &'static str,
    /// Whether it is.
    pub ok: bool,
    /// The numbers behind it.
    pub detail: String,
}

/// A condition, how many times it held, and of how many.
pub type Tally = (&'static str, [u64; 2]);

impl From<&Tally> for Check {
    fn from(&(name, [good, of]): &Tally) -> Self {
        Self::all(name, good, of)
    }
}

impl Check {
    /// So many of so many: true where it is all of them.
    pub fn all(name: &'static str, good: u64, of: u64) -> Self {
        Self { name, ok: good == of, detail: format!("{good} of {of}") }
    }

    /// So many, of at least so many.
    pub fn least(name: &'static str, many: u64, least: u64) -> Self {
        Self { name, ok: many >= least, detail: format!("{many}, and {least} at least") }
    }
}
