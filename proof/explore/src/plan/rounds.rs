//! Programs in rounds, for worlds in which write permission of a few pages comes and goes.
//!
//! Most defects of overlapping invalidations need an upgrade, a fault and three to five invalidations of the same pages
//! at the same time. Programs that run freely rarely meet like that. Here all CPUs meet twice in each round:
//!
//! ```text
//! all CPUs meet      one thread protects all pages; vCPUs load, so the pages are mapped read-only
//! all CPUs meet      vCPUs store, each after a moment; threads protect some of the pages, or all, or change others
//! ```

use super::layout;
use super::op::{Change, Op, Telling};
use crate::random::Random;
use slat::{Access, Reason};

/// Rounds of a program.
const ROUNDS: u64 = 16;
/// The CPUs meet when the time is a multiple of this many nanoseconds.
const MEET: u64 = 10_000;
/// The longest moment is two to this power nanoseconds.
const MOMENT_BITS: u64 = 11;

/// The pages of a world in rounds: the first ones of a small memslot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    pub(super) window: usize,
    pub(super) slot: u32,
    pub(super) pages: u64,
    /// Whether pages also move or are cleared.
    pub(super) moves: bool,
}

impl Rounds {
    /// The program of a vCPU.
    pub(super) fn guest(&self, random: &mut Random) -> Vec<Op> {
        let touch = |random: &mut Random, access| {
            Op::Touch(layout::frame(self.window, random.below(self.pages) as usize), access)
        };
        let mut round = || {
            let load = touch(random, Access::Read);
            [Op::Align(MEET), load, Op::Align(MEET), moment(random), touch(random, Access::Write)]
        };
        (0..ROUNDS).flat_map(|_| round()).collect()
    }

    /// The program of a thread. The first thread protects all pages when a round begins.
    pub(super) fn thread(&self, random: &mut Random, is_first: bool) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..ROUNDS {
            ops.push(Op::Align(MEET));
            if is_first {
                let protect = (Change::Protect, Reason::Protect);
                ops.push(change(layout::host_page(self.slot), self.pages, protect, 0));
            }
            ops.push(Op::Align(MEET));
            for _ in 0..2 {
                ops.extend([moment(random), self.change(random)]);
            }
        }
        ops
    }

    /// A change of all of the pages, of one of them, or of another page of the region.
    fn change(&self, random: &mut Random) -> Op {
        let sleeps = random.pick(&[0, 0, 2000, 5000]);
        let first = layout::host_page(self.slot);
        let (first, pages) = match random.below(8) {
            0 | 1 => (first + random.below(self.pages), 1),
            2..5 => (first, self.pages),
            _ => {
                let other = first + layout::SMALL / 2 + random.below(4);
                return change(other, 1, (Change::Nothing, Reason::Clear), sleeps);
            }
        };
        let seldom = u64::from(self.moves);
        let what = random.weighted(&[
            (10, (Change::Protect, Reason::Protect)),
            (2, (Change::Nothing, Reason::Protect)),
            (seldom, (Change::Nothing, Reason::Clear)),
            (seldom, (Change::Move, Reason::Migrate)),
        ]);
        change(first, pages, what, sleeps)
    }
}

fn change(first: u64, pages: u64, (change, why): (Change, Reason), sleeps: u64) -> Op {
    Op::Change { first, pages, change, why, telling: Telling::Overlapping, sleeps }
}

/// A moment of any order of magnitude.
fn moment(random: &mut Random) -> Op {
    let bits = random.below(MOMENT_BITS + 1);
    Op::Rest(random.below(1 << bits))
}
