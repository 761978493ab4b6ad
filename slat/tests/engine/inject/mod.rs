//! What goes wrong around a VM: readers that stay, vCPUs that do not answer, hosts that block, refuse and panic, guests that
//! panic. The VM goes on, or says clearly why not; no thread waits for ever; and in the end the host has all of its memory back.
//!
//! | file | idea |
//! |---|---|
//! | `late` | a thread that others wait for takes long: which wait, and which do not |
//! | `refusals` | a host without a page to give |
//! | `panics` | a thread that goes in the middle of something |
//! | `world` | the VM, its host, and what must hold in the end |
//! | `watchdog` | ends the process where a thread waits for ever |
//!
//! Memory that runs out and races that are lost need hooks in the engine: `src/inject_tests`, `src/history_tests`.

mod late;
mod panics;
mod refusals;
mod watchdog;
mod world;
