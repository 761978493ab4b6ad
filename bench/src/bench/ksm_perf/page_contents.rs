//! What the VMs hold, stage after stage, and what KSM must have found by then: LTP's `ksm02`.
//!
//! | stage | VM 0 | VM 1 | the others | shared | unshared |
//! |---|---|---|---|---|---|
//! | 1 | c | a | a | 2 | 0 |
//! | 2 | c | b | a | 3 | 0 |
//! | 3 | d | d | d | 1 | 0 |
//! | 4 | d | d, but its last byte is e | d | 1 | 1 |
//!
//! Every VM writes all of its memory anew in each, what is the same included, as the test does. All else is shared:
//! pages in all = shared + sharing + unshared.

use slat::{Gfn, PAGE_SIZE};
use slat_mm::KsmStats;

/// The machine: so many VMs of so many pages.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub vms: u32,
    pub pages_per_vm: u64,
}

/// A stage's number, from 1. Stage 0 comes before: each page has contents of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage(pub u32);

impl Stage {
    pub const ALL: [Self; 4] = [Self(1), Self(2), Self(3), Self::LAST];
    pub const LAST: Self = Self(4);

    /// What VM `vm` has in page `gfn`: this byte everywhere, and this one at its end.
    pub fn bytes(self, size: Size, vm: u32, gfn: Gfn) -> (u8, u8) {
        let byte = match (self.0, vm) {
            (1 | 2, 0) => b'c',
            (2, 1) => b'b',
            (1 | 2, _) => b'a',
            _ => b'd',
        };
        let odd = self == Self::LAST && vm == 1 && gfn.0 + 1 == size.pages_per_vm;
        (byte, if odd { b'e' } else { byte })
    }

    /// The page itself.
    pub fn page(self, size: Size, vm: u32, gfn: Gfn) -> [u8; PAGE_SIZE as usize] {
        let (byte, last) = self.bytes(size, vm, gfn);
        let mut page = [byte; PAGE_SIZE as usize];
        page[PAGE_SIZE as usize - 1] = last;
        if self == Self(0) {
            let number = u64::from(vm) << 40 | gfn.0;
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        page
    }

    /// Shared, sharing and unshared when everything is merged that can be.
    pub fn expected(self, size: Size) -> Counts {
        let unshared = u64::from(self == Self::LAST);
        let shared = match self.0 {
            1 => 2,
            2 => 3,
            _ => 1,
        };
        Counts { shared, sharing: size.pages() - shared - unshared, unshared }
    }
}

impl Size {
    /// Of all VMs.
    pub fn pages(self) -> u64 {
        u64::from(self.vms) * self.pages_per_vm
    }

    /// Pages that come to share a frame, in all stages together, where each VM writes `again` pages once more.
    pub fn merges(self, again: u64) -> u64 {
        let fills = Stage::ALL.iter().map(|stage| {
            let Counts { shared, sharing, .. } = stage.expected(self);
            shared + sharing
        });
        fills.sum::<u64>() + Stage::ALL.len() as u64 * u64::from(self.vms) * again
    }
}

/// What KSM counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    pub shared: u64,
    pub sharing: u64,
    pub unshared: u64,
}

impl From<KsmStats> for Counts {
    fn from(stats: KsmStats) -> Self {
        let KsmStats { pages_shared, pages_sharing, pages_unshared, .. } = stats;
        Self { shared: pages_shared, sharing: pages_sharing, unshared: pages_unshared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn what_is_expected_is_what_the_pages_say() {
        let size = Size { vms: 4, pages_per_vm: 16 };
        for stage in Stage::ALL {
            let mut found: HashMap<Vec<u8>, u64> = HashMap::new();
            for (vm, gfn) in (0..4).flat_map(|vm| (0..16).map(move |gfn| (vm, Gfn(gfn)))) {
                *found.entry(stage.page(size, vm, gfn).to_vec()).or_default() += 1;
            }
            let shared = found.values().filter(|&&count| count > 1);
            let counts = Counts {
                shared: shared.clone().count() as u64,
                sharing: shared.map(|count| count - 1).sum(),
                unshared: found.values().filter(|&&count| count == 1).count() as u64,
            };
            assert_eq!(stage.expected(size), counts, "{stage:?}");
        }
        assert_eq!(size.merges(2), 64 * 4 - 1 + 4 * 4 * 2);
    }
}
