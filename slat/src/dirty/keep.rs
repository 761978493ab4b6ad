//! D bits outlive their leaves: what is written in a leaf is marked in the bitmap before the leaf goes.
//!
//! Before, not after: who finds no leaf any more looks at the marks next (`log`), and must find this one. Where the edit
//! then fails, because the leaf has changed, the page was written all the same. And where a whole harvest takes the mark in
//! between, the edit may succeed though the leaf has been written once more: so a harvest waits for such edits
//! ([`super::log`]).
//!
//! Who looks up the slot does so between reading the leaf and replacing it, in one section: if the edit succeeds, the leaf
//! was there at that moment, and it was this slot's ([`super::log`] says why).
//!
//! **Tables** go with what hangs in them, and no harvest looks at their leaves again. So where anything is logged by D bits,
//! tables are emptied leaf by leaf first, and go in a second pass, when faults have long been waiting and nothing can
//! have come back ([`Invalidation`](crate::Invalidation)).

use crate::addr::{Gfn, Level, Span};
use crate::host::Host;
use crate::sync::mode::Mode;
use crate::sync::prim::{SeqCst, fence};
use crate::table::entry::Word;
use crate::table::format::Format;
use crate::walk::Walk;

/// The D bits of tables have been read, and the marks are looked at next.
pub(super) fn tables_before_marks() {
    // ORDER(keep): the entries before the marks: a harvest that saw no leaf any more sees its mark. See `keep_dirty`.
    if !seeded!(KeepUnfenced) {
        fence(SeqCst);
    }
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// The entry of `gfn` is about to become `new` from `old`. Large leaves of slots that log have nothing to keep
    /// (`arm`).
    #[inline(always)]
    pub(crate) fn keep_dirty(&self, (old, new): (Word, Word), level: Level, gfn: Gfn) {
        let dirty = |word: Word| F::is_present(word) && word.0 & F::DIRTY != 0;
        let keeps = self.vm.logs_by_bits() && !seeded!(LeafUnmarked);
        if keeps && level == Level::K4 && dirty(old) && !dirty(new) {
            // ORDER(keep): the mark before the CAS by which the leaf goes, a Release; pairs with `tables_before_marks`.
            self.space.memslots.log_writes(&self.vm.reads, self.seat, Span::sized(gfn, 1));
        }
    }

    /// Whether leaves in a table may have something to keep, for the section of this walk.
    pub(crate) fn keeps_tables(&self) -> bool {
        let keeps = self.vm.logs_by_bits() && !seeded!(TableUnemptied);
        keeps && self.space.memslots.read(&self.vm.reads, self.seat).version.logs_any()
    }
}
