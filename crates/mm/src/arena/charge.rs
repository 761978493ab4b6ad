//! Charging frames to groups: [`ledger`](crate::ledger).

use super::Arena;
use crate::ledger::Owner;
use slat::{Pfn, Span};

impl Arena {
    /// Charges those of these frames, which are in use, to a group that are charged to none.
    pub(crate) fn charge(&self, frames: Span<Pfn>, owner: Owner, is_file: bool) {
        let Some(ledger) = self.ledgers().get(owner) else { return };
        let charged =
            (frames.start.0..frames.end.0).filter(|&pfn| self.notes().own(Pfn(pfn), owner, is_file));
        ledger.add(is_file, charged.count() as i64);
    }

    /// Credits a frame's group after the last reference is dropped.
    pub(crate) fn credit(&self, pfn: Pfn) {
        if let Some((owner, is_file)) = self.notes().disown(pfn)
            && let Some(ledger) = self.ledgers().get(owner)
        {
            ledger.add(is_file, -1);
        }
    }
}
