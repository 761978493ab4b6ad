//! Values that are read in a section of the read side are used in that section: calls on memslots that stay, beside transactions
//! that take other memslots away.
//!
//! A transaction frees the nodes and logs of the version that it replaced, and the next one reuses their memory. A call
//! that keeps a version past its section therefore misses memslots that no transaction has touched, or crashes.

use crate::common::identity::Identity;
use slat::slots::Transaction;
use slat::table::formats::Npt4;
use slat::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

const PAGES: u64 = 64;
/// The memslots that stay.
const KEPT: u32 = 8;
/// Several levels of nodes in each index of the memslots.
const ALL: u32 = 600;
const READERS: u32 = 2;
/// Transactions that take memslots away, or create them again.
const COMMITS: usize = 80;

fn slot(id: u32) -> Slot {
    let gfn = Gfn(u64::from(id) * PAGES);
    Slot::new(SlotId(id), gfn, PAGES, Hva((1 << 30) + (gfn.0 << PAGE_SHIFT))).log_dirty()
}

/// Runs `reads` on [`READERS`] threads while another thread deletes and creates all other memslots. Returns how often
/// `reads` ran.
fn beside_transactions(vm: &Vm<Npt4, Identity>, reads: impl Fn(&mut Idle, VcpuId) + Sync) -> u64 {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let create = |idle: &mut Idle, from| {
        vm.memory().commit(idle, |tx| (from..ALL).try_for_each(|id| tx.create(slot(id)))).unwrap();
    };
    create(&mut Idle::take().unwrap(), 0);
    thread::scope(|scope| {
        for id in 0..READERS {
            let (stop, count, reads) = (&stop, &count, &reads);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                while !stop.load(Relaxed) {
                    reads(&mut idle, VcpuId(id));
                    count.fetch_add(1, Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            for _ in 0..COMMITS / 2 {
                let delete =
                    |tx: &mut Transaction<'_>| (KEPT..ALL).try_for_each(|id| tx.delete(SlotId(id)).map(drop));
                vm.memory().commit(&mut idle, delete).unwrap();
                create(&mut idle, KEPT);
            }
            stop.store(true, Relaxed);
        });
    });
    count.into_inner()
}

#[test]
fn memslots_that_stay_are_found_beside_transactions_on_others() {
    let vm = Vm::<Npt4, _>::builder(Identity::default()).build().unwrap();
    let count = beside_transactions(&vm, |idle, _| {
        for id in (0..KEPT).map(SlotId) {
            let gfn = slot(id.0).gfns.start;
            vm.memory().mark_dirty_bits(id, 0, &[1]).unwrap();
            assert!(vm.memory().dirty_bits(idle, id, &mut [0]).is_ok());
            vm.memory().dirty(idle, id, |_| ()).unwrap();
            let _ = vm.memory().is_dirty(gfn);
            assert_eq!(vm.memory().find(idle, gfn), Some(slot(id.0)));
            vm.memory().harvest(idle, id).unwrap().commit();
        }
    });
    assert!(count > 0);
}

#[test]
fn pages_of_a_ring_are_told_beside_transactions_on_other_memslots() {
    let log = DirtyLog::ring(RingSize::new(4096).unwrap());
    let vm = Vm::<Npt4, _>::builder(Identity::default()).vcpus(READERS).dirty_log(log).build().unwrap();
    beside_transactions(&vm, |idle, id| {
        let mut vcpu = vm.vcpu(id).unwrap();
        let mut stored = Vec::new();
        for kept in 0..KEPT {
            let gfn = slot(kept).gfns.start + u64::from(id.0);
            let store = Fault { gpa: gfn.gpa(), access: Access::Write };
            if let Next::Resume(Resume::Mapped(_) | Resume::Fixed) = vcpu.fault(idle, store).unwrap() {
                stored.push(gfn);
            }
        }
        let mut told = Vec::new();
        vm.collect_ring(idle, id, |page| told.push(page.gfn)).unwrap();
        assert_eq!(told, stored);
        vm.reset_rings(idle).unwrap();
    });
}
