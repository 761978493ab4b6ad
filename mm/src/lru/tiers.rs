//! Tiers: of equally old pages, those that were in use more often; and whether it pays to spare them.
//!
//! A page's tier is how often it was found in use while it was there, up to 3; a page that goes leaves its tier behind in
//! its entry, and takes it up again if it comes back. **Feedback** decides which tiers are spared: where pages of a tier
//! that went came back more often than those of the lowest, measured by how many went, that tier and those above pass to
//! the next generation instead, and come down a tier.
//!
//! In the kernel tiers count accesses through file descriptors, the only ones that leave no Accessed bit there. Its
//! controller is the same: the lowest tier's rate is the set point, others must be twice as bad; counts fade by half
//! whenever a generation has been used up.

use super::generations::{Kind, MAX_GENS};
use crate::swap::Shadow;
use parking_lot::Mutex;

/// How many there are.
const TIERS: usize = 4;
/// Fewer refaults than this say nothing.
const NOISE: u64 = 64;

/// What became of the pages of a tier.
#[derive(Clone, Copy, Default, Debug)]
struct TierCounts {
    /// Went, or were spared.
    total: u64,
    /// Of those that went, came back soon.
    refaulted: u64,
}

/// See the module's header. Of all nodes together.
#[derive(Debug, Default)]
pub(super) struct Tiers(Mutex<[[TierCounts; TIERS]; 2]>);

impl Tiers {
    /// The highest tier of a kind that is not spared.
    pub(super) fn highest_that_goes(&self, kind: Kind) -> u8 {
        let counts = self.0.lock()[kind as usize];
        let spared = (1..TIERS).find(|&tier| is_worse(counts[0], counts[tier]));
        spared.map_or(TIERS as u8, |tier| tier as u8) - 1
    }

    /// Whether files go rather than anonymous pages as old: the lowest tiers are compared, weighed by swappiness.
    pub(super) fn files_go_first(&self, swappiness: u8) -> bool {
        let [anon, file] = self.0.lock().map(|tiers| tiers[0]);
        let weight = u64::from(swappiness);
        file.refaulted < NOISE
            || file.refaulted * (anon.total + NOISE) * weight
                <= (anon.refaulted + 1) * file.total * (200 - weight.min(200))
    }

    /// Pages of a tier went, or were spared.
    pub(super) fn passed(&self, kind: Kind, tier: u8) {
        self.0.lock()[kind as usize][usize::from(tier)].total += 1;
    }

    /// One has come back.
    pub(super) fn refaulted(&self, kind: Kind, tier: u8) {
        self.0.lock()[kind as usize][usize::from(tier)].refaulted += 1;
    }

    /// The past counts half from now on.
    pub(super) fn fade(&self, kind: Kind) {
        for counts in &mut self.0.lock()[kind as usize] {
            counts.total /= 2;
            counts.refaulted /= 2;
        }
    }
}

/// Whether pages of a tier come back more than twice as often as those of the lowest.
fn is_worse(lowest: TierCounts, tier: TierCounts) -> bool {
    tier.refaulted >= NOISE
        && tier.refaulted * (lowest.total + NOISE) > 2 * (lowest.refaulted + 1) * tier.total
}

/// Bits of a generation's number in a shadow.
const SEQ_BITS: u32 = Shadow::BITS - 2;

/// What the entry of an anonymous page remembers: the oldest generation when it went, and its tier.
pub(super) fn shadow(oldest: u64, tier: u8) -> Shadow {
    Shadow::new((oldest as u32) << 2 | u32::from(tier))
}

/// The same back. Of the generation's number only the lowest bits are left.
pub(super) fn of_shadow(shadow: Shadow) -> (u64, u8) {
    (u64::from(shadow.bits() >> 2), (shadow.bits() & 3) as u8)
}

/// Whether what went while `oldest` was the oldest generation went not more generations ago than there can be; `now` is
/// the oldest now.
pub(super) fn went_lately(oldest: u64, now: u64) -> bool {
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
        assert_eq!(tiers.highest_that_goes(Kind::File), 3, "each kind by itself");
        (0..3).for_each(|_| tiers.fade(Kind::Anon));
        assert_eq!(tiers.highest_that_goes(Kind::Anon), 3, "too few to say anything");
    }

    #[test]
    fn the_kind_that_comes_back_less_goes_first() {
        let tiers = Tiers::default();
        assert!(tiers.files_go_first(60), "nothing is known yet");
        for kind in Kind::ALL {
            (0..1000).for_each(|_| tiers.passed(kind, 0));
        }
        (0..300).for_each(|_| tiers.refaulted(Kind::File, 0));
        assert!(!tiers.files_go_first(60));
        (0..200).for_each(|_| tiers.refaulted(Kind::Anon, 0));
        assert!(tiers.files_go_first(60) && !tiers.files_go_first(100), "as much rather as was said");
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
