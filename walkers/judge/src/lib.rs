//! Compares what a hardware walker makes of slat's tables with what it should.
#![no_std]

extern crate alloc;

mod machine;

pub use machine::{Answer, Bits, CODE_OFFSET, Difference, FaultWhy, Fixed, Machine, Quirk, Ram};
