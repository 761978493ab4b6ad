//! Allocations fail one after the other, at each place that asks for memory.
//!
//! Each operation continues without the memory, or reports that there is none. Afterwards the VM still works, no dirty
//! page is lost, its table pages add up, and dropping it frees every byte.
//!
//! | file | contents |
//! |---|---|
//! | `memory` | the operations, and the checks afterwards |
//! | `leak` | an allocator that counts, for this thread |
//!
//! Lost races are tested in [`crate::history_tests`]; failures that need threads, in `tests/inject`.

mod leak;
mod memory;
