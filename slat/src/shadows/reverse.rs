//! The reverse map: from a frame of L1 to the shadow entries that were made of it.
//!
//! It consists of tables of the engine's own kind, indexed by the L1 frame. Their words are not leaves but **hints**:
//! (shadow, g2). A frame has up to four hints, one in each table. A fifth turns the last one into *many*: all entries
//! of all shadows. Tables are linked where a hint needs one: mostly 8 bytes for each L1 frame that L2 uses. Two more
//! tables serve pages of 2 MiB, and two pages of 1 GiB.
//!
//! A hint says where to look. The entry there may be a hole by now, or the leaf of another L1 frame. Only the converse
//! holds: **no TLB maps L2 to a page through an L1 frame that has no hint.** A fault enters the hint before its leaf.
//! An invalidation removes it after its flush, while faults on the frame still wait.

use crate::addr::{Gfn, Level, Span};
use crate::callbacks::Finally;
use crate::table::cursor::Cursor;
use crate::table::entry::{Entry, Word};
use crate::table::format::Format;
use crate::table::memory::{ENTRIES, Node, TableMemory};
use crate::table::pool::{Cache, NoMemory, Pool};
use crate::table::radix::Radix;
use alloc::vec::Vec;

/// Maximum number of hints of a 4 KiB frame before *many*; then of a page of 2 MiB, or of 1 GiB.
const SMALL: usize = 4;
const LARGE: usize = 2;
const PLANES: usize = SMALL + 2 * LARGE;
const FRAME_BITS: u32 = 40;
/// Instead of a shadow's number: all shadows.
const ALL: u64 = (1 << 12) - 1;
/// No hint.
const NONE: Word = Word::OLDEST;

/// Maximum number of shadows that hints can tell apart.
pub(super) const MOST: usize = ALL as usize;

/// The reverse map. See the module's header.
#[derive(Debug)]
pub(crate) struct Reverse<F> {
    /// The tables for pages of 4 KiB, then for 2 MiB, then for 1 GiB.
    planes: [Radix<F>; PLANES],
}

/// A place to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hint {
    /// This frame of L2, in this shadow.
    At(usize, Gfn),
    /// All entries of all shadows.
    Many,
}

impl Hint {
    const MANY: Word = Word::frozen(ALL << FRAME_BITS);

    /// Encodes the hint. A frame beyond the word's bits becomes *many*.
    fn word(self) -> Word {
        match self {
            Self::At(shadow, g2) if g2.0 >> FRAME_BITS == 0 => {
                Word::frozen((shadow as u64) << FRAME_BITS | g2.0)
            }
            _ => Self::MANY,
        }
    }

    /// Enters the hint if the entry has none. Returns true if the entry has this hint now.
    #[inline(always)]
    pub(crate) fn enter(self, entry: &Entry) -> bool {
        let (wanted, word) = (self.word(), entry.load());
        word == wanted || word == NONE && entry.cas(NONE, wanted).is_ok()
    }

    fn of(word: Word) -> Self {
        let said = word.version().get();
        let g2 = Gfn(said & ((1 << FRAME_BITS) - 1));
        if word == Self::MANY { Self::Many } else { Self::At((said >> FRAME_BITS) as usize, g2) }
    }
}

/// # Safety
/// No thread but this one has ever reached them.
unsafe fn give_back<F: Format, M: TableMemory>(
    planes: impl IntoIterator<Item = Radix<F>>,
    memory: &M,
    pool: &Pool,
) {
    for plane in planes {
        // SAFETY: the caller's word.
        unsafe { plane.give_back(memory, pool) };
    }
}

