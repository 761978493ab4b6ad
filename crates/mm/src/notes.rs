//! Notes about frames beside their references: a word for each frame, lazily populated.
//!
//! ```text
//! 63 ... 24 | 23 ... 12 | 8         | 7 .......... 0
//! pins      | group     | file page | last accessing node + 1; 0: no access seen
//! ```
//! * A **pin** says that a device uses the frame ([`crate::pin`]). Each pin comes with a reference.
//! * The **last accessing node** is known from the last hint fault ([`crate::numa`]).

use crate::error::MmError;
use crate::ledger::Owner;
use crate::mapping::Mapping;
use crate::nodes::Node;
use slat::Pfn;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const NODE: u64 = 0xff;
const FILE: u64 = NODE + 1;
const OWNER: u32 = 12;
const OWNERS: u64 = ((1 << Owner::BITS) - 1) << OWNER;
const PIN: u64 = OWNERS + (1 << OWNER);

const _: () = assert!(PIN == 1 << 24);

/// A note for each frame of an arena.
#[derive(Debug)]
pub(crate) struct Notes(Mapping);

impl Notes {
    /// Allocates notes for this many frames.
    pub(crate) fn new(frames: u64) -> Result<Self, MmError> {
        Ok(Self(Mapping::anonymous(frames as usize * size_of::<AtomicU64>())?))
    }

    /// # Panics
    /// If `pfn` is no frame of the arena.
    fn of(&self, pfn: Pfn) -> &AtomicU64 {
        let len = self.0.len() / size_of::<AtomicU64>();
        // SAFETY: that many zeroed, aligned words, only ever used as atomics.
        let words: &[AtomicU64] = unsafe { std::slice::from_raw_parts(self.0.base().as_ptr().cast(), len) };
        &words[pfn.0 as usize]
    }

    /// Clears the note of a frame at its next use.
    pub(crate) fn forget(&self, pfn: Pfn) {
        let word = self.of(pfn);
        // A load does not populate the page; a store would.
        if word.load(Relaxed) != 0 {
            word.store(0, Relaxed);
        }
    }

    /// Adds a pin. The caller has a reference for it.
    pub(crate) fn pin(&self, pfn: Pfn) {
        self.of(pfn).fetch_add(PIN, Relaxed);
    }

    /// Removes a pin. The caller drops its reference after this.
    pub(crate) fn unpin(&self, pfn: Pfn) {
        // ORDER(pin): Release: the device's accesses come before; pairs with `pins`.
        self.of(pfn).fetch_sub(PIN, Release);
    }

    /// Returns the number of pins of a frame.
    pub(crate) fn pins(&self, pfn: Pfn) -> u64 {
        // ORDER(pin): Acquire: a thread that finds no pin sees all accesses of the device.
        self.of(pfn).load(Acquire) / PIN
    }

    /// Assigns the frame to a group, unless it has one; returns whether it had none. The caller has a reference
    /// to it.
    pub(crate) fn own(&self, pfn: Pfn, owner: Owner, is_file: bool) -> bool {
        let owned = owner.number() << OWNER | if is_file { FILE } else { 0 };
        let step = |word: u64| (word & OWNERS == 0).then_some(word | owned);
        self.of(pfn).fetch_update(Relaxed, Relaxed, step).is_ok()
    }

    /// Returns the frame's group and whether it was a file page, and clears both. The caller has dropped the
    /// last reference.
    pub(crate) fn disown(&self, pfn: Pfn) -> Option<(Owner, bool)> {
        let word = self.of(pfn).load(Relaxed);
        if word & OWNERS == 0 {
            return None;
        }
        self.of(pfn).store(word & !(OWNERS | FILE), Relaxed);
        Some((Owner::of((word & OWNERS) >> OWNER), word & FILE != 0))
    }

    /// Records an access by `node`, and returns the node of the previous access.
    pub(crate) fn accessed(&self, pfn: Pfn, node: Node) -> Option<Node> {
        let new = u64::from(node.0) + 1;
        let step = |word: u64| Some(word & !NODE | new);
        // Cannot fail, since `step` always returns a value.
        let old = self.of(pfn).fetch_update(Relaxed, Relaxed, step).unwrap_or_default();
        (old & NODE).checked_sub(1).map(|node| Node(node as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_and_nodes_do_not_meet() {
        let notes = Notes::new(4).unwrap();
        let pfn = Pfn(2);
        assert_eq!((notes.accessed(pfn, Node(254)), notes.pins(pfn)), (None, 0));
        notes.pin(pfn);
        notes.pin(pfn);
        assert_eq!((notes.accessed(pfn, Node(0)), notes.pins(pfn)), (Some(Node(254)), 2));
        notes.unpin(pfn);
        assert_eq!((notes.accessed(pfn, Node(1)), notes.pins(pfn)), (Some(Node(0)), 1));
        assert_eq!((notes.accessed(Pfn(1), Node(1)), notes.pins(Pfn(3))), (None, 0), "neighbours");
        notes.forget(pfn);
        assert_eq!((notes.accessed(pfn, Node(1)), notes.pins(pfn)), (None, 0));
    }
}
