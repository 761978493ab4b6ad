//! Benches that one source runs in two worlds: on simulated CPUs, up to hundreds of them, and on this machine's threads.
//!
//! ```text
//! benches ─▶ engine (slat) ─▶ host: a model of a primary MMU
//!    └────────────┬────────────┘
//!               world ── simulated: CPUs in virtual time, each act at its price   (crate slat-sim)
//!                     └─ threads:   this machine, by the clock                    (crate slat-threads)
//! ```
//! The engine is the shipped one in both. What is around it (guests that compute, a host that finds and zeroes pages, threads
//! that sleep) is made of the few acts of [`world`], which cost time in one and take time in the other. So the two can be held
//! against each other where both can run: with one or two CPUs. `slat bench` runs some of these programs with a host of its own, and with
//! vCPUs that have no guest: then what is timed is the engine.
//!
//! | module | idea |
//! |---|---|
//! | [`world`] | the acts, and running jobs on CPUs of their own; the only place that knows in which world it is |
//! | [`host`] | a primary MMU of arithmetic and a few words, with what it costs |
//! | [`benches`] | what is measured, and what must be true afterwards |

pub mod benches;
pub mod host;
mod words;
pub mod world;
