//! Nested guests on software vCPUs: a hypervisor (L1) in the guest, and its guest (L2).
//!
//! ```text
//! program of L2 ──▶ combined TLB, shadow ──▶ fault ──▶ `L2::fault`: T, memslots, host
//!      ▲                                                 │ refused: L1's
//!      └── enters L2 ◀── flushes ◀── tables ◀── L1 ◀─────┘
//!                                     ▲
//!                                     └── at random: moves, protects, swaps, cleans, relocates its tables
//! ```
//! | file | idea |
//! |---|---|
//! | `tables` | what L1 writes, in the format that the host's processors give it ([`L1Tables`], [`Nest`]) |
//! | `code` | L1's loads and stores, through its own TLB and the engine's tables ([`Platform`]) |
//! | `memory` | what L1 knows of its memory |
//! | `vcpus` | which vCPUs are in L2, and L1's flushes: by interrupts, or broadcast |
//! | `hypervisor` | L1: what it does when L2 leaves ([`L1`], [`L1Vcpu`]) |
//! | `faults` | what it does about an access that T refuses |
//! | `edits` | what it does to its tables at random |
//! | `said` | what T has said of each frame, and since when ([`Said`]): what a vCPU may use |
//!
//! **What is checked.** L1 keeps its own promises to L2: whatever it does, L2's memory holds what L2 stored. So a vCPU that uses a
//! translation after L1 has flushed it, or after the host has taken its page back, reads or writes where its page is no more, and the
//! guest says so. Beside that L1 compares: a page that it has write-protected and flushed may not change; nor may one whose D
//! bit it has cleared and flushed, while the bit stays clear.

mod code;
mod edits;
mod faults;
mod hypervisor;
mod memory;
mod said;
mod tables;
mod vcpus;

pub use code::Platform;
pub use edits::L1Counts;
pub use hypervisor::{Ended, L1, L1Settings, L1Vcpu, Mistake};
pub use said::{Said, Since};
pub use tables::{L1Tables, Nest};
