//! Failures of what the engine calls, one after the other.
//!
//! Allocations fail at each place that asks for memory. The operation continues without the memory, or reports that
//! there is none. And each call of each callback panics ([`crate::callbacks`]): of the host, of the memory of tables, of
//! a processor's cache, of listeners, and of closures. The caller catches the panic. Afterwards the VM still works, no
//! dirty page is lost, its table pages add up, and dropping it frees every byte.
//!
//! | file | contents |
//! |---|---|
//! | `memory` | operations without memory, and the checks afterwards |
//! | `callback_cases` | operations in which callbacks panic |
//! | `callbacks` | a guest, and the checks after each panic |
//! | `machine` | a host whose calls are counted, and panic by a plan |
//! | `leak` | an allocator that counts, for this thread |
//!
//! Lost races are tested in [`crate::history_tests`]; failures that need threads, in `tests/inject`.

mod callback_cases;
mod callbacks;
mod leak;
mod machine;
mod memory;
