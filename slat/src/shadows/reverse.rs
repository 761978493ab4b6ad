//! The way back: from a frame of L1 to the shadow entries that were made of it.
//!
//! Four tables of the engine's own kind, indexed by the L1 frame. Their words are no leaves but **hints**: (shadow, g2). A frame has up to
//! four of them, one in each table; a fifth makes the last one *many*: all entries of all shadows. Tables are linked where a hint is
//! needed: 8 bytes for each L1 frame that L2 uses, in one of them mostly.
//!
//! A hint says where to look. What stands there may be a hole by now, or the leaf of another L1 frame. What counts is the converse: **no
//! TLB leads from L2 to a page by way of an L1 frame that has no hint.** A fault enters the hint before its leaf; an invalidation removes
//! it after its flush, while faults on the frame still wait for it.

use crate::addr::{Gfn, Level, Span};
use crate::table::cursor::Cursor;
use crate::table::entry::{Entry, Word};
use crate::table::format::Format;
use crate::table::memory::{Node, TableMemory};
use crate::table::pool::{Cache, NoMemory, Pool};
use crate::table::radix::Radix;

/// Hints of a frame before it has *many*.
const PLANES: usize = 4;
const FRAME_BITS: u32 = 40;
/// In the place of a shadow's number: all of them.
const ALL: u64 = (1 << 12) - 1;
/// No hint.
const NONE: Word = Word::OLDEST;

/// How many shadows hints can tell apart.
pub(super) const MOST: usize = ALL as usize;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Reverse<F> {
    planes: [Radix<F>; PLANES],
}

/// Where to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hint {
    /// At this frame of L2 in this shadow.
    At(usize, Gfn),
    /// Everywhere.
    Many,
}

impl Hint {
    const MANY: Word = Word::frozen(ALL << FRAME_BITS);

    /// Beyond the frames that a word has room for it is *many*.
    fn word(self) -> Word {
        match self {
            Self::At(shadow, g2) if g2.0 >> FRAME_BITS == 0 => {
                Word::frozen((shadow as u64) << FRAME_BITS | g2.0)
            }
            _ => Self::MANY,
        }
    }

    fn of(word: Word) -> Self {
        let said = word.version().get();
        let g2 = Gfn(said & ((1 << FRAME_BITS) - 1));
        if word == Self::MANY { Self::Many } else { Self::At((said >> FRAME_BITS) as usize, g2) }
    }
}

impl<F: Format> Reverse<F> {
    pub(super) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        let make = || Radix::new(memory, pool);
        Ok(Self { planes: [make()?, make()?, make()?, make()?] })
    }

    /// F7: enters a hint. Not changed where it is there already: the invalidation that removes it bumps the entry that the fault met, or
    /// the fault finds it listed.
    pub(crate) fn add<M: TableMemory>(
        &self,
        memory: &M,
        cache: &mut Cache,
        g1: Gfn,
        hint: Hint,
    ) -> Result<(), NoMemory> {
        let wanted = hint.word();
        for (nth, plane) in self.planes.iter().enumerate() {
            // SAFETY: nothing is ever unlinked from a plane.
            let mut at = unsafe { plane.descend(memory, g1) };
            if at.level > Level::K4 {
                // SAFETY: as above.
                at = unsafe { Radix::<F>::link_down(memory, cache, g1, at, Level::K4) }?;
            }
            loop {
                let new = match at.word {
                    word if word == wanted || word == Hint::MANY => return Ok(()),
                    NONE => wanted,
                    _ if nth + 1 == PLANES => Hint::MANY,
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

    /// Calls `visit` with each hint of `g1s`.
    pub(super) fn for_each<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>, mut visit: impl FnMut(Hint)) {
        self.entries(memory, g1s, |_, word| visit(Hint::of(word)));
    }

    /// Removes the hints of `g1s`, which no fault relies on any more.
    pub(super) fn remove<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>) {
        self.entries(memory, g1s, |entry, word| {
            // Where that fails, a fault has entered another one, and will begin again.
            let _ = entry.cas(word, NONE);
        });
    }

    fn entries<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>, mut visit: impl FnMut(&Entry, Word)) {
        for plane in &self.planes {
            // SAFETY: nothing is ever unlinked from a plane.
            let root = unsafe { plane.root(memory) };
            let mut cursor = Cursor::<F>::new(root, g1s, Level::K4);
            // SAFETY: as above.
            while let Some(step) = unsafe { cursor.next(memory) } {
                if step.at.level == Level::K4 && step.at.word != NONE {
                    visit(step.at.entry, step.at.word);
                }
            }
        }
    }

    /// The roots, to count pages by.
    pub(super) fn roots<M: TableMemory>(&self, memory: &M) -> [Node; PLANES] {
        // SAFETY: roots stay.
        self.planes.each_ref().map(|plane| unsafe { plane.root(memory) })
    }
}
