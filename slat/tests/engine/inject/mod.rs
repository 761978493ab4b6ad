//! Failures around a VM: readers that stay, vCPUs that do not answer, hosts that block, refuse and panic, guests that
//! panic. The VM continues, or returns an error; no thread waits for ever; and in the end the host has all of its
//! memory back.
//!
//! | file | contents |
//! |---|---|
//! | `slow_threads` | a thread that others wait for takes long: which threads wait, and which do not |
//! | `refusals` | a host without a page |
//! | `panics` | a thread that unwinds in the middle of an operation |
//! | `controlled_host` | the VM, its host, and the final checks |
//! | `watchdog` | ends the process if a thread waits for ever |
//!
//! Failed allocations and lost races need hooks in the engine: `src/inject_tests`, `src/history_tests`.

mod controlled_host;
mod panics;
mod refusals;
mod slow_threads;
mod watchdog;