impl<F: Format> Reverse<F> {
    pub(super) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        // Those that were made go back if memory runs out, or if the host panics.
        let mut made = Finally::with(Vec::with_capacity(PLANES), |made: &mut Vec<_>| {
            if !seeded!(PlanesLost) {
                // SAFETY: made just now.
                unsafe { give_back(made.drain(..), memory, pool) };
            }
        });
        for _ in 0..PLANES {
            made.push(Radix::new(memory, pool)?);
        }
        let planes = core::mem::take(&mut *made).try_into().map_err(|_| NoMemory)?;
        Ok(Self { planes })
    }

    /// Gives its memory back to the pool.
    ///
    /// # Safety
    /// No thread but this one has ever reached it.
    pub(super) unsafe fn give_back<M: TableMemory>(self, memory: &M, pool: &Pool) {
        // SAFETY: the caller's word.
        unsafe { give_back(self.planes, memory, pool) };
    }

    fn planes(&self, level: Level) -> &[Radix<F>] {
        let (small, large) = self.planes.split_at(SMALL);
        match level {
            Level::K4 => small,
            Level::M2 => &large[..LARGE],
            _ => &large[LARGE..],
        }
    }

    /// F7: enters a hint for a page of `level`, up to 1 GiB, around `g1`. A present hint stays: if an invalidation
    /// removes it, the fault finds its entry changed, or the invalidation listed.
    pub(crate) fn add<M: TableMemory>(
        &self,
        memory: &M,
        cache: &mut Cache,
        (g1, level): (Gfn, Level),
        hint: Hint,
    ) -> Result<(), NoMemory> {
        let (wanted, planes) = (hint.word(), self.planes(level));
        for (nth, plane) in planes.iter().enumerate() {
            // SAFETY: nothing is ever unlinked from a plane.
            let mut at = unsafe { plane.descend(memory, g1) };
            if at.level > level {
                // SAFETY: as above.
                at = unsafe { Radix::<F>::link_down(memory, cache, g1, at, level) }?;
            }
            loop {
                let new = match at.word {
                    word if word == wanted || word == Hint::MANY => return Ok(()),
                    NONE => wanted,
                    _ if nth + 1 == planes.len() => Hint::MANY,
                    _ => break,
                };
                match at.entry.cas(at.word, new) {
                    Ok(()) => return Ok(()),
                    Err(found) => at.word = found,
                }
            }
        }
        Ok(())
    }

    /// Returns the first hints of the 2 MiB around `g1`, if any of them was ever entered.
    pub(crate) fn beside<'a, M: TableMemory>(&self, memory: &M, g1: Gfn) -> Option<&'a [Entry; ENTRIES]> {
        // SAFETY: nothing is ever unlinked from a plane.
        let top = unsafe { self.planes[0].top(memory, g1) };
        // SAFETY: as above.
        let table = unsafe { Radix::<F>::table(memory, (top, F::ROOT_LEVEL), g1, Level::K4) }?;
        // SAFETY: as above.
        Some(unsafe { table.entries() })
    }

    /// Calls `visit` with each hint of `g1s`, and the page that it is for.
    pub(super) fn hints<M: TableMemory>(
        &self,
        memory: &M,
        g1s: Span<Gfn>,
        mut visit: impl FnMut(Span<Gfn>, Hint),
    ) {
        self.entries(memory, g1s, |_, page, word| {
            visit(page, Hint::of(word));
            true
        });
    }

    /// Returns the first frame of `g1s` that has a hint, or the start of the page that has one.
    pub(super) fn first<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>) -> Option<Gfn> {
        let mut first = None;
        self.entries(memory, g1s, |_, page, _| {
            first = Some(first.map_or(page.start, |first: Gfn| first.min(page.start)));
            false
        });
        first
    }

    /// Removes the hints of `g1s`, a part of `all`, after the flush, while faults on `g1s` wait. The hint of a page
    /// that reaches out of `all` stays, for the parts of its split leaf. *Many* is removed.
    pub(crate) fn remove<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>, all: Span<Gfn>) {
        self.entries(memory, g1s, |entry, page, word| {
            if all.covers(&page) || word == Hint::MANY || seeded!(HintGoesWithPart) {
                // If it fails, a fault has entered another hint, and will begin again.
                let _ = entry.cas(word, NONE);
            }
            true
        });
    }

    /// Calls `visit` with the hints in each plane, until it returns false.
    fn entries<M: TableMemory>(
        &self,
        memory: &M,
        g1s: Span<Gfn>,
        mut visit: impl FnMut(&Entry, Span<Gfn>, Word) -> bool,
    ) {
        for level in [Level::K4, Level::M2, Level::G1] {
            for plane in
                self.planes(level).iter().filter(|_| level == Level::K4 || !seeded!(LargeHintsMissed))
            {
                // SAFETY: nothing is ever unlinked from a plane.
                let root = unsafe { plane.root(memory) };
                let mut cursor = Cursor::<F>::new(root, g1s, level);
                // SAFETY: as above.
                while let Some(step) = unsafe { cursor.next(memory) } {
                    let is_hint = step.at.level == level && step.at.word != NONE;
                    if is_hint && !visit(step.at.entry, step.gfns, step.at.word) {
                        break;
                    }
                }
            }
        }
    }

    /// Returns the roots, to count pages.
    pub(super) fn roots<M: TableMemory>(&self, memory: &M) -> impl Iterator<Item = Node> {
        // SAFETY: roots stay.
        self.planes.iter().map(|plane| unsafe { plane.root(memory) })
    }
}
