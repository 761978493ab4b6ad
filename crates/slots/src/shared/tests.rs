//! Tests: versions do not change while they are held, and nothing is lost whatever the order of drops.

use super::*;
use crate::addr::Gfn;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::vec::Vec;

fn slot(id: u32) -> Slot {
    Slot::new(SlotId(id), Gfn(u64::from(id) << 4), 8, Hva(u64::from(id) << 20))
}

fn ids(snapshot: &Snapshot<Counted>) -> Vec<u32> {
    snapshot.iter().map(|slot| slot.id.0).collect()
}

/// A log that counts its instances.
struct Counted(SlotId);

static ALIVE: AtomicUsize = AtomicUsize::new(0);

impl Log for Counted {
    fn begin(slot: &Slot, _: u64, _: bool) -> Option<Self> {
        ALIVE.fetch_add(1, Relaxed);
        Some(Self(slot.id))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Relaxed);
    }
}

#[test]
fn snapshots_are_send_sync_and_clone() {
    fn is<T: Send + Sync + Clone + 'static>() {}
    is::<Snapshot>();
    is::<Snapshot<Counted>>();
}

#[test]
fn a_snapshot_shows_its_version_as_long_as_it_is_held() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut slots = SharedSlots::<Counted>::default();
    let (mut there, mut held) = (Vec::new(), Vec::<(Snapshot<Counted>, Vec<u32>)>::new());
    for commit in 0..if cfg!(miri) { 30 } else { 2000 } {
        let id = random.u32(..100);
        match there.binary_search(&id) {
            Ok(at) => {
                slots.commit(|tx| tx.delete(SlotId(id))).unwrap();
                there.remove(at);
            }
            Err(at) => {
                slots.commit(|tx| tx.create(slot(id))).unwrap();
                there.insert(at, id);
            }
        }
        held.push((slots.snapshot(), there.clone()));
        if held.len() > random.usize(..12) {
            held.swap_remove(random.usize(..held.len()));
        }
        let changed = held.iter().find(|(snapshot, expected)| ids(snapshot) != *expected);
        assert!(changed.is_none(), "commit {commit} has changed a snapshot");
    }
    let (kept, expected) = held.pop().unwrap_or((slots.snapshot(), there));
    drop((slots, held));
    assert_eq!(ids(&kept), expected, "without its owner");
}

#[test]
fn memory_does_not_grow_where_no_snapshot_is_held() {
    let mut slots: SharedSlots = SharedSlots::default();
    slots.commit(|tx| (0..1000).try_for_each(|id| tx.create(slot(id)))).unwrap();
    let bytes = |slots: &SharedSlots| {
        // SAFETY: only this thread uses it.
        unsafe { &*slots.current.0.home.0.get() }.0.bytes()
    };
    let change = |slots: &mut SharedSlots, round: u64| {
        slots.commit(|tx| tx.move_to(SlotId(5), Gfn((1 << 20) + round))).unwrap();
        slots.past.len()
    };
    (0..10).for_each(|round| _ = change(&mut slots, round));
    let before = bytes(&slots);
    assert!((10..100).all(|round| change(&mut slots, round) <= 1));
    assert_eq!(bytes(&slots), before);

    // Control: a held snapshot keeps its nodes, and those of every later version.
    let held = slots.snapshot();
    assert_eq!((100..150).map(|round| change(&mut slots, round)).max(), Some(50));
    assert!(bytes(&slots) > before);
    drop(held);
    assert_eq!(change(&mut slots, 200), 1, "all nodes are reused at once");
}

#[test]
fn threads_read_old_versions_beside_commits() {
    let log = |id: u32| slot(id).log_dirty();
    let mut slots = SharedSlots::<Counted>::default();
    slots.commit(|tx| (0..50).try_for_each(|id| tx.create(log(id)))).unwrap();
    std::thread::scope(|scope| {
        for round in 50..if cfg!(miri) { 53 } else { 250 } {
            let snapshot = slots.snapshot();
            scope.spawn(move || {
                let seen = ids(&snapshot);
                assert_eq!((seen.len(), seen.last()), (50, Some(&(round - 1))));
                assert!(
                    snapshot.iter().all(|slot| snapshot.log(slot.id).is_some_and(|log| log.0 == slot.id))
                );
            });
            slots
                .commit(|tx| {
                    tx.delete(SlotId(round - 50))?;
                    tx.create(log(round))
                })
                .unwrap();
        }
    });
    drop(slots);
    assert_eq!(ALIVE.load(Relaxed), 0, "every log was dropped once");
}
