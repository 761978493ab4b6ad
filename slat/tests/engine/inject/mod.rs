//! What goes wrong around a VM: readers that stay, vCPUs that do not answer, hosts that block, refuse and panic, guests that
//! panic. The VM goes on, or says clearly why not; nobody waits for ever; and in the end the host has all of its memory back.
//!
//! | file | idea |
//! |---|---|
//! | `late` | whoever has to be waited for takes long: who waits, and who does not |
//! | `refusals` | a host without a page to give |
//! | `panics` | a thread that goes in the middle of something |
//! | `world` | the VM, its host, and what must hold in the end |
//! | `watchdog` | ends the process where somebody waits for ever |
//!
//! Memory that runs out and races that are lost need hooks in the engine: `src/inject_tests`, `src/history_tests`.

mod late;
mod panics;
mod refusals;
mod watchdog;
mod world;
