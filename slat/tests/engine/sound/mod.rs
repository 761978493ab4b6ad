//! The promises to safe code, each with the program that would break it: extreme arguments, leaked guards, panicking
//! hosts and TLBs, vCPUs that come back under another number, on another CPU, in another VM.
//!
//! | file | promise |
//! |---|---|
//! | `memo.rs` | a vCPU never uses its memo of the last fault longer than it is valid |
//! | `maps.rs` | `Map` and `Format`: every table that a walk reaches belongs to the map |
//! | `answers.rs` | answers of a host and arguments of a caller are checked once, with one error, before anything changes |
//! | `events.rs` | invalidations end, and pay their debts, however their owner ends them |
//! | `sections.rs` | what is read under a section is not used after it |
//! | `limits.rs` | many of everything at once: it grows, or is refused |
//! | `vcpus.rs` | a vCPU's guards may leak or unwind; its number and its CPU may change |

mod common;

mod answers;
mod events;
mod limits;
mod maps;
mod memo;
mod sections;
mod vcpus;
