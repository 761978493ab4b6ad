//! Tiers order equally old pages by how often they were accessed; feedback decides which tiers eviction spares.
//!
//! A page's tier is how often it was found accessed while it was present, up to 3. An evicted page leaves its
//! tier in its entry, and gets it back if it refaults. **Feedback**: a tier is spared if its evicted pages
//! refault more often, relative to how many were evicted, than those of the lowest tier. That tier and those
//! above move to the next generation instead, and drop one tier.
//!
//! In the kernel tiers count accesses through file descriptors, which leave no Accessed bit. Its controller is
//! the same: the refault rate of the lowest tier is the set point, and a tier is spared at twice that rate.
//! Counts halve whenever a generation has been used up.

use super::generations::{Kind, MAX_GENS};
use crate::swap::Shadow;
use parking_lot::Mutex;

/// Number of tiers.
const TIERS: usize = 4;
/// Fewer refaults than this are ignored as noise.
const NOISE: u64 = 64;

/// Evictions and refaults of one tier.
#[derive(Clone, Copy, Default, Debug)]
struct TierCounts {
    /// Pages evicted or spared.
    total: u64,
    /// Evicted pages that refaulted soon.
    refaulted: u64,
}

/// Counts by kind and tier, for all nodes together.
#[derive(Debug, Default)]
pub(crate) struct Tiers(Mutex<[[TierCounts; TIERS]; 2]>);

impl Tiers {
    /// Returns the highest tier of a kind that is not spared.
    pub(crate) fn highest_that_goes(&self, kind: Kind) -> u8 {
        let counts = self.0.lock()[kind as usize];
        let spared = (1..TIERS).find(|&tier| is_worse(counts[0], counts[tier]));
        spared.map_or(TIERS as u8, |tier| tier as u8) - 1
    }

    /// Whether files are evicted before equally old anonymous pages: compares the lowest tiers, weighted by
    /// swappiness.
    pub(crate) fn files_go_first(&self, swappiness: u8) -> bool {
        let [anon, file] = self.0.lock().map(|tiers| tiers[0]);
        let weight = u64::from(swappiness);
        file.refaulted < NOISE
            || file.refaulted * (anon.total + NOISE) * weight
                <= (anon.refaulted + 1) * file.total * (200 - weight.min(200))
    }

    /// Counts a page of a tier that was evicted or spared.
    pub(crate) fn passed(&self, kind: Kind, tier: u8) {
        self.0.lock()[kind as usize][usize::from(tier)].total += 1;
    }

    /// Counts a page that refaulted.
    pub(crate) fn refaulted(&self, kind: Kind, tier: u8) {
        self.0.lock()[kind as usize][usize::from(tier)].refaulted += 1;
    }

    /// Halves the counts of a kind.
    pub(crate) fn fade(&self, kind: Kind) {
        for counts in &mut self.0.lock()[kind as usize] {
            counts.total /= 2;
            counts.refaulted /= 2;
        }
    }
}

/// Whether pages of a tier refault more than twice as often as those of the lowest.
fn is_worse(lowest: TierCounts, tier: TierCounts) -> bool {
    tier.refaulted >= NOISE
        && tier.refaulted * (lowest.total + NOISE) > 2 * (lowest.refaulted + 1) * tier.total
}

/// Bits for a generation's number in a shadow.
const SEQ_BITS: u32 = Shadow::BITS - 2;

/// Encodes the shadow in the entry of an evicted anonymous page: the oldest generation at that time, and the page's
/// tier.
pub(crate) fn shadow(oldest: u64, tier: u8) -> Shadow {
    Shadow::new((oldest as u32) << 2 | u32::from(tier))
}

/// Decodes a shadow. Only the low bits of the generation's number are left.
pub(crate) fn of_shadow(shadow: Shadow) -> (u64, u8) {
    (u64::from(shadow.bits() >> 2), (shadow.bits() & 3) as u8)
}

/// Whether a page that was evicted while `oldest` was the oldest generation was evicted fewer than `MAX_GENS`
/// generations ago; `now` is the oldest now.
pub(crate) fn went_lately(oldest: u64, now: u64) -> bool {
    now.wrapping_sub(oldest) & ((1 << SEQ_BITS) - 1) < MAX_GENS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_that_come_back_twice_as_often_are_spared() {
        let tiers = Tiers::default();
        let (mut go, back) =
            (Vec::new(), |tier, times| (0..times).for_each(|_| tiers.refaulted(Kind::Anon, tier)));
        for tier in 0..3 {
            (0..1000).for_each(|_| tiers.passed(Kind::Anon, tier));
        }
        back(0, 200);
        go.push(tiers.highest_that_goes(Kind::Anon));
        back(2, 300);
        go.push(tiers.highest_that_goes(Kind::Anon));
        back(2, 200);
        go.push(tiers.highest_that_goes(Kind::Anon));
        back(1, 500);
        go.push(tiers.highest_that_goes(Kind::Anon));
        assert_eq!(go, [3, 3, 1, 0]);
        assert_eq!(tiers.highest_that_goes(Kind::File), 3, "each kind has its own tiers");
        (0..3).for_each(|_| tiers.fade(Kind::Anon));
        assert_eq!(tiers.highest_that_goes(Kind::Anon), 3, "too few to say anything");
    }

    #[test]
    fn the_kind_that_comes_back_less_goes_first() {
        let tiers = Tiers::default();
        assert!(tiers.files_go_first(60), "no refaults are known yet");
        for kind in Kind::ALL {
            (0..1000).for_each(|_| tiers.passed(kind, 0));
        }
        (0..300).for_each(|_| tiers.refaulted(Kind::File, 0));
        assert!(!tiers.files_go_first(60));
        (0..200).for_each(|_| tiers.refaulted(Kind::Anon, 0));
        assert!(tiers.files_go_first(60) && !tiers.files_go_first(100), "weighted by swappiness");
    }

    #[test]
    fn a_shadow_is_told_from_older_ones() {
        for (oldest, tier) in [(0, 0), (7, 3), ((1 << SEQ_BITS) - 1, 1), ((1 << SEQ_BITS) + 5, 2)] {
            let (seq, found) = of_shadow(shadow(oldest, tier));
            assert_eq!(found, tier);
            assert!(
                went_lately(seq, oldest) && went_lately(seq, oldest + 3) && !went_lately(seq, oldest + 4)
            );
        }
    }
}
