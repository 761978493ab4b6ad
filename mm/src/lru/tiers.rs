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
struct Fate {
    /// Went, or were spared.
    total: u64,
    /// Of those that went, came back soon.
    refaulted: u64,
}

/// See the module's header. Of all nodes together.
#[derive(Debug, Default)]
pub(super) struct Tiers(Mutex<[[Fate; TIERS]; 2]>);

impl Tiers {
    /// The highest tier of a kind that is not spared.
    pub(super) fn highest_that_goes(&self, kind: Kind) -> u8 {
        let fates = self.0.lock()[kind as usize];
        let spared = (1..TIERS).find(|&tier| is_worse(fates[0], fates[tier]));
        spared.map_or(TIERS as u8, |tier| tier as u8) - 1
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
        for fate in &mut self.0.lock()[kind as usize] {
            fate.total /= 2;
            fate.refaulted /= 2;
        }
    }
}

/// Whether pages of a tier come back more than twice as often as those of the lowest.
fn is_worse(lowest: Fate, tier: Fate) -> bool {
    tier.refaulted >= NOISE
        && tier.refaulted * (lowest.total + NOISE) > 2 * (lowest.refaulted + 1) * tier.total
}

/// What an entry remembers of the page that went from it: the oldest generation then, and the page's kind and tier.
pub(super) fn shadow(oldest: u64, kind: Kind, tier: u8) -> Shadow {
    Shadow::new((oldest as u32) << 3 | u32::from(tier) << 1 | kind as u32)
}

/// Kind and tier of the page that went, and whether it went not long ago: within as many generations as there can be.
pub(super) fn of_shadow(shadow: Shadow, oldest: impl Fn(Kind) -> u64) -> (Kind, u8, bool) {
    let kind = Kind::ALL[(shadow.bits() & 1) as usize];
    let went = shadow.bits() >> 3;
    let generations = (1 << (Shadow::BITS - 3)) - 1;
    let since = (oldest(kind) as u32).wrapping_sub(went) & generations;
    (kind, (shadow.bits() >> 1 & 3) as u8, u64::from(since) < MAX_GENS)
}
