//! What a guest does while its pages are merged.

use super::merge_run::{Ground, stable};
use crate::benches::program::{Next, Program, Use};
use crate::benches::way::Way;
use crate::host::first_page;
use slat::{Gfn, Pfn};

/// Reads its way round.
pub struct Round<'g> {
    ground: &'g Ground,
    way: Way,
    /// Pages to use before it leaves.
    pub left: u64,
    /// It leaves when the scanner has done, too.
    pub until_over: bool,
}

impl<'g> Round<'g> {
    /// Leaves for the first time when it was at every page.
    pub fn new(ground: &'g Ground, way: Way) -> Self {
        Self { ground, way, left: ground.used, until_over: false }
    }
}

impl Program for Round<'_> {
    fn next(&mut self) -> Next {
        if self.left == 0 || self.until_over && self.ground.is_over() {
            return Next::Leave;
        }
        self.left -= 1;
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
