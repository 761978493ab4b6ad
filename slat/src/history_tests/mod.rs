//! History: every operation on the tables, checked after each of its writes, as if all processors stood still.
//!
//! | file | contents |
//! |---|---|
//! | `controlled_host` | a VM, and a host that a test controls |
//! | `lookup` | a look-up as the hardware makes it |
//! | `record` | the properties that hold after every write |
//! | `stale_tlb` | the worst possible TLB: what an operation has to flush |
//! | `operation` | an operation, its starting state, and the flush that it owes |
//! | `granting`, `revoking`, `logs` | the table of all operations |
//! | `hardware` | the same operations, with a walker that stores between a read and the write that follows from it |
//! | `lost_races` | the same, with compare-and-swaps that are lost |
//! | `passes` | a newer invalidation between the passes of an older one |
//!
//! The table runs on every format. It states for each kind of change exactly what it flushes: nothing, or once a range,
//! with tables or without. Where an operation writes a whole table, every page is looked up after each write with
//! `SLAT_THOROUGH=1`; otherwise one in 37, and the edges.

mod controlled_host;
mod granting;
mod hardware;
mod logs;
mod lookup;
mod lost_races;
mod operation;
mod passes;
mod record;
mod revoking;
mod stale_tlb;
#[path = "../../tests/engine/common/thorough.rs"]
mod thorough;

use crate::table::formats::{Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4};
use crate::{Format, Idle};
use operation::Row;
use std::vec::Vec;

/// Returns all operations.
fn rows<F: Format>() -> Vec<Row<F>> {
    granting::rows().into_iter().chain(revoking::rows()).chain(logs::rows()).collect()
}

/// Runs all operations, none of which may fail. Returns how often the tables were looked at.
fn run_clean<F: Format>() -> u64 {
    let mut idle = Idle::take().unwrap();
    let (mut looks, mut wrong) = (0, Vec::new());
    for row in rows::<F>() {
        wrong.extend(row.run(&mut idle, &mut looks).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    std::println!("EXECUTIONS History {} {looks}", F::NAME);
    looks
}

#[test]
fn every_write_of_every_operation_on_ept() {
    assert!(run_clean::<Ept4>() > 10_000);
    run_clean::<Ept5>();
}

#[test]
fn every_write_of_every_operation_on_npt() {
    run_clean::<Npt4>();
    run_clean::<Npt5>();
}

#[test]
fn every_write_of_every_operation_on_three_levels_and_without_a_and_d() {
    run_clean::<Pae>();
    run_clean::<Ept4NoAd>();
}

#[test]
fn every_write_of_every_operation_on_arm64_and_riscv() {
    run_clean::<Arm64L48>();
    run_clean::<Arm64NoAd>();
    run_clean::<Sv39x4>();
}
