//! Memory that runs out, at each place where it is asked for, in turn.
//!
//! Each operation goes on, or says clearly that there is no memory. Then the VM still does everything, no dirty page is
//! lost, its table pages add up, and when it is dropped every byte is back.
//!
//! | file | idea |
//! |---|---|
//! | `memory` | the operations, and what must hold afterwards |
//! | `leak` | an allocator that counts, for this thread |
//!
//! Races that are lost are in [`crate::history_tests`]; what takes threads is in `tests/inject`.

mod leak;
mod memory;
