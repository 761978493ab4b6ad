//! Compares the results of a hardware walker on slat's tables with the expected ones. The walker is in an emulator on
//! bare metal, or in software (`proof/walkers/README.md`).
//!
//! | file | contents |
//! |---|---|
//! | `machine_trait` | [`Machine`]: a hardware walker and its abilities; [`Quirk`]: a fault of an emulator |
//! | `judge` | [`judge()`]: random tables of the real engine, look-up by look-up |
//! | `modelled_vm`, `changes`, `backing` | a VM, the changes to it, and the host behind it: the judge's own record of every page |
//! | `tables`, `expect` | the raw words, and the expected result of a walk of them |
//! | `stale` | [`stale()`]: checks that the engine asks for each flush that is needed |
//! | `mutate` | [`mutate()`]: checks that every bit changes a look-up |
//! | `report` | output and counters |
//!
//! A program for a machine calls [`everything()`] for each format, and [`conclude`].
#![no_std]

extern crate alloc;

mod backing;
mod bench;
mod changes;
mod everything;
mod expect;
mod judge;
mod machine_trait;
mod modelled_vm;
mod mutate;
mod pattern;
mod random;
mod report;
mod stale;
mod tables;

pub use everything::{LOOKUPS, SEED, everything};
pub use judge::judge;
pub use machine_trait::{Answer, Bits, CODE_OFFSET, Difference, FaultWhy, Fixed, Machine, Quirk, Ram};
pub use mutate::mutate;
pub use random::Random;
pub use report::{Seen, Verdict, conclude};
pub use stale::stale;
