//! Tests the pager against a process that behaves as a VMM and knows each byte. Each test has a time limit.

mod bluegreen;
mod burst;
mod chaos;
mod chapter;
mod clones;
mod cloud;
mod control;
mod daemon;
mod disk;
mod exposition;
mod fleet;
mod hostile;
mod huge;
mod kept;
mod machine;
mod monitoring;
mod nbd;
mod operations;
mod operators;
mod ordered;
mod overlay;
mod packed;
mod reclaim;
mod restart;
#[cfg(feature = "s3")]
mod s3;
mod snapshot;
mod soak;
mod steady;
mod store;
mod turns;
mod twin;
mod uploads;
mod waits;
mod working_set;
