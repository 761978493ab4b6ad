//! The pager, held against a process that does what a VMM does and knows each byte. Each test has a bound in time.

mod clones;
mod daemon;
mod fleet;
mod hostile;
mod ordered;
mod reclaim;
mod restart;
mod snapshot;
mod store;
mod twin;
mod waits;
mod working_set;
