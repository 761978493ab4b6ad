//! What is remembered of a frame beside its references: a word for each, lazily populated.
//!
//! ```text
//! 63 .......... 8 | 7 .......... 0
//! pins            | last accessing node + 1; 0: no access was seen
//! ```
//! * A **pin** says that a device uses the frame ([`crate::pin`]). Each comes with a reference.
//! * The **last accessing node** is what the balancer learnt from the last hint fault ([`crate::numa`]).

use crate::error::MmError;
use crate::mapping::Mapping;
use crate::numa::Node;
use slat::Pfn;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const NODE: u64 = 0xff;
const PIN: u64 = NODE + 1;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Notes(Mapping);

impl Notes {
    /// Of this many frames.
    pub(crate) fn new(frames: u64) -> Result<Self, MmError> {
        Ok(Self(Mapping::anonymous(frames as usize * size_of::<AtomicU64>())?))
    }

    /// # Panics
    /// For what is no frame of the arena.
    fn of(&self, pfn: Pfn) -> &AtomicU64 {
        let len = self.0.len() / size_of::<AtomicU64>();
        // SAFETY: as many zeroed, aligned words, only ever used as atomics.
        let words: &[AtomicU64] = unsafe { std::slice::from_raw_parts(self.0.base().as_ptr().cast(), len) };
        &words[pfn.0 as usize]
    }

    /// A frame is used anew.
    pub(crate) fn forget(&self, pfn: Pfn) {
        let word = self.of(pfn);
        // Looking costs no memory, writing would.
        if word.load(Relaxed) != 0 {
            word.store(0, Relaxed);
        }
    }

    /// One pin more. The caller has a reference for it.
    pub(crate) fn pin(&self, pfn: Pfn) {
        self.of(pfn).fetch_add(PIN, Relaxed);
    }

    /// One pin less. Its reference is given back after this.
    pub(crate) fn unpin(&self, pfn: Pfn) {
        // ORDER(pin): Release: whatever the device did comes before; pairs with `pins`.
        self.of(pfn).fetch_sub(PIN, Release);
    }

    /// How often the frame is pinned.
    pub(crate) fn pins(&self, pfn: Pfn) -> u64 {
        // ORDER(pin): Acquire: who finds no device sees that it is done.
        self.of(pfn).load(Acquire) / PIN
    }

    /// `node` has accessed the frame; who had before?
    pub(crate) fn accessed(&self, pfn: Pfn, node: Node) -> Option<Node> {
        let new = u64::from(node.0) + 1;
        let step = |word: u64| Some(word & !NODE | new);
        // It cannot fail: `step` always has an answer.
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
