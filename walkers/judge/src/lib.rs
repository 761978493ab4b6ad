//! Compares what a hardware walker makes of slat's tables with what it should.
#![no_std]

extern crate alloc;

mod backing;
mod bench;
mod changes;
mod everything;
mod expect;
mod judge;
mod machine;
mod mutate;
mod pattern;
mod random;
mod report;
mod stale;
mod tables;
mod world;

pub use everything::{LOOKUPS, SEED, everything};
pub use judge::judge;
pub use machine::{Answer, Bits, CODE_OFFSET, Difference, FaultWhy, Fixed, Machine, Quirk, Ram};
pub use mutate::mutate;
pub use report::{Seen, Verdict, conclude};
pub use stale::stale;
