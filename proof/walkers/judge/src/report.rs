//! Output and counters of a run.

use crate::machine_trait::{Difference, Machine};
use crate::tables::Step;
use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt::{self, Write};
use slat::Format;
use slat::table::Kind;

/// Most differences printed in one run; the others are only counted.
const PRINTED: u64 = 20;

/// Counts of the entries that the look-ups of a run met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Successful look-ups through leaves of 4K, 2M and 1G.
    pub through: [u64; 3],
    /// A leaf did not allow them.
    pub permission: u64,
    /// Nothing was mapped.
    pub hole: u64,
    /// Nothing was mapped, and the engine had noted that no memslot is there.
    pub mmio: u64,
    /// A leaf was withdrawn to see the next access.
    pub withdrawn: u64,
    /// An entry was frozen.
    pub frozen: u64,
    /// The address is beyond the tables' range.
    pub beyond: u64,
}

impl Seen {
    /// Counts the result of a walk of `path`.
    pub(crate) fn count<F: Format>(&mut self, path: &[Step], through: bool) {
        let Some(last) = path.last() else {
            self.beyond += 1;
            return;
        };
        *match last.word.kind::<F>(last.level) {
            Kind::Table(_) | Kind::Leaf if through => {
                &mut self.through[usize::from(last.level.number() - 1).min(2)]
            }
            Kind::Table(_) | Kind::Leaf => &mut self.permission,
            Kind::Hole(_) => &mut self.hole,
            Kind::Mmio(_) => &mut self.mmio,
            Kind::Withdrawn => &mut self.withdrawn,
            Kind::Frozen(_) => &mut self.frozen,
        } += 1;
    }
}

/// Verdict of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of look-ups.
    pub lookups: u64,
    /// Entries that they met.
    pub seen: Seen,
    /// Differences that are not the emulator's own faults.
    pub differences: u64,
    /// Differences that are the emulator's own faults, by name.
    pub quirks: BTreeMap<&'static str, u64>,
}

impl Verdict {
    /// Returns whether all differences are the emulator's own faults.
    pub fn passed(&self) -> bool {
        self.differences == 0
    }
}

/// Prints the last line of a program, with the overall verdict.
pub fn conclude<M: Machine>(machine: &mut M, verdicts: &[Verdict]) -> bool {
    let passed = !verdicts.is_empty() && verdicts.iter().all(Verdict::passed);
    machine.log(format_args!("{}", if passed { "JUDGE PASSED" } else { "JUDGE FAILED" }));
    passed
}

/// A run in progress.
pub(crate) struct Report<'m, M> {
    pub(crate) machine: &'m mut M,
    pub(crate) verdict: Verdict,
    format: &'static str,
    seed: u64,
    /// Number of the current step, for a repeat.
    pub(crate) step: u64,
}

impl<'m, M: Machine> Report<'m, M> {
    pub(crate) fn new<F: Format>(machine: &'m mut M, seed: u64) -> Self {
        Self { machine, verdict: Verdict::default(), format: F::NAME, seed, step: 0 }
    }

    /// Counts and prints a difference that nothing explains.
    pub(crate) fn differ(&mut self, what: fmt::Arguments<'_>) {
        self.verdict.differences += 1;
        if self.verdict.differences <= PRINTED {
            let (format, name, seed, step) = (self.format, self.machine.name(), self.seed, self.step);
            self.machine.log(format_args!("DIFF {format} {name} seed {seed} step {step}: {what}"));
        }
    }

    /// Counts a difference: under the name of the quirk that explains it, or else as `what` says.
    pub(crate) fn differs(&mut self, difference: &Difference, what: fmt::Arguments<'_>) {
        let quirk = self.machine.quirks().iter().find(|quirk| (quirk.explains)(difference));
        match quirk.map(|quirk| quirk.name) {
            Some(name) => *self.verdict.quirks.entry(name).or_default() += 1,
            None => self.differ(what),
        }
    }

    /// Prints the line of a run of look-ups.
    pub(crate) fn finish(self) -> Verdict {
        let Verdict { lookups, seen, differences, quirks } = &self.verdict;
        let Seen { through: [small, large, gib], permission, hole, mmio, withdrawn, frozen, beyond } = seen;
        self.machine.log(format_args!(
            "     through 4K {small}, 2M {large}, 1G {gib}; refused by a permission {permission}, a hole {hole}, an mmio \
             word {mmio}, a withdrawn one {withdrawn}, a frozen one {frozen}; beyond the tables {beyond}"
        ));
        let mut named = String::new();
        for (name, count) in quirks {
            let begin = if named.is_empty() { "; the emulator's own: " } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(named, "{begin}{name} ×{count}");
        }
        let (format, name, seed) = (self.format, self.machine.name(), self.seed);
        self.machine.log(format_args!(
            "WALK {format} {name} seed {seed}: {lookups} look-ups, {differences} differences{named}"
        ));
        self.verdict
    }
}
