//! Bloom filters: which regions the next pass should scan.
//!
//! Scanning every page of a region costs more than it tells if few are young. A pass inserts regions that it
//! finds dense for the next pass, which skips all others. Eviction still asks about each page of a skipped
//! region; if enough of those are young, it inserts the region. Two filters alternate: one is read while the
//! other is filled. A filter has false positives and no false negatives.
//!
//! Sizes as in the kernel: 2^15 bits, two for each region.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BITS: u32 = 15;
const WORDS: usize = (1 << BITS) / u64::BITS as usize;

#[derive(Debug)]
struct Filter(Box<[AtomicU64]>);

impl Filter {
    /// Word index and bit mask of both keys.
    fn keys(region: u64) -> [(usize, u64); 2] {
        // The upper bits of a product by a large odd number depend on all lower bits.
        let hash = region.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - 2 * BITS);
        [hash >> BITS, hash & ((1 << BITS) - 1)]
            .map(|key| ((key / u64::from(u64::BITS)) as usize, 1 << (key % u64::from(u64::BITS))))
    }
}

/// Two filters: one for generations with an even number, one for odd.
#[derive(Debug)]
pub(crate) struct Filters([Filter; 2]);

impl Filters {
    pub(crate) fn new() -> Self {
        Self([0, 1].map(|_| Filter((0..WORDS).map(|_| AtomicU64::new(0)).collect())))
    }

    fn of(&self, seq: u64) -> &Filter {
        &self.0[(seq % 2) as usize]
    }

    /// Whether the pass that ends generation `seq` should scan the region.
    pub(crate) fn contains(&self, seq: u64, region: u64) -> bool {
        let filter = self.of(seq);
        Filter::keys(region).iter().all(|&(word, bit)| filter.0[word].load(Relaxed) & bit != 0)
    }

    /// Makes the pass that ends generation `seq` scan the region.
    pub(crate) fn insert(&self, seq: u64, region: u64) {
        let filter = self.of(seq);
        for (word, bit) in Filter::keys(region) {
            filter.0[word].fetch_or(bit, Relaxed);
        }
    }

    /// Makes the pass that ends generation `seq` scan no region.
    pub(crate) fn clear(&self, seq: u64) {
        self.of(seq).0.iter().for_each(|word| word.store(0, Relaxed));
    }
}

/// Whether a region is dense: at least one young page per cache line of its table on average.
pub(crate) fn is_dense(young: u64, present: u64) -> bool {
    young > 0 && young * 8 >= present
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_only_in_its_own_turn() {
        let filters = Filters::new();
        (0..512).for_each(|region| filters.insert(7, region * 3));
        assert!((0..512).all(|region| filters.contains(7, region * 3)));
        assert!((0..512).all(|region| !filters.contains(8, region * 3)));
        let wrong = (10_000..20_000).filter(|&region| filters.contains(7, region)).count();
        assert!(wrong < 100, "{wrong} of 10,000: too many false positives");
        filters.clear(7);
        assert!((0..512).all(|region| !filters.contains(7, region * 3)));
    }
}
