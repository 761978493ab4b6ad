//! The hints of one page of L1, from the second on: a tree of blocks.
//!
//! ```text
//! block, 64 bytes    [ hint 0 … hint 5 | below 0 | below 1 ]
//! ```
//! A hint lies in any block of the path that its bits choose. A block is linked below the last one of the path when all
//! of them are full. A look-up of one hint among n therefore reads about log n lines. No block is ever unlinked and no
//! hint moves from one block to another, so a walk needs no section.
//!
//! **A stale hint makes room.** L1 may move a page from one frame of L2 to the next for ever. The hint of each place
//! stays, because TLBs may still hold the old translations. Before a fault links another block it therefore looks along
//! its path for a hint whose leaf is gone, and replaces it by its own. The page never lacks a hint meanwhile, so an
//! invalidation still flushes. The number of blocks is bounded by the number of leaves that existed at one time.
//!
//! ```text
//! fault F            its hint is there ─▶ its entry is frozen ─▶ fence ─▶ is the hint still there? no: thaw, begin again
//! replacing fault R  hint ─▶ doubted ─▶ fence ─▶ the leaf is still gone? doubted ─▶ R's hint. No: doubted ─▶ hint
//! ```
//! R finds F's frozen entry, or F finds its hint doubted. A doubted hint counts as a hint for all walks. Only one thread
//! doubts the hints of a page at a time ([`Doubts`]): a hint that F makes firm again is not taken for the doubted one.

use crate::sync::prim::{AtomicPtr, AtomicU64, Relaxed};
use crate::table::{Entry, Node};
use crate::{Gfn, NoMemory, Word};
use alloc::vec::Vec;
use core::ptr::{NonNull, null_mut};

/// A place to look: this frame of L2, or the page that begins there, in this shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RmapHint {
    pub(crate) shadow: usize,
    pub(crate) g2: Gfn,
}

/// Bits of a frame of L2 in the word of a plane, and in that of a block.
const FRAME_BITS: u32 = 40;
const WIDE_FRAME_BITS: u32 = 45;
const SHADOW_BITS: u32 = 12;
/// Set in each hint of a block; and in one that is doubted.
const THERE: u64 = 1 << 63;
const DOUBTED: u64 = 1 << 62;

/// Maximum number of shadows that hints can tell apart.
pub(super) const MAX_SHADOWS: usize = 1 << SHADOW_BITS;
/// The word of a plane without a hint.
pub(super) const NONE: Word = Word::OLDEST;

impl RmapHint {
    /// Encodes the hint as the word of a plane, if that has bits for it.
    #[inline(always)]
    pub(super) fn word(self) -> Option<Word> {
        (self.g2.0 >> FRAME_BITS == 0).then(|| Word::frozen((self.shadow as u64) << FRAME_BITS | self.g2.0))
    }

    pub(super) fn of_word(word: Word) -> Self {
        let said = word.version().get();
        Self { shadow: (said >> FRAME_BITS) as usize, g2: Gfn(said & ((1 << FRAME_BITS) - 1)) }
    }

    fn bits(self) -> u64 {
        THERE | (self.shadow as u64) << WIDE_FRAME_BITS | self.g2.0
    }

    fn of_bits(bits: u64) -> Self {
        let shadow = (bits >> WIDE_FRAME_BITS) as usize & (MAX_SHADOWS - 1);
        Self { shadow, g2: Gfn(bits & ((1 << WIDE_FRAME_BITS) - 1)) }
    }

    /// Enters the hint in the word of a plane that has none. Returns `None` if another one is there.
    #[inline(always)]
    pub(crate) fn enter(self, entry: &Entry) -> Option<HintAt<'_>> {
        let (wanted, word) = (self.word()?, entry.load());
        let is_there = word == wanted || word == NONE && entry.cas(NONE, wanted).is_ok();
        is_there.then_some(HintAt::First(entry, wanted))
    }
}

