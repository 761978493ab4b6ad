//! Frames are charged to groups: [`ledger`](crate::ledger).

use super::Arena;
use crate::ledger::Owner;
use slat::{Pfn, Span};

impl Arena {
    /// Charges these frames, which are in use, to a group, as far as they are charged to none.
    pub(crate) fn charge(&self, frames: Span<Pfn>, owner: Owner, is_file: bool) {
        let Some(ledger) = self.ledgers().get(owner) else { return };
        let charged =
            (frames.start.0..frames.end.0).filter(|&pfn| self.notes().own(Pfn(pfn), owner, is_file));
        ledger.add(is_file, charged.count() as i64);
    }

    /// The frame has lost its last reference.
    pub(crate) fn credit(&self, pfn: Pfn) {
        if let Some((owner, is_file)) = self.notes().disown(pfn)
            && let Some(ledger) = self.ledgers().get(owner)
        {
            ledger.add(is_file, -1);
        }
    }
}
