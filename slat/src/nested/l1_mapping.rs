//! Reads what T says of 2 MiB of L2, without an access: for flushes by L1, and for the short path of a fault.

use super::entry_words::{GuestWords, place_of};
use super::format::{L1Entry, L1Format, L1Rights};
use crate::{Access, Gfn, Host, Hva, Level, Perms, Slot, Word};

/// T's translation of 2 MiB of L2, as read during a section `'s`.
pub(super) enum L1Mapping<'s, H> {
    /// Nothing readable, from an entry of this level on.
    Nothing(Level),
    /// One leaf that maps all of it, as read, and the L1 frame of the first page.
    Page(L1Entry, Word, Gfn, Upper, Level),
    /// A leaf table, by the host address of its first entry for the range. The address is that of L1's memory as long as
    /// the section goes on.
    Table(GuestWords<'s, H>, Hva, Upper),
}

/// Bits of the entries above a leaf, combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Upper {
    pub(super) rights: L1Rights,
    /// Whether A is set in all of them. Counts as set where a bus drops stores.
    pub(super) accessed: bool,
    /// Whether the leaf's table is in a read-only memslot, so that its A and D stay clear.
    pub(super) is_read_only: bool,
}

impl Upper {
    /// Returns the accesses that a leaf below, read as `word`, allows, given its A, and its D for stores.
    #[inline(always)]
    pub(super) fn allows<T: L1Format>(self, table: &T, entry: &L1Entry, word: Word) -> Perms {
        let has = |bits: u64| bits & !word.0 == 0 || self.is_read_only;
        let rights = table.grants(self.rights.and(entry.rights));
        let perms = rights.perms;
        if !(self.accessed && has(entry.touch)) {
            return Perms::NONE;
        }
        Perms::of(
            perms.allows(Access::Read),
            perms.allows(Access::Write) && has(entry.touch_store),
            rights.of_both().allows(Access::Fetch),
        )
    }
}

impl<'s, H: Host> L1Mapping<'s, H> {
    /// The level of T's entry that decides.
    pub(super) fn level(&self) -> Level {
        match *self {
            Self::Nothing(level) | Self::Page(.., level) => level,
            Self::Table(..) => Level::K4,
        }
    }

    /// Reads T around `g2`, in the section of `words`, in which `find` finds memslots.
    pub(super) fn look<T: L1Format>(
        words: GuestWords<'s, H>,
        find: &mut impl FnMut(Gfn) -> Option<Slot>,
        table: &T,
        g2: Gfn,
    ) -> Self {
        let gpa = g2.base(Level::M2).gpa();
        let mut upper = Upper { rights: L1Rights::ALL, accessed: true, is_read_only: false };
        let (mut at, mut level) = table.start(gpa);
        if table.refuses(gpa).is_some() {
            return Self::Nothing(level);
        }
        loop {
            let place = place_of(table, at, gpa, level);
            let Some(slot) = find(place.gfn()) else { return Self::Nothing(level) };
            let hva = slot.hva_of(place.gfn()) + place.offset();
            upper.is_read_only = slot.readonly;
            if level == Level::K4 {
                return Self::Table(words, hva, upper);
            }
            let Some(word) = words.read(table, hva) else { return Self::Nothing(level) };
            let Ok(entry) = table.entry(word, level) else { return Self::Nothing(level) };
            if entry.is_leaf {
                let inside = gpa.gfn().0 & (table.pages(level) - 1);
                return Self::Page(entry, word, entry.gfn.base(level) + inside, upper, level);
            }
            upper.accessed &= entry.touch & !word.0 == 0 || slot.readonly;
            upper.rights = upper.rights.and(entry.rights);
            (at, level) = (entry.gfn.gpa(), level.down());
        }
    }
}
