//! A primary MMU in user space on real memory, for [`slat`]: mappings, demand paging, copy-on-write, huge
//! pages, page migration. Before it takes anything away it notifies every VM, with the reason.
//!
//! ```
//! use slat::{table::formats::Npt4, *};
//! use slat_mm::*;
//! use std::sync::Arc;
//!
//! // Build an arena of 64 MiB and an address space on it, and map 4 MiB.
//! let mut idle = Idle::take().unwrap();
//! let arena = Arena::builder().limit(64 << 20).build()?;
//! let space = AddressSpace::builder(&arena).thp(true).build()?;
//! let memory = space.mmap(Place::Fixed(Hva(0x4000_0000)), 4 << 20, Prot::ReadWrite, Backing::Anonymous)?;
//!
//! // Build a VM that uses this mapping as guest memory.
//! let vm = Arc::new(Vm::<Npt4, _>::builder(HostView::new(&space)).build()?);
//! space.register(&vm);
//! vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1024, memory.start)))?;
//! let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
//! vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
//! let before = vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.pfn;
//!
//! // The host migrates the page. The guest loses its mapping first; its next fault maps the new frame.
//! space.write(&mut idle, memory.start + 0x5000, b"hello")?;
//! space.migrate(&mut idle, memory)?;
//! assert_eq!(vm.memory().translate(&mut idle, Gfn(5)), None);
//! vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Read })?;
//! assert_ne!(vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.pfn, before);
//! let mut hello = [0; 5];
//! space.read(&mut idle, memory.start + 0x5000, &mut hello)?;
//! assert_eq!(&hello, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `mapping`, `frames`, `arena`, `held`, `trim`, `zero` | memory from the system, and back to it; free and zeroed frames; references to frames |
//! | `file`, `vma` | files; the description of one mapping |
//! | `ledger`, `group` | the charges of each group of address spaces; the groups' limits |
//! | `vmas`, `mappings`, `page_lock`, `state` | all mappings of an address space, in versions; how changes publish versions, and which locks protect readers |
//! | `prim` | locks and atomics that a simulation can replace |
//! | `notes`, `pin` | marks and counts of each frame; pages that a device uses |
//! | `nodes`, `numa` | nodes and their free frames; moving pages to the node that uses them |
//! | `pages`, `pte` | addresses and page numbers; the value of a page-table entry |
//! | `table` | the page table and its entries |
//! | `space` | the address space; the order of its locks |
//! | `listeners`, `notify` | the registered secondary MMUs, and how they are notified |
//! | `fault` | bringing pages in; breaking shares |
//! | `change`, `moving` | changes that take pages away, or move them |
//! | `reap` | taking pages away without waiting |
//! | `soft_dirty`, `clean` | which pages were written |
//! | `host` | the address space as a VM's host |
//! | `unwound` | the state after a secondary MMU's panic |
//! | `fault_queue`, `user_fault` | faults that a user's thread serves: their queue; serving them |
//! | `lru`, `reclaim` | stored accesses of pages; finding cold pages, and evicting them |
//! | [`lru_gen`] | the kernel's text interface to the LRU |
//! | `ksm` | merging pages with equal contents |
//! | `swap`, `swapping` | a backing store for contents of pages; a page's way there from an address space, and back |
//!
//! Where two modules stand in a row, the address space has the first one's values, and the second one works on
//! an address space. So modules import each other in no circle; `cargo xtask house` checks it.
#![deny(missing_docs)]

mod arena;
mod change;
mod clean;
mod error;
mod fault;
mod fault_queue;
mod file;
mod frames;
mod group;
mod held;
mod host;
mod ksm;
mod ledger;
mod listeners;
mod lru;
pub mod lru_gen;
mod mapping;
mod mappings;
mod moving;
mod nodes;
mod notes;
mod notify;
mod numa;
mod page_lock;
mod pages;
mod pin;
mod prim;
mod pte;
mod reap;
mod reclaim;
mod shards;
mod soft_dirty;
mod space;
mod state;
mod stats;
mod swap;
mod swapping;
mod table;
mod trim;
mod unwound;
mod user_fault;
mod vma;
mod vmas;
mod zero;

pub use arena::{Arena, ArenaBuilder, ArenaHandle, ArenaStats, NodeStats};
pub use error::MmError;
pub use fault_queue::{FaultKind, NoFault, Serve, UserFault};
pub use file::File;
pub use group::{Group, GroupStats};
pub use held::Held;
pub use host::HostView;
pub use ksm::{Advice, Ksm, KsmBuilder, KsmStats, Scanner as KsmScanner};
pub use lru::{Generation, Lru, LruError, LruSettings, LruStats, NodeGenerations};
pub use nodes::{ListStats, Node};
pub use numa::{Balancer, Policy, Scanner as NumaScanner, Settings};
pub use pin::{Pinned, PinnedPage};
pub use reclaim::Evictor;
pub use space::{AddressSpace, AddressSpaceBuilder};
pub use stats::MmStats;
pub use stats::numa::{NumaStats, Skip};
pub use swap::{Swap, SwapBuilder, SwapDevice, SwapStats};
pub use user_fault::{Stopped, UserFaults};
pub use vma::{Backing, Place, Prot};
pub use zero::Zeroer;
