//! Dirty logging: which pages of a memslot have been written (seed 003).
//!
//! A slot that logs is mapped page by page and without write permission; the store that faults is what is logged
//! ([`fault`](crate::fault)). The marks live in a [`bitmap`] that belongs to the slot: it moves with the slot,
//! and goes when the log is switched off.

pub(crate) mod bitmap;
