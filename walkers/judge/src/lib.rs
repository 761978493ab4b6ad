//! Compares what a hardware walker makes of slat's tables with what it should.
#![no_std]

extern crate alloc;

mod backing;
mod changes;
mod expect;
mod judge;
mod machine;
mod pattern;
mod random;
mod report;
mod tables;
mod world;

pub use judge::judge;
pub use machine::{Answer, Bits, CODE_OFFSET, Difference, FaultWhy, Fixed, Machine, Quirk, Ram};
pub use report::{Seen, Verdict, conclude};
