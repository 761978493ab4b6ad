//! How shuttle is run: `RUSTFLAGS="--cfg shuttle" cargo test -p slat --release --lib shuttle_tests`.
//!
//! Here whole VMs run: the shipped code with [`crate::sync::prim`]'s atomics for shuttle, on a toy host ([`host`]), with
//! vCPUs whose caches believe what they hold ([`guest`]), under many schedules ([`run`]), all of them sequentially
//! consistent: orderings are loom's to check. What has to be true at every step is in [`world`] and [`memory`].
//!
//! | scenarios | what meets |
//! |---|---|
//! | [`faults`] | faults and upgrades; pages that move, lose permissions, are replaced in place |
//! | [`tables`] | faults, lockless walks; whole regions that go, roots, tables taken back, and used again |
//! | [`huge`] | faults; splits, recoveries, pages that move |
//! | [`slots`] | faults, pages that move; transactions |
//! | [`crowd`] | faults whose host sleeps; three invalidators and more over the same pages, narrow and wide, transactions |
//! | [`dirty`] | stores; harvests by permissions, by D bits and by rings; aging; pages that move |
//!
//! Each goes with mistakes in the shipped code ([`crate::seeded`]) under which it must fail.
//! `SLAT_SHUTTLE_EXECUTIONS` says how many schedules of each scenario are tried. A schedule that fails is printed; run again
//! with `SLAT_SHUTTLE_REPLAY` set to it and the test's name, it fails again. To other code it says nothing: what is kept of
//! a mistake that was found here is a scenario narrow enough to find it soon, and the mistake, under a name.

mod crowd;
mod dirty;
mod faults;
mod guest;
mod host;
mod huge;
mod memory;
mod nested;
mod run;
mod slots;
mod tables;
mod world;

pub(crate) use memory::{GIVEN_BACK, looked};
