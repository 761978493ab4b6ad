//! The pager, held against a process that does what a VMM does and knows each byte. Each test has a bound in time.

mod clones;
mod cloud;
mod daemon;
mod fleet;
mod hostile;
mod huge;
mod kept;
mod machine;
mod nbd;
mod operations;
mod ordered;
mod reclaim;
mod restart;
#[cfg(feature = "s3")]
mod s3;
mod snapshot;
mod soak;
mod steady;
mod store;
mod twin;
mod waits;
mod working_set;
