//! The design before the series: one array of all slots, copied whole for every change.
//!
//! It is the array that the series itself describes, made with the care that slat's own trees were made with:
//!
//! | what | how | cost |
//! |---|---|---|
//! | gfn → slot | the last one that was found, else binary search in the array | O(log n) |
//! | hva range → gfn ranges | a look at every slot | O(n) |
//! | id → slot | an index of every id there can be | O(1), 64 KiB to copy |
//! | create, change flags | a copy of everything, published by one pointer | O(n) |
//! | delete, move | the same twice: first the slot is marked invalid, so that nothing new is mapped through it, then it goes | O(n) |
//!
//! After each publication the writer waits for readers, as it had to: the old copy goes. Waiting and reading are
//! as cheap as they can be made together (`array_publish.rs`), far cheaper than the kernel's (`--kvm` shows requests with one
//! wait and with two). Records are as large as the kernel's (`array_record.rs`), copies reuse their memory (`array_copies.rs`).
//!
//! **It runs on slat's own engine, so that nothing else differs.** Its VM has a single slat memslot that passes every
//! guest frame through: the host address that the engine asks for is the guest's own. The host here translates
//! it through the array to the real one, inside the array's read section, and looks there in the same memory as
//! the other entrant (`Adapter`). Where the host takes pages away, the scan finds the slots, and each becomes an
//! invalidation of guest frames; a slot that goes is one as well, over its own frames only (the kernel of that time
//! emptied the whole table). Tables, faults, flushes and vCPUs are the same code, and the engine's own slot
//! look-up, which has one slot to find, takes its shortest way.

pub mod array_copies;
pub mod array_host;
mod array_publish;
pub mod array_record;