/// A hint, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HintAt<'a> {
    /// The word of a plane.
    First(&'a Entry, Word),
    /// In a block.
    Block(&'a AtomicU64, u64),
}

impl HintAt<'_> {
    /// Whether the hint is still there, and not doubted. Called by a fault that has frozen its entry, after its fence.
    #[inline(always)]
    pub(crate) fn stands(&self) -> bool {
        // After the fence in `stands`, or on the short path; pairs with the one in `replaces_stale`.
        match *self {
            Self::First(entry, word) => entry.load() == word,
            Self::Block(place, bits) => place.load(Relaxed) == bits,
        }
    }

    /// Removes the hint. If it fails, a fault has entered another one, or has moved it, and will begin again.
    pub(super) fn remove(self) {
        match self {
            Self::First(entry, word) => drop(entry.cas(word, NONE)),
            Self::Block(place, bits) => _ = exchange(place, bits, 0),
        }
    }

    pub(super) fn hint(self) -> RmapHint {
        match self {
            Self::First(_, word) => RmapHint::of_word(word),
            Self::Block(_, bits) => RmapHint::of_bits(bits),
        }
    }
}

/// Number of hints in a block.
pub(super) const HINTS: usize = if cfg!(loom) { 2 } else { 6 };

/// A block of hints. See the module's header.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct HintBlock {
    hints: [AtomicU64; HINTS],
    below: [AtomicPtr<HintBlock>; 2],
}

const _: () = assert!(cfg!(loom) || size_of::<HintBlock>() == 64);

/// A place of a block, and its contents.
type Place<'a> = (&'a AtomicU64, u64);

/// Replaces the contents of a place, as [`Entry::cas`] does those of a table's word. Returns false if they have changed.
fn exchange(place: &AtomicU64, old: u64, new: u64) -> bool {
    // Relaxed: the fences of the fault, of the invalidation and of `replaces_stale` order it.
    place.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
}

impl HintBlock {
    /// Writes the first hints of a block that no other thread reaches.
    pub(super) fn fill<const N: usize>(&self, hints: [Option<RmapHint>; N]) {
        for (place, hint) in self.hints.iter().zip(hints) {
            place.store(hint.map_or(0, RmapHint::bits), Relaxed);
        }
    }

    /// Returns a hint by its index.
    pub(super) fn at(&self, nth: usize, hint: RmapHint) -> HintAt<'_> {
        HintAt::Block(&self.hints[nth], hint.bits())
    }

    /// Enters a hint below this block, the first of page `g1`. `is_stale` tells whether the leaf of a hint of this page
    /// is gone.
    pub(super) fn enter(
        &self,
        hint: RmapHint,
        spare: &mut Vec<SpareBlock>,
        (doubts, g1): (&Doubts, Gfn),
        is_stale: impl Fn(RmapHint) -> bool,
    ) -> Result<HintAt<'_>, NoMemory> {
        let wanted = hint.bits();
        loop {
            let path = self.path(hint);
            let places = || path.clone().flat_map(Self::places);
            let is_there = |place| Ok(HintAt::Block(place, wanted));
            let there = places().find(|(_, bits)| bits & !DOUBTED == wanted);
            if let Some((place, bits)) = there.or_else(|| places().find(|(_, bits)| *bits == 0)) {
                // A doubted hint is firm again: the thread that doubts it then leaves it.
                if bits == wanted || exchange(place, bits, wanted) {
                    return is_there(place);
                }
                continue;
            }
            if let Some(doubt) = doubts.begin(g1) {
                let stale = places().find(|&(place, bits)| {
                    bits == 0 || Doubt::replaces_stale(&doubt, (place, bits), wanted, &is_stale)
                });
                match stale {
                    Some((place, 0)) if !exchange(place, 0, wanted) => {
                        continue;
                    }
                    Some((place, _)) => return is_there(place),
                    None => {}
                }
            }
            let (last, nth) = path.last().ok_or(NoMemory)?;
            let spared = spare.pop().ok_or(NoMemory)?;
            let fresh = spared.0;
            // SAFETY: a block that only this thread has.
            unsafe { fresh.as_ref() }.fill([Some(hint)]);
            // The hint before the link to its block.
            let order = order!(hint_blocks.link, Release);
            if last.below[nth].compare_exchange(null_mut(), fresh.as_ptr(), order, Relaxed).is_ok() {
                // SAFETY: linked, so it stays.
                return Ok(unsafe { fresh.as_ref() }.at(0, hint));
            }
            // SAFETY: as above: the block was not linked.
            unsafe { fresh.as_ref() }.fill([None]);
            spare.push(spared);
        }
    }

    /// The blocks that may have the hint, each with the index of the link to the next one.
    fn path(&self, hint: RmapHint) -> impl Iterator<Item = (&Self, usize)> + Clone {
        // A product with an odd number: different hints have different paths.
        let mut turns = hint.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = Some(self);
        core::iter::from_fn(move || {
            let block = next?;
            turns = turns.rotate_left(1);
            let nth = (turns & 1) as usize;
            next = block.below(nth);
            Some((block, nth))
        })
    }

    /// Returns a block below this one.
    fn below(&self, nth: usize) -> Option<&Self> {
        // Pairs with the exchange that linked it.
        let block = self.below[nth].load(order!(hint_blocks.follow, Acquire));
        // SAFETY: null, or a block that was linked and stays until the VM is dropped.
        unsafe { block.as_ref() }
    }

    fn places((block, _): (&Self, usize)) -> impl Iterator<Item = Place<'_>> {
        block.hints.iter().map(|place| (place, place.load(Relaxed)))
    }

    /// Calls `visit` with each hint in this block and below it, from place `from` on, until it returns false. Returns
    /// whether it never did. `nth` counts places; blocks that are linked meanwhile only make the same place a later one.
    pub(super) fn each<'a>(
        &'a self,
        from: u64,
        nth: &mut u64,
        visit: &mut impl FnMut(HintAt<'a>) -> bool,
    ) -> bool {
        for place in &self.hints {
            *nth += 1;
            let bits = if *nth > from { place.load(Relaxed) } else { 0 };
            if bits != 0 && !visit(HintAt::Block(place, bits)) {
                return false;
            }
        }
        (0..2).all(|side| self.below(side).is_none_or(|block| block.each(from, nth, visit)))
    }
}

