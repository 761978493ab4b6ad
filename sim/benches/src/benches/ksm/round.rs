//! What a guest does while its pages are merged.

use super::ground::{Ground, stable};
use crate::benches::program::{Next, Program, Use};
use crate::benches::way::Way;
use crate::host::first_page;
use slat::{Gfn, Pfn};

/// Reads its way round: once before it leaves for the first time, then until the scanner has done and once more.
pub struct Round<'g> {
    ground: &'g Ground,
    way: Way,
    /// Pages to use before it leaves, where that is known.
    left: Option<u64>,
}

impl<'g> Round<'g> {
    pub fn new(ground: &'g Ground, way: Way) -> Self {
        Self { ground, way, left: Some(ground.used) }
    }
}

impl Program for Round<'_> {
    fn next(&mut self) -> Next {
        if self.left.is_none() && self.ground.is_over() {
            self.left = Some(self.ground.used);
        }
        if self.left == Some(0) {
            self.left = None;
            return Next::Leave;
        }
        self.left = self.left.map(|left| left - 1);
        Next::Load(Gfn(self.way.go_on()))
    }

    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        if pfn == stable(gfn).pfn {
            Use::Right
        } else if pfn != first_page(gfn).pfn {
            Use::Foreign
        } else if self.ground.is_freed(gfn) {
            Use::Stale
        } else {
            Use::Right
        }
    }
}
