//! What a guest does while the host looks.

use super::balanced::Balanced;
use crate::benches::program::{Next, Program, Use};
use crate::benches::way::Way;
use crate::host::first_page;
use slat::{Gfn, Pfn};

/// Goes round the pages in use.
pub struct PageUser<'g> {
    balanced: &'g Balanced,
    way: Way,
    /// Pages to use before it leaves.
    pub left: u64,
}

impl<'g> PageUser<'g> {
    /// Leaves for the first time when it was at every page.
    pub fn new(balanced: &'g Balanced, way: Way) -> Self {
        Self { balanced, way, left: balanced.pages.used().len() as u64 }
    }
}

impl Program for PageUser<'_> {
    fn next(&mut self) -> Next {
        let Some(left) = self.left.checked_sub(1) else { return Next::Leave };
        self.left = left;
        Next::Load(self.balanced.pages.used()[self.way.go_on() as usize])
    }

    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        if pfn == self.balanced.pages.page(gfn).pfn {
            Use::Right
        } else if pfn != first_page(gfn).pfn {
            Use::Foreign
        } else if self.balanced.scans.is_over_for(gfn) {
            Use::Stale
        } else {
            Use::Right
        }
    }
}
