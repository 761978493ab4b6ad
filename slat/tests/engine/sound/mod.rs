//! What safe code is promised, each promise with the program that would break it: extreme arguments, leaked guards,
//! panicking hosts and TLBs, vCPUs that come back under another number, on another CPU, in another VM.
//!
//! | file | what is promised |
//! |---|---|
//! | `memo.rs` | what a vCPU remembers of its last fault is never believed longer than it is true |
//! | `maps.rs` | `Map` and `Format`: every table that a walk reaches belongs to the map |
//! | `answers.rs` | what a host or a caller says is checked once, with one error, before anything changes |
//! | `events.rs` | invalidations end, and owe what they must, however their owner ends them |
//! | `limits.rs` | many of everything at once: it grows, or is refused |
//! | `vcpus.rs` | a vCPU's guards may leak or unwind; its number and its CPU may change |

mod common;

mod answers;
mod events;
mod limits;
mod maps;
mod memo;
mod vcpus;
