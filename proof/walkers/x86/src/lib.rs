//! Bare-metal support for programs on x86-64: the minimum that the engine needs, and guests.
//!
//! In the order in which a reader needs it:
//!
//! | module | contents |
//! |---|---|
//! | `boot` | from the loader to [`entry!`]'s function: long mode, identity mapping, the loader's parameters |
//! | `cpu` | port I/O, control registers, MSRs, and other privileged instructions |
//! | `serial` | the first serial port, [`println!`](crate::println) |
//! | `heap` | the global allocator |
//! | `exit` | ends the emulator with a verdict; a panic is a verdict, too |
//! | `smp` | the second processor |
//! | `kick` | makes the other processor leave its guest |
//! | `interrupts`, `extended` | for guests that share a processor: takes its interrupts, exchanges its registers |
//! | `processor` | one trait for a processor that can run a guest, of either vendor; registers, exits |
//! | `paging` | the number of levels of the host's own paging; AMD-V walks nested tables with as many |
//! | `vmcb`, `svm` | AMD's: the control block as a type, and VMRUN |
//! | `window` | a guest that loads, stores or jumps once, anywhere |
//! | `vmx` | Intel's: the control structure, EPT, VMLAUNCH |
//!
//! Memory is mapped one to one, so a pointer *is* a physical address, and the engine's defaults for table memory are
//! right. The target has no floating point: code here never uses those registers, and a guest's values stay in them.
#![no_std]

extern crate alloc;

pub mod boot;
pub mod cpu;
pub mod exit;
pub mod extended;
mod heap;
pub mod interrupts;
mod kick;
pub mod paging;
pub mod processor;
pub mod serial;
pub mod smp;
pub mod svm;
pub mod vmcb;
pub mod vmx;
pub mod window;
