//! All rows again, with a walker that stores to a page at the worst moment: after the thread that changes its entry has
//! read it, and before it writes. The change must be lost, not the D bit.

use super::controlled_host::{ALL, World};
use super::lookup::{Look, look};
use super::rows;
use crate::table::entry::Entry;
use crate::table::formats::{Arm64L48, Ept4, Npt4, Pae, Sv39x4};
use crate::table::history::meddled;
use crate::*;
use std::format;
use std::vec::Vec;

/// Stores through `entry`, if it is a writable leaf of one of `probes`. Returns what that changed.
fn store_by<F: Format>(world: &World<F>, entry: &Entry, probes: &[Gfn]) -> Option<(Gfn, Look)> {
    probes.iter().find_map(|&gfn| {
        // SAFETY: tables are given back by `collect`, which overwrites nothing.
        let at = unsafe { world.vm.spaces[0].radix.descend(world.vm.tables(), gfn) };
        let leaf = core::ptr::eq(at.entry, entry) && F::is_present(at.word) && F::writable(at.word);
        (leaf && at.entry.touch(at.word, F::touch(Access::Write))).then(|| (gfn, look(world, gfn)))
    })
}

/// Asserts that no operation loses a store.
fn none_lost<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let (mut stores, mut lost) = (0, Vec::new());
    for row in rows::<F>().into_iter().filter(|row| !row.forgets) {
        let (world, probes) = (row.world(&mut idle), row.probes());
        let mut stored = Vec::new();
        let meddle = |entry: &Entry| stored.extend(store_by(&world, entry, &probes));
        meddled(meddle, || {}, || row.operate(&world, &mut idle));
        stores += stored.len() as u64;
        let logs = world.vm.logs_by_bits() && world.slots().iter().any(|slot| slot.log_dirty);
        for (gfn, then) in stored {
            let (then, now) = (then.seen.translation().unwrap(), look(&world, gfn).seen.translation());
            let stays = now.filter(|now| now.pfn == then.pfn);
            // Where nothing logs, the host keeps track of dirty pages.
            let cared_for = stays.is_some_and(|now| now.dirty)
                || (stays.is_none() && !(logs && ALL.contains(gfn)))
                || world.knows_dirty(&mut idle, gfn);
            if !cared_for {
                lost.push(format!("{} {}: the store to {gfn:?}", F::NAME, row.name));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
    assert!(stores > 100, "the walker came between {stores} times");
    std::println!("EXECUTIONS History hardware-{} {stores}", F::NAME);
}

#[test]
fn a_store_in_between_is_not_lost() {
    none_lost::<Ept4>();
    none_lost::<Npt4>();
    none_lost::<Pae>();
    none_lost::<Arm64L48>();
    none_lost::<Sv39x4>();
}
