//! What a guest does while the host looks.

use super::ground::Ground;
use crate::benches::program::{Next, Program, Use};
use crate::benches::way::Way;
use crate::host::first_page;
use slat::{Gfn, Pfn};

/// Goes round the pages in use.
pub struct Round<'g> {
    ground: &'g Ground,
    way: Way,
    /// Pages to use before it leaves.
    pub left: u64,
}

impl<'g> Round<'g> {
    /// Leaves for the first time when it was at every page.
    pub fn new(ground: &'g Ground, way: Way) -> Self {
        Self { ground, way, left: ground.pages.used().len() as u64 }
    }
}

impl Program for Round<'_> {
    fn next(&mut self) -> Next {
        let Some(left) = self.left.checked_sub(1) else { return Next::Leave };
        self.left = left;
        Next::Load(self.ground.pages.used()[self.way.go_on() as usize])
    }

    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        if pfn == self.ground.pages.page(gfn).pfn {
            Use::Right
        } else if pfn != first_page(gfn).pfn {
            Use::Foreign
        } else if self.ground.scans.is_over_for(gfn) {
            Use::Stale
        } else {
            Use::Right
        }
    }
}
