//! What T says of 2 MiB of L2 without an access: nothing is demanded or set. For flushes by L1, and for what a fault remembers.

use super::format::{L1Entry, L1Format, L1Rights};
use super::stored::{place_of, read};
use crate::addr::{Gfn, Hva, Level};
use crate::host::Host;
use crate::slots::Slot;
use crate::table::entry::Word;
use crate::table::format::{Access, Perms};

/// What translates 2 MiB of L2, for a flush that asks what T says by now: nothing is set or demanded.
pub(super) enum Under {
    /// Nothing that can be read, from an entry of this level on.
    Nothing(Level),
    /// One leaf, which maps all of it, as it was read, and the L1 frame of the first page.
    Page(L1Entry, Word, Gfn, Upper, Level),
    /// A leaf table; where the host sees its first entry of those.
    Table(Hva, Upper),
}

/// What the entries above a leaf say together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Upper {
    pub(super) rights: L1Rights,
    /// A is set in all of them. So it counts where a bus drops stores.
    pub(super) accessed: bool,
    /// The table of the leaf is in a read-only memslot: its A and D stay clear.
    pub(super) is_read_only: bool,
}

impl Upper {
    /// What a leaf below, read as `word`, lets through: A as far as the format sets it, and D for stores.
    #[inline(always)]
    pub(super) fn allows<T: L1Format>(self, table: &T, entry: &L1Entry, word: Word) -> Perms {
        let has = |bits: u64| bits & !word.0 == 0 || self.is_read_only;
        let rights = if seeded!(UpperRightsIgnored) { entry.rights } else { self.rights.and(entry.rights) };
        let rights = table.grants(rights);
        let accessed = self.accessed && has(entry.touch) || seeded!(KeptUnaccessed);
        let dirty = has(entry.touch_store) || seeded!(KeptWritable);
        let perms = rights.perms;
        if !accessed {
            return Perms::NONE;
        }
        Perms::of(
            perms.allows(Access::Read),
            perms.allows(Access::Write) && dirty,
            rights.of_both().allows(Access::Fetch),
        )
    }
}

impl Under {
    /// The level at which T says it.
    pub(super) fn level(&self) -> Level {
        match *self {
            Self::Nothing(level) | Self::Page(.., level) => level,
            Self::Table(..) => Level::K4,
        }
    }

    /// Around `g2`, in a section in which `find` finds memslots.
    pub(super) fn look<T: L1Format, H: Host>(
        host: &H,
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
                return Self::Table(hva, upper);
            }
            let Some(word) = read(table, host, hva) else { return Self::Nothing(level) };
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
