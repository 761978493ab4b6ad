//! Failures around a VM: readers that stay, vCPUs that do not answer, hosts that block, refuse and panic, guests that
//! panic. The VM continues, or returns an error; no thread waits for ever; and in the end the host has all of its
//! memory back.
//!
//! | file | contents |
//! |---|---|
//! | `late` | a thread that others wait for takes long: which threads wait, and which do not |
//! | `refusals` | a host without a page |
//! | `panics` | a thread that unwinds in the middle of an operation |
//! | `world` | the VM, its host, and the final checks |
//! | `watchdog` | ends the process if a thread waits for ever |
//!
//! Failed allocations and lost races need hooks in the engine: `src/inject_tests`, `src/history_tests`.

mod late;
mod panics;
mod refusals;
mod watchdog;
mod world;
