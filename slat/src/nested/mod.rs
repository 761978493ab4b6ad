//! Nested guests: guests of a hypervisor that is itself a guest.
//!
//! An address of L2 is translated twice: by T, L1's own table, and by memslots and host.
//!
//! ```text
//! g2 ── T, in L1's memory ──▶ g1 ── memslot ──▶ Hva ── primary MMU ──▶ Pfn
//! ```
//! | file | contents |
//! |---|---|
//! | `format` | the trait of T's formats ([`L1Format`]); an access of L2, and the reasons why T refuses it |
//! | `walk` | the walk: reads entries by host address, checks them, sets A and D ([`GuestSpace::walk_l1`](crate::guest_space::GuestSpace::walk_l1)) |
//! | `l2` | a vCPU that runs L2 on a table of L1 ([`Vcpu::nested`](crate::Vcpu::nested)) |
//! | `fault` | a fault of L2: T, memslots, host, shadow ([`L2::fault`]) |
//! | `install`, `freeze` | install the leaf in the shadow |
//! | `outcome` | results of a fault, and what the vCPU remembers of it |
//! | `quick` | the short path for a fault near the last one |
//! | `l1_flush` | flushes of L1, by instruction |
//! | `l1_mapping` | reads what T says of 2 MiB, without an access |
//! | `revalidate` | a flush by L1 keeps the leaves that T still confirms |
//! | `crate::shadows` | shadows, the reverse map, and a vCPU's state of them |
//! | `crate::hooks` | what the engine asks of nested guests, and nothing else |
//! | `entry_words` | entries of eight bytes, or four |
//! | `guest_table` | a guest's own page table, on a host without two stages ([`Vcpu::guest_paging`](crate::Vcpu::guest_paging)) |
//! | `guest_flush` | flushes of that guest, by instruction |
//! | `guest_walk` | a guest-virtual address through the guest's own table, in any VM ([`GuestSpace::translate_gva`](crate::GuestSpace::translate_gva)) |
//! | `x86_entry` | entries of x86's own paging |
//! | `ept`, `npt`, `stage2`, `g_stage` | the formats of Intel, AMD, Arm and RISC-V, as their hardware reads them |
//!
//! **T is hostile input.** Its entries may name any frame, loop, change while they are read, and have any bit set. A
//! walk reads one entry per level, and treats it as a number. It reads and writes no memory outside L1's memslots.
//!
//! **These formats are not [`Format`](crate::Format)s.** A `Format` encodes the entries of the engine's own tables and
//! decodes only those. An [`L1Format`] decodes entries that another hypervisor wrote, with every bit that hardware
//! would check. The tests encode with one and decode with the other.
//!
#![doc = include_str!("protocol.md")]

mod entry_words;
mod ept;
mod fault;
mod format;
mod freeze;
mod g_stage;
mod guest_flush;
mod guest_table;
mod guest_walk;
mod install;
mod l1_flush;
mod l1_mapping;
mod l2;
#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
mod npt;
mod outcome;
mod quick;
mod revalidate;
mod stage2;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod walk;
mod x86_entry;

pub use ept::{EptExit, EptFeatures, EptTable};
pub use format::{L1Access, L1Entry, L1Fault, L1Format, L1Rights, Refusal};
pub use g_stage::{GStageFeatures, GStageTable, GuestPageFault};
pub use guest_flush::GuestFlush;
pub use guest_table::{GuestPaging, GuestRegisters, GuestTable, NoTable, PageFault, Privilege};
pub use guest_walk::GvaError;
pub use l2::{L2, NestedError};
pub use npt::{NestedPageFault, NptMode, NptTable};
pub use outcome::L2Next;
pub use stage2::{Stage2Abort, Stage2Features, Stage2Table};
pub use walk::{L1Leaf, L1Stop};
