//! Places the memory of a traced program in the guest.
//!
//! A program's addresses are scattered over 47 bits; a guest has a few gigabytes. Each **region** of the
//! program (an aligned window, created when it is first touched) gets the next free range of guest frames, and
//! becomes one memslot.

use slat::{Gpa, PAGE_SIZE};
use std::collections::HashMap;

/// Maps traced addresses to guest-physical ones.
#[derive(Debug)]
pub struct Layout {
    regions: HashMap<u64, Gpa>,
    /// The last region used; mostly the next one too.
    last: (u64, Gpa),
}

/// A range of traced addresses, and its place in the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First traced address; a multiple of [`Layout::REGION`].
    pub start: u64,
    /// Its guest address.
    pub gpa: Gpa,
}

impl Layout {
    /// Bytes in a region.
    pub const REGION: u64 = 16 << 20;

    /// Creates a layout without regions.
    pub fn new() -> Self {
        Self { regions: HashMap::new(), last: (u64::MAX, Gpa(0)) }
    }

    /// Returns the guest-physical address of a traced one, if its region has a place.
    #[inline(always)]
    pub fn gpa(&mut self, addr: u64) -> Option<Gpa> {
        let region = addr / Self::REGION;
        if region != self.last.0 {
            self.last = (region, *self.regions.get(&region)?);
        }
        Some(self.last.1 + addr % Self::REGION)
    }

    /// Gives the region of `addr` a place.
    pub fn place(&mut self, addr: u64, gpa: Gpa) {
        debug_assert!(gpa.0.is_multiple_of(PAGE_SIZE));
        self.regions.insert(addr / Self::REGION, gpa);
    }

    /// Returns the regions placed so far, in no order.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.regions.iter().map(|(&region, &gpa)| Region { start: region * Self::REGION, gpa })
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::new()
    }
}