/// The pages of L1 of which a thread doubts hints: a bit for many pages.
#[derive(Debug, Default)]
pub(crate) struct Doubts(AtomicU64);

/// The only thread that doubts hints of a page.
struct Doubt<'a>(&'a AtomicU64, u64);

impl Doubts {
    /// Begins to doubt hints of a page, unless another thread does.
    fn begin(&self, g1: Gfn) -> Option<Doubt<'_>> {
        // Of pages of any size, neighbours have different bits.
        let bit = 1 << ((g1.0 ^ g1.0 >> 9 ^ g1.0 >> 18) % 64);
        // Pairs with the end of `Doubt`: hints that were doubted before are decided.
        let before = self.0.fetch_or(bit, order!(hint_doubt.begin, Acquire));
        (before & bit == 0).then_some(Doubt(&self.0, bit))
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        // For `begin`.
        self.0.fetch_and(!self.1, order!(hint_doubt.end, Release));
    }
}

impl Doubt<'_> {
    /// Replaces a hint by `wanted` if its leaf is gone. Only the thread with the doubt of the page does so.
    fn replaces_stale(
        _: &Self,
        (place, bits): Place<'_>,
        wanted: u64,
        is_stale: &impl Fn(RmapHint) -> bool,
    ) -> bool {
        let (hint, doubted) = (RmapHint::of_bits(bits), bits | DOUBTED);
        if !is_stale(hint) {
            return false;
        }
        // A thread that panicked may have left it doubted.
        if bits != doubted && !exchange(place, bits, doubted) {
            return false;
        }
        // The doubt before the second look at the entry; pairs with the fence between a fault's frozen entry and its look
        // at the hint.
        fence!(hint_doubt.doubt);
        let new = if is_stale(hint) { wanted } else { bits & !DOUBTED };
        // If it fails, a fault has made the hint firm, or an invalidation has removed it.
        exchange(place, doubted, new) && new == wanted
    }
}

/// A block without hints, which only its holder has.
#[derive(Debug)]
pub(crate) struct SpareBlock(pub(super) NonNull<HintBlock>);

// SAFETY: only its holder has the block.
unsafe impl Send for SpareBlock {}

impl SpareBlock {
    /// Number of blocks that a vCPU gets at a time. A fault needs one.
    pub(super) const AT_ONCE: usize = 8;

    /// A block that stays for ever.
    #[cfg(all(test, feature = "std", not(shuttle)))]
    pub(super) fn leaked() -> Self {
        Self(NonNull::from(alloc::boxed::Box::leak(alloc::boxed::Box::default())))
    }

    /// Makes blocks of a page that only the caller has.
    pub(super) fn split(page: Node) -> impl Iterator<Item = Self> {
        (0..crate::PAGE_SIZE as usize / size_of::<HintBlock>()).map(move |nth| {
            // SAFETY: inside the page, which is aligned to its size.
            let block = unsafe { page.page().cast::<HintBlock>().add(nth) };
            // SAFETY: only the caller has the page.
            unsafe { block.write(HintBlock::default()) };
            Self(block)
        })
    }
}
