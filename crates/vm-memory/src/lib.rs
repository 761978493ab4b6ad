//! rust-vmm's [`vm_memory`] traits on slat: memslots, dirty logs, and memory whose pages can move.
//!
//! ```
//! use slat_vm_memory::{Region, SlotId, SlotMemory};
//! use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryBackend, MmapRegion};
//!
//! // 1 MiB of RAM at 0 and a ROM of 64 KiB below 4 GiB. Both appear at once, or neither.
//! let memory = SlotMemory::default();
//! let ram = Region::new(SlotId(0), GuestAddress(0), MmapRegion::<()>::new(1 << 20)?)?;
//! let rom = Region::new(SlotId(1), GuestAddress(0xffff_0000), MmapRegion::<()>::new(64 << 10)?)?.readonly();
//! memory.commit(|tx| {
//!     tx.insert(ram)?;
//!     tx.insert(rom)
//! })?;
//!
//! // A device holds a snapshot, and reads and writes through vm-memory's traits.
//! let device = memory.memory();
//! device.write_obj(7u64, GuestAddress(0x5ff8))?;
//! assert_eq!(device.read_obj::<u64>(GuestAddress(0x5ff8))?, 7);
//! assert!(device.write_obj(7u64, GuestAddress(0xffff_0000)).is_err(), "read-only");
//!
//! // The dirty log has the written page.
//! let mut pages = Vec::new();
//! device.raw().harvest(|gfn| pages.push(gfn.0));
//! assert_eq!(pages, [5]);
//!
//! // Unplug the RAM. The device's snapshot does not change.
//! memory.commit(|tx| tx.remove(SlotId(0)))?;
//! assert!(device.read_obj::<u64>(GuestAddress(0x5ff8)).is_ok());
//! assert!(memory.memory().read_obj::<u64>(GuestAddress(0x5ff8)).is_err());
//! assert_eq!(memory.memory().raw().num_regions(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | trait of vm-memory | type here | contents |
//! |---|---|---|
//! | `GuestMemoryRegion` | [`Region`] | a memslot and the memory behind it; its length is in bytes, not pages |
//! | `GuestMemoryBackend` | [`Memory`] | the regions of one version of the slots, without permission checks |
//! | `GuestMemory` | [`Checked`] | the same with permissions: read-only slots refuse writes |
//! | `GuestAddressSpace` | [`SlotMemory`] | the current slots, changed by transactions; each `memory()` is a snapshot |
//! | `Bitmap` | [`Marks`] | a dirty log of the region, one bit per page |
#![cfg_attr(feature = "mm", doc = "| | [`EngineLog`] | the dirty log of the engine's VM |")]
#![cfg_attr(
    feature = "mm",
    doc = "| `GuestMemory` | [`Live`] | memory of slat-mm, whose pages come in when they are used |"
)]
#![cfg_attr(feature = "iommu", doc = "| `GuestMemory` | [`BehindIommu`] | any of these, behind an `Iommu` |")]
//!
//! # Guarantees for devices
//! * A snapshot never changes. Its memory stays mapped while it is held.
//! * A store through vm-memory's traits is marked after it is made, in the same call. So a page that a harvest
//!   finds clean has no new contents; the current or the next harvest finds a concurrent store.
//! * A log is created with its region and lives as long, so old snapshots can mark in it too.
#![deny(missing_docs)]

#[cfg(feature = "iommu")]
mod behind_iommu;
mod checked;
#[cfg(feature = "mm")]
mod engine;
#[cfg(feature = "mm")]
mod live;
mod marks;
mod region;
mod slot_memory;
mod slot_regions;
#[cfg(feature = "mm")]
mod view;

#[cfg(feature = "iommu")]
pub use behind_iommu::BehindIommu;
pub use checked::{Checked, Slices};
#[cfg(feature = "mm")]
pub use engine::{EngineLog, EngineMarks};
#[cfg(feature = "mm")]
pub use live::{Live, LiveSlices};
pub use marks::{Marks, MarksFrom};
pub use region::{Mapped, Region, SlotRegion};
pub use slat_slots::{CommitError, Gfn, Slot, SlotError, SlotId};
pub use slot_memory::{SlotMemory, SlotTransaction};
pub use slot_regions::Memory;
#[cfg(feature = "mm")]
pub use view::View;
