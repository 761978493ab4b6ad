//! A row of the table: an operation, its starting state, and what it owes.

use super::controlled_host::{ALL, Backing, EDGES, GIB, World};
use super::lookup::Seen;
use super::record::{Between, record};
use super::thorough::thorough;
use crate::*;
use std::boxed::Box;
use std::format;
use std::string::String;
use std::vec::Vec;

/// The flush of an operation: once, and exactly this range; with or without tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owes {
    Nothing,
    Flush(Span<Gfn>),
    FlushAndTables(Span<Gfn>),
}

type Step<F> = Box<dyn Fn(&World<F>, &mut Idle)>;

/// Whether a look can see the operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changes {
    WhatIsSeen,
    /// Only Accessed bits, which a look leaves out.
    Accessed,
}

/// Of the pages of slot 0 that are no edges, one in this many is looked up after each write, in rows that look at more
/// than the edges. Prime, so that they lie at different bits of a bitmap's words. At night each page is looked up.
const STRIDE: usize = 37;

fn stride() -> usize {
    thorough(1, STRIDE)
}

/// A row of the table. See the module's header.
pub(super) struct Row<F: Format> {
    pub(super) name: String,
    built: fn(Builder<F, Backing>) -> Builder<F, Backing>,
    before: Step<F>,
    operation: Step<F>,
    every_page: bool,
    between: Between,
    renumbers: Option<Span<Gfn>>,
    owes: Owes,
    changes: Changes,
    /// Whether stores before the end of the operation may be lost.
    pub(super) forgets: bool,
    /// Whether the operation may give up if it loses a race.
    pub(super) may_give_up: bool,
}

impl<F: Format> Row<F> {
    /// An operation on a VM with nothing mapped, which owes nothing.
    pub(super) fn new(name: impl Into<String>, operation: impl Fn(&World<F>, &mut Idle) + 'static) -> Self {
        Self {
            name: name.into(),
            built: |builder| builder,
            before: Box::new(|_, _| {}),
            operation: Box::new(operation),
            every_page: false,
            between: Between::Nothing,
            renumbers: None,
            owes: Owes::Nothing,
            changes: Changes::WhatIsSeen,
            forgets: false,
            may_give_up: false,
        }
    }

    /// Sets how the VM is built.
    pub(super) fn built(self, built: fn(Builder<F, Backing>) -> Builder<F, Backing>) -> Self {
        Self { built, ..self }
    }

    /// Adds an operation that runs before.
    pub(super) fn after(self, before: impl Fn(&World<F>, &mut Idle) + 'static) -> Self {
        Self { before: Box::new(before), ..self }
    }

    /// Looks at every page of slot 0, not only at the edges.
    pub(super) fn in_every_page(self) -> Self {
        Self { every_page: true, ..self }
    }

    pub(super) fn between(self, between: Between) -> Self {
        Self { between, ..self }
    }

    /// Declares that no look sees its changes.
    pub(super) fn of_accessed_bits(self) -> Self {
        Self { changes: Changes::Accessed, ..self }
    }

    /// Requires that every hole of `gfns` has this operation's number afterwards.
    pub(super) fn renumbers(self, gfns: Span<Gfn>) -> Self {
        Self { renumbers: Some(gfns), ..self }
    }

    pub(super) fn owes(self, owes: Owes) -> Self {
        Self { owes, ..self }
    }

    pub(super) fn forgets(self) -> Self {
        Self { forgets: true, ..self }
    }

    pub(super) fn may_give_up(self) -> Self {
        Self { may_give_up: true, ..self }
    }

    /// Returns the frames that are looked up: all that may be mapped, some beside them, and some far away.
    pub(super) fn probes(&self) -> Vec<Gfn> {
        self.some_probes(1)
    }

    /// Returns the same probes, but of the pages that are no edges one in `stride`.
    fn some_probes(&self, stride: usize) -> Vec<Gfn> {
        let beside = [2, 66, 300, 509, 514, 574, 577, 800, 1021, 1024, 2048, 2049, 2113, 3071, 1 << 17];
        let mut probes: Vec<u64> = EDGES.into_iter().chain(beside).collect();
        if self.every_page {
            probes.extend((ALL.start.0..ALL.end.0).step_by(stride));
        }
        if F::MAX_LEAF >= Level::G1 {
            probes.extend([0, 1, 511, 512, 700, 512 * 300, GIB.len() - 1].map(|page| GIB.start.0 + page));
        }
        probes.sort_unstable();
        probes.dedup();
        probes.into_iter().map(Gfn).collect()
    }

    /// A VM on which the operation can run.
    pub(super) fn world(&self, idle: &mut Idle) -> World<F> {
        let world = World::new(idle, self.built);
        (self.before)(&world, idle);
        world
    }

    pub(super) fn operate(&self, world: &World<F>, idle: &mut Idle) {
        (self.operation)(world, idle);
    }

    /// Runs the operation. Returns what was wrong as an error. Adds the number of looks at the tables.
    pub(super) fn run(&self, idle: &mut Idle, looks: &mut u64) -> Result<(), String> {
        self.run_so(idle, looks, |operation| operation())
    }

    /// Runs the operation through `so`.
    pub(super) fn run_so(
        &self,
        idle: &mut Idle,
        looks: &mut u64,
        so: impl FnOnce(&mut dyn FnMut()),
    ) -> Result<(), String> {
        let world = self.world(idle);
        let number = world.vm.active.newest();
        let operation = |world: &World<F>, idle: &mut Idle| so(&mut || self.operate(world, idle));
        let record = record(&world, idle, &self.some_probes(stride()), (self.between, looks), operation);
        let record = record.map_err(|wrong| format!("{} {}: {wrong}", F::NAME, self.name))?;
        let flushed = match record.flushes[..] {
            [] => Owes::Nothing,
            [gfns] if record.tables > 0 => Owes::FlushAndTables(gfns),
            [gfns] => Owes::Flush(gfns),
            _ => return Err(format!("{} {}: flushed {:?}", F::NAME, self.name, record.flushes)),
        };
        if flushed != self.owes {
            return Err(format!("{} {}: it owes {:?}, and paid {flushed:?}", F::NAME, self.name, self.owes));
        }
        for &(gfn, look) in &record.after {
            let covered = self.renumbers.is_some_and(|gfns| gfns.contains(gfn));
            if covered && matches!(look.seen, Seen::Nothing(version) if version <= number) {
                let older = format!("an answer for {gfn:?} from before it could be installed after it");
                return Err(format!("{} {}: {older}", F::NAME, self.name));
            }
        }
        let changed = record.before.iter().zip(&record.after).any(|(before, after)| before != after);
        let seen = changed || self.changes == Changes::Accessed || self.owes != Owes::Nothing;
        assert!(seen || !record.wrote, "{}: it does something", self.name);
        Ok(())
    }
}
