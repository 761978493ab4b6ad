//! Nested guests on software vCPUs: a hypervisor (L1) in the guest, and its guest (L2).
//!
//! ```text
//! program of L2 ──▶ combined TLB, shadow ──▶ fault ──▶ `L2::fault`: T, memslots, host
//!      ▲                                                 │ refused: for L1
//!      └── enters L2 ◀── flushes ◀── tables ◀── L1 ◀─────┘
//!                                     ▲
//!                                     └── random: moves, protects, swaps, cleans, relocates its tables
//! ```
//! | file | contents |
//! |---|---|
//! | `tables` | writing L1's tables, in the format that the host's processors offer ([`L1Tables`], [`Nest`]) |
//! | `code` | L1's loads and stores, through its own TLB and the engine's tables ([`Platform`]) |
//! | `l1_memory` | L1's free frames, its tables, and the state of each page of L2 |
//! | `vcpus` | the vCPUs that are in L2, and L1's flushes: by interrupts, or broadcast |
//! | `hypervisor` | L1: handles exits of L2 ([`L1`], [`L1Vcpu`]) |
//! | `faults` | handling accesses that T refuses |
//! | `edits` | random edits of its tables |
//! | `entry_history` | the history of T's entries ([`Said`]): which translations a vCPU may use |
//!
//! **The checks.** L1 keeps its guarantee to L2: L2's memory holds what L2 stored, whatever L1 does. A
//! vCPU may use a translation after L1 has flushed it, or after the host has taken the page away. It then
//! accesses another page, and the guest detects it. L1 also checks: a page that it has write-protected and
//! flushed must not change; nor must a page whose D bit it has cleared and flushed, while the bit stays clear.

mod code;
mod counts;
mod edits;
mod entry_history;
mod faults;
mod hypervisor;
mod l1_memory;
mod tables;
mod vcpus;

pub use code::Platform;
pub use counts::L1Counts;
pub use entry_history::{Said, Since};
pub use hypervisor::{Ended, L1, L1Settings, L1Vcpu, Mistake};
pub use tables::{L1Tables, Nest};
