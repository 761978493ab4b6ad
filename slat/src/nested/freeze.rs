//! F8 and F9 of a fault of L2: freezes a hole, checks for new announcements, and writes the row and the leaf.

use crate::active::Active;
use crate::fault::pursuit::Pursuit;
use crate::shadows::{FlushLine, Frozen, HOLE, LeafRow, Rows};
use crate::table::entry::{Entry, Word};

/// The announcements that were read before T, and before the host was asked.
pub(super) struct Announced {
    pub(super) pursuit: Pursuit,
    pub(super) line: u64,
    /// N, for a page of 1 GiB.
    pub(super) wide: Option<Word>,
}

/// F8: freezes a hole, then checks that the announcements stand. Returns `None` if not frozen. `part` is the line of
/// the shadow if the leaf maps a part of a page of T's.
#[inline(always)]
pub(super) fn freeze<'w>(
    entry: &'w Entry,
    mine: Word,
    part: Option<&FlushLine>,
    stands: impl Fn() -> bool,
) -> Option<Frozen<'w>> {
    if let Some(line) = part {
        line.will_splinter();
    }
    let frozen = Frozen::new(entry, HOLE, mine).ok()?;
    stands().then_some(frozen)
}

/// F9: writes the row, and the leaf into the frozen entry. Returns false if the entry was condemned: it is a hole then.
#[inline(always)]
pub(super) fn thaw_with(
    frozen: Frozen<'_>,
    rows: Option<(Rows<'_>, usize)>,
    new: Word,
    row: LeafRow,
) -> bool {
    if let Some((rows, index)) = rows {
        rows.set(index, row);
    }
    frozen.thaw(|entry, mine| entry.cas(mine, new)).is_some()
}

/// F8, after the hint: whether nothing was announced since F2 and F5 that the fault would have waited for.
pub(super) fn stands(active: &Active, pursuit: &Pursuit) -> bool {
    // The hint before the announcements are read; pairs with the fence in `Ticket::announce`.
    fence!(nested_hint.check);
    pursuit.stands(active)
}
