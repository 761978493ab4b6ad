//! The scenarios of `slat-bench` in virtual time: the same source, on simulated CPUs. `measure/bench/src/lib.rs` explains it.

pub mod parts;
pub mod scenario;
pub mod scenarios;
pub mod world;
