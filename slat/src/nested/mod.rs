//! Nested guests: guests of a hypervisor that is itself a guest.
//!
//! L0 is the hypervisor that this crate is in, L1 a hypervisor in its guest, and L2 L1's guest. **T** is L1's own second-level
//! table, in L1's memory. An L2 address is translated twice: by T to an L1 frame, and by memslots and host to a host frame.
//!
//! ```text
//! g2 ── T, in L1's memory ──▶ g1 ── memslot ──▶ Hva ── primary MMU ──▶ Pfn
//! ```
//! A **shadow** is a table in the host's format that maps g2 to host frames: T composed with memslots and host, filled by faults of L2. L1
//! is promised a TLB: what it stores to T comes into effect at its flush, or earlier. What the host takes back L2 loses at once: a
//! reverse map leads from an L1 frame to the entries that were made of it. A VM without nested guests has neither.
//!
//! | file | idea |
//! |---|---|
//! | `format` | what a format of T must say ([`L1Format`]); an access of L2, and what T refuses it for |
//! | `walk` | the walk: entries are read by host address, checked, and get A and D ([`Memslots::walk_l1`](crate::memslots::Memslots::walk_l1)) |
//! | `l2` | a vCPU that runs L2 on a table of L1 ([`Vcpu::nested`](crate::Vcpu::nested)) |
//! | `fault` | an access of L2: T, memslots, host, shadow ([`L2::fault`]) |
//! | `install`, `freeze` | what was found becomes a leaf of the shadow |
//! | `met` | what a fault comes to, meets, and remembers |
//! | `quick` | the same where the last fault was near |
//! | `l1_flush` | which flush of L1 is which call |
//! | `under` | what T says of 2 MiB, without an access |
//! | `revalidate` | a flush by L1 keeps what T still says |
//! | `crate::shadows` | shadows, the reverse map, and what a vCPU keeps of them |
//! | `crate::notify` | `nested`: what an invalidation does to them |
//! | `stored` | entries of eight bytes, or four |
//! | `guest_table` | a guest's own page table, on a host without two stages ([`Vcpu::guest_paging`](crate::Vcpu::guest_paging)) |
//! | `guest_flush` | which flush of that guest is which call |
//! | `x86_entry` | entries of x86's own paging |
//! | `ept`, `npt`, `stage2`, `g_stage` | the formats of Intel, AMD, Arm and RISC-V, as their hardware reads them |
//!
//! **T is hostile input.** Its entries may name any frame, loop, change while they are read, and have any bit set. A walk reads one
//! entry a level. What it reads is a number; no memory outside L1's memslots is read or written.
//!
//! **These formats are not [`Format`](crate::Format)s.** A `Format` makes the entries of the engine's own tables and reads what it has
//! made. An [`L1Format`] reads what another hypervisor has made, with every bit that hardware would look at. The tests encode by
//! one and decode by the other.

mod ept;
mod fault;
mod format;
mod freeze;
mod g_stage;
mod guest_flush;
mod guest_table;
mod install;
mod l1_flush;
mod l2;
#[cfg(all(test, loom))]
mod loom_tests;
mod met;
mod npt;
mod quick;
mod revalidate;
mod stage2;
mod stored;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod under;
mod walk;
mod x86_entry;

pub use ept::{EptExit, EptFeatures, EptTable};
pub use format::{L1Access, L1Entry, L1Fault, L1Format, L1Rights, Refusal};
pub use g_stage::{GStageFeatures, GStageTable, GuestPageFault};
pub use guest_flush::GuestFlush;
pub use guest_table::{GuestPaging, GuestRegisters, GuestTable, NoTable, PageFault, Privilege};
pub use l2::{L2, NestedError};
pub use met::L2Done;
pub use npt::{NestedPageFault, NptMode, NptTable};
pub use stage2::{Stage2Abort, Stage2Features, Stage2Table};
pub use walk::{L1Leaf, L1Stop};
