//! How shuttle is run: `RUSTFLAGS="--cfg shuttle" cargo test -p slat --features baselines --release --lib shuttle_tests`.
//!
//! Whole VMs run here: the shipped code with [`crate::sync::prim`]'s atomics for shuttle, on a toy host ([`host`]),
//! with vCPUs whose caches keep entries until a flush ([`software_vcpu`]), under many schedules ([`schedules`]). All schedules are
//! sequentially consistent; loom checks the orderings. [`vm_on_host`] and [`memory`] check what must hold at every step.
//!
//! | scenarios | concurrent operations |
//! |---|---|
//! | [`faults`] | faults and upgrades; pages that move, lose permissions, are replaced in place |
//! | [`tables`] | faults, lockless walks; whole regions that go, roots, tables reclaimed and reused |
//! | [`huge`] | faults; splits, recoveries, pages that move |
//! | [`slots`] | faults, pages that move; transactions |
//! | [`many_invalidations`] | faults whose host sleeps; three and more invalidations of the same pages, narrow and wide, transactions |
//! | [`dirty`] | stores; harvests by permissions, by D bits and by rings; aging; pages that move |
//!
//! Each scenario must fail under its mistakes in the shipped code (`proof/mistakes/`). `SLAT_SHUTTLE_EXECUTIONS` sets the
//! number of schedules per scenario. A schedule that fails is printed. It fails again when it is run with
//! `SLAT_SHUTTLE_REPLAY` set to it and the test's name, but only on the same code. A defect that was found here is
//! therefore kept as a narrow scenario that finds it soon, and as a named mistake.

mod dirty;
mod faults;
mod host;
mod huge;
mod many_invalidations;
mod memory;
#[cfg(feature = "nested")]
mod nested;
mod schedules;
mod slots;
mod software_vcpu;
mod tables;
mod vm_on_host;

pub(crate) use memory::{GIVEN_BACK, looked};
