//! What a guest does while slots move.

use super::ground::Ground;
use super::layout::ACTIVE;
use crate::benches::program::{Next, Program, Use};
use crate::host::first_page;
use core::sync::atomic::Ordering::Relaxed;
use slat::{Gfn, Pfn};

/// Goes through the area page by page, and every now and then uses one of the last slot.
pub struct Roam<'g> {
    ground: &'g Ground,
    /// The page of the area that it uses.
    at: u64,
    turns: u64,
}

/// Turns until it leaves for the first time: each page of the last slot was used by then.
const WARM: u64 = 4 * ACTIVE + 1;

impl<'g> Roam<'g> {
    /// From a page on that is drawn by `lot`: far from the others', as in a guest of gigabytes.
    pub fn new(ground: &'g Ground, lot: u64) -> Self {
        Self { ground, at: lot % ground.layout.beside().gfns.start.0, turns: 0 }
    }
}

impl Program for Roam<'_> {
    fn next(&mut self) -> Next {
        self.turns += 1;
        if self.turns == WARM || self.ground.over.load(Relaxed) {
            return Next::Leave;
        }
        let layout = &self.ground.layout;
        match self.turns % 4 {
            0 => return Next::Load(layout.last().gfns.start + (self.turns / 4 + self.at) % ACTIVE),
            1 => self.at = (self.at + 1) % layout.beside().gfns.start.0,
            _ => {}
        }
        Next::Load(Gfn(self.at))
    }

    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        if pfn != first_page(gfn).pfn {
            Use::Foreign
        } else if self.may_be_absent(gfn) && self.ground.away.load(Relaxed) {
            Use::Stale
        } else {
            Use::Right
        }
    }

    fn may_be_absent(&self, gfn: Gfn) -> bool {
        self.ground.layout.last().gfns.contains(gfn)
    }
}
