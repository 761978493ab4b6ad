//! Where the memory of a traced program lies in the guest.
//!
//! A program's addresses are strewn over 47 bits; a guest has a few gigabytes. Each **region** of the program (an
//! aligned window, made when it is first touched) is given the next free range of guest frames, and becomes one
//! memslot.

use slat::{Gpa, PAGE_SIZE};
use std::collections::HashMap;

/// Traced addresses to guest-physical ones.
#[derive(Debug)]
pub struct Layout {
    regions: HashMap<u64, Gpa>,
    /// The region used last: nearly always the next one too.
    last: (u64, Gpa),
}

/// A range of traced addresses, and where it lies in the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First traced address; a multiple of [`Layout::REGION`].
    pub start: u64,
    /// Where it lies.
    pub gpa: Gpa,
}

impl Layout {
    /// Bytes in a region.
    pub const REGION: u64 = 16 << 20;

    /// No regions yet.
    pub fn new() -> Self {
        Self { regions: HashMap::new(), last: (u64::MAX, Gpa(0)) }
    }

    /// The guest-physical address of a traced one, if its region has been placed.
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

    /// The regions placed so far, in no order.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.regions.iter().map(|(&region, &gpa)| Region { start: region * Self::REGION, gpa })
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::new()
    }
}
