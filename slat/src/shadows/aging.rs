//! Aging of L1 frames that L2 accesses: reads Accessed in the leaves that hints lead to.
//!
//! L1's own mapping of a frame may be cold or absent while L2 uses the frame, so an aging pass over L1 frames also asks
//! here. As in [`crate::age`], the pass zaps nothing: one exchange clears a bit or withdraws a leaf, unless the leaf
//! changes.

use super::reach::g2s_of;
use super::{LeafRow, Rows, Shadows, Stretches};
use crate::table::cursor::{Cursor, Step};
use crate::{Format, Gfn, Level, Span, TableMemory, Word};

impl<F: Format> Shadows<F> {
    /// Looks in a stretch of `g1s` for a frame with a hint. Returns the 2 MiB around the first one, clamped to `g1s`, or
    /// the end of the stretch.
    pub(crate) fn next_used<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>) -> Result<Span<Gfn>, Gfn> {
        let mut left = Stretches::new(g1s);
        let Some(first) = self.reverse.first(memory, &mut left) else { return Err(left.goal()) };
        let first = first.max(g1s.start);
        Ok(Span::sized(first.base(Level::M2), Level::M2.pages()).clamp(&g1s))
    }

    /// Returns a bit for each of `g1s`, frames of one 2 MiB, that L2 has accessed since its bit was cleared.
    pub(crate) fn young<M: TableMemory>(&self, memory: &M, g1s: Span<Gfn>, clears: bool) -> [u64; 8] {
        let (mut bits, mut left) = ([0; 8], Stretches::new(g1s));
        while !left.is_over() {
            self.reverse.stretch(memory, &mut left, |at, page, part| {
                let (hint, mut entries) = (at.hint(), 1);
                let g2 = hint.g2;
                let Some((shadow, _inside)) = self.visit(hint.shadow) else { return entries };
                let g2s = g2s_of(page, g2, part);
                // SAFETY: roots stay.
                let root = unsafe { shadow.radix.root(memory) };
                let mut cursor = Cursor::<F>::new(root, g2s, Level::K4);
                // SAFETY: in a counted walk.
                while let Some(Step { at, gfns }) = unsafe { cursor.next(memory) } {
                    entries += 1;
                    let Some(aged) = aged::<F>(at.word).filter(|_| !F::is_table(at.word, at.level)) else {
                        continue;
                    };
                    let g1 = (page.start + (gfns.start.max(g2).0 - g2.0)).base(at.level);
                    // SAFETY: as above.
                    let row = unsafe { Rows::of(memory, at.node) }
                        .map(|rows| rows.get(F::index(gfns.start, at.level)));
                    if row.is_some_and(|row: LeafRow| !row.may_name(g1)) {
                        continue;
                    }
                    if clears {
                        let _ = at.entry.cas(at.word, aged);
                    }
                    let pages = Span::sized(g1, at.level.pages()).clamp(&g1s);
                    for bit in pages.start.0 - g1s.start.0..pages.end.0 - g1s.start.0 {
                        bits[(bit / 64) as usize] |= 1 << (bit % 64);
                    }
                }
                entries
            });
        }
        bits
    }
}

/// Returns a young leaf as an old one.
fn aged<F: Format>(word: Word) -> Option<Word> {
    if F::HARDWARE_AD {
        (F::is_present(word) && word.0 & F::ACCESSED != 0).then_some(Word(word.0 & !F::ACCESSED))
    } else {
        F::is_present(word).then(|| Word::withdrawn(&F::read_leaf(word)))
    }
}
