//! The memslots of a virtual machine: which guest frames exist, and which host address is behind each.
//!
//! A VMM's memory map, from hotplug to a device's look-ups:
//!
//! ```
//! use slat_slots::{Gfn, Hva, SharedSlots, Slot, SlotId, Span};
//!
//! // 4 GiB of RAM around the hole below 4 GiB, and a ROM in it. All three appear at once, or none.
//! let (low, high, rom) = (SlotId(0), SlotId(1), SlotId(2));
//! let mut memory: SharedSlots = SharedSlots::default();
//! memory.commit(|tx| {
//!     tx.create(Slot::new(low, Gfn(0), 0xc_0000, Hva(0x7f00_0000_0000)))?;
//!     tx.create(Slot::new(high, Gfn(0x10_0000), 0x4_0000, Hva(0x7f00_c000_0000)))?;
//!     tx.create(Slot::new(rom, Gfn(0xf_fff0), 16, Hva(0x7e00_0000_0000)).readonly())
//! })?;
//!
//! // A device holds a snapshot. It is owned, cheap to clone, Send and Sync.
//! let seen = memory.snapshot();
//! let slot = seen.find(Gfn(0x10_0005)).unwrap();
//! assert_eq!((slot.id, slot.hva_of(Gfn(0x10_0005))), (high, Hva(0x7f00_c000_5000)));
//! assert_eq!(seen.find(Gfn(0xd_0000)), None, "the hole");
//!
//! // Which guest frames map to these host pages?
//! let mut frames = Vec::new();
//! seen.over_hvas(Span::new(Hva(0x7f00_bfff_f000), Hva(0x7f00_c000_1000)), |gfns| frames.push(gfns));
//! assert_eq!(frames, [Span::new(Gfn(0xb_ffff), Gfn(0xc_0000)), Span::new(Gfn(0x10_0000), Gfn(0x10_0001))]);
//!
//! // KVM's rules: no frame belongs to two slots. A refused operation ends the transaction, and the ROM is still there.
//! let refused = memory.commit(|tx| {
//!     tx.delete(rom)?;
//!     tx.move_to(high, Gfn(0x100))
//! });
//! assert_eq!(refused.unwrap_err().errno(), 17, "EEXIST");
//! assert!(memory.snapshot().get(rom).is_some());
//!
//! // Unplug the upper RAM and log writes to the lower. The device's snapshot does not change.
//! memory.commit(|tx| {
//!     tx.delete(high)?;
//!     tx.set_log_dirty(low, true)
//! })?;
//! assert!(seen.find(Gfn(0x10_0005)).is_some());
//! assert_eq!(memory.snapshot().find(Gfn(0x10_0005)), None);
//! # Ok::<(), slat_slots::SlotError>(())
//! ```
//!
//! # How it works
//!
//! ```text
//! gfn ──by_gfn──▶ slot ──▶ hva          slots never overlap here
//! hva range ──by_hva──▶ gfn ranges       slots may overlap here (aliases)
//! id ──by_id──▶ slot                    slot operations
//! ```
//! All three are copy-on-write B+trees; together they are one version of the slots. A change costs O(log n):
//! the next version shares all nodes with the last that the change did not touch. Readers never block, and see
//! one version, never a mixture. (The idea is that of the scalable memslots series, Linux, 2021-11.)
//!
//! | module | contents |
//! |---|---|
//! | [`addr`] | addresses and frames, one type each; ranges; page sizes |
//! | `slot` | [`Slot`]; a slot in two words, [`Packed`] |
//! | [`rules`] | requests, and why they are refused: KVM's rules, in KVM's order |
//! | [`shared`] | [`SharedSlots`] and [`Snapshot`]: versions with reference counts |
//! | [`map`] | [`SlotMap`]: one owner; for embedders with a read side of their own |
//! | `transaction` | [`Transaction`]: operations on the next version |
//! | `private` | slots with shared and private memory, frame by frame |
//! | `version` | [`Version`]: look-ups in one version |
//! | `log` | [`Log`]: a user-defined value for each slot that logs writes |
//! | [`ranges`] | the B+tree alone: a map from ranges to values, in versions |
//! | `tree`, `pool` | the B+tree; memory for its nodes, allocated before an edit |
//!
//! The crate has no atomic operations or locks of its own. Snapshots are [`Arc`](alloc::sync::Arc)s.
//!
//! # Decisions
//! * **Trees** instead of a sorted array, where each change copies every slot, or two copies of everything.
//!   Readers see one version, and a change costs O(log n).
//! * **Ids are a third tree**, not a hash table: only slot operations look ids up, and a tree of a million ids
//!   has four levels.
//! * **A version knows whether any two slots share host addresses.** If none do, a look-up by host address is
//!   as simple as one by frame.
#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]

extern crate alloc;

pub mod addr;
#[cfg(test)]
mod allocator_tests;
#[cfg(test)]
mod cut_tests;
mod log;
pub mod map;
mod memory_type;
mod pool;
mod prim;
mod private;
pub mod ranges;
#[cfg(test)]
mod rollback_tests;
pub mod rules;
pub mod shared;
mod slot;
mod transaction;
mod tree;
#[cfg(test)]
mod tree_tests;
mod version;

pub use addr::{Gfn, Gpa, Hva, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, PrivateMemory, Span};
pub use log::Log;
pub use map::SlotMap;
pub use memory_type::MemoryType;
pub use rules::{Change, CommitError, Limits, Region, Rule, SlotError};
pub use shared::{SharedSlots, Snapshot};
pub use slot::{Packed, Slot, SlotId};
pub use transaction::{Effects, Transaction};
pub use version::{Interval, Leftovers, Place, Version, VersionRoot};
