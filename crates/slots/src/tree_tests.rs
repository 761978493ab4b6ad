//! The tree compared with `BTreeMap`: random transactions, old versions that stay readable, and every block
//! accounted for after each transaction.

use crate::pool::NoMemory;
use crate::tree::{Edit, Retired, Root, Tree, View};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;
use std::ops::Range;
use std::vec::Vec;

/// Like the hva index: several intervals may start at one address.
type Key = u128;

fn key(at: u64, tie: u32) -> Key {
    Key::from(at) << 32 | Key::from(tie)
}

type Intervals = Tree<Key, u64, u64>;
/// Value and end by key.
type Model = BTreeMap<Key, (u64, u64)>;

/// The numbers below `2^bits`, in bit-reversed order.
fn scattered(bits: u32) -> impl Iterator<Item = u64> {
    (0..1_u64 << bits).map(move |i| i.reverse_bits() >> (64 - bits))
}

/// Publishes one edit and reclaims at once: there are no readers.
fn commit(tree: &mut Tree<u64, u64>, edit: impl FnOnce(&mut Edit<'_, u64, u64>)) {
    let mut next = tree.edit();
    edit(&mut next);
    let (_, retired) = next.publish();
    // SAFETY: no reader of this tree is left.
    unsafe { tree.reclaim(retired) };
}

/// Checks that all look-ups in `view` agree with the model; single look-ups for `probes`.
fn assert_reads_as(view: View<'_, Key, u64, u64>, model: &Model, probes: Range<u64>) {
    let plain = |(&key, &(value, _)): (&Key, &(u64, u64))| (key, value);
    assert!(view.range(0..).eq(model.iter().map(plain)), "all entries, in order");
    for at in probes.chain([0, u64::MAX]) {
        for tie in [0, 1, u32::MAX] {
            let key = key(at, tie);
            assert_eq!(view.get(key), model.get(&key).map(|&(value, _)| value));
            assert_eq!(view.floor(key), model.range(..=key).next_back().map(plain));
            assert!(view.range(key..).take(40).eq(model.range(key..).take(40).map(plain)));
        }
        for len in [1, 50] {
            let until = key(at.saturating_add(len), 0);
            for first in [key(0, 0), key(at.saturating_sub(len), 1), key(at, 0)] {
                let met = model.range(first..until.max(first)).filter(|&(_, &(_, end))| end > at);
                let met = met.map(|(&key, &(value, end))| (key, value, end));
                assert!(view.overlapping(at, first..until).eq(met), "overlaps of {at} + {len} from {first}");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Inserts `count` intervals from here on, a few positions apart.
    Insert { at: u64, count: u64, len: u64 },
    /// Removes every interval that starts in the next `count` positions.
    Remove { at: u64, count: u64 },
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Outcome {
    Abort,
    Publish,
    PublishAndReclaim,
}

fn op() -> impl Strategy<Value = Op> {
    let place = 0..3000_u64;
    prop_oneof![
        (place.clone(), 0..60_u64, 1..200_u64).prop_map(|(at, count, len)| Op::Insert { at, count, len }),
        (place.clone(), 0..400_u64, 1..4_u64).prop_map(|(at, count, len)| Op::Insert { at, count, len }),
        (place.clone(), 0..90_u64).prop_map(|(at, count)| Op::Remove { at, count }),
        (place, 0..1500_u64).prop_map(|(at, count)| Op::Remove { at, count }),
    ]
}

fn transaction() -> impl Strategy<Value = (Vec<Op>, Outcome)> {
    let outcome = prop_oneof![Just(Outcome::Abort), Just(Outcome::Publish), Just(Outcome::PublishAndReclaim)];
    (prop::collection::vec(op(), 0..6), outcome)
}

fn apply(
    edit: &mut Edit<'_, Key, u64, u64>,
    model: &mut Model,
    op: &Op,
    stamp: &mut u64,
) -> Result<(), NoMemory> {
    match *op {
        Op::Insert { at, count, len } => {
            for i in 0..count {
                *stamp += 1;
                let start = at + i / 2 * 3;
                let (key, end) = (key(start, (i % 2) as u32), start + len);
                let old = model.insert(key, (*stamp, end)).map(|(value, _)| value);
                assert_eq!(edit.insert(key, *stamp, end)?, old);
            }
        }
        Op::Remove { at, count } => {
            for key in (at..at + count).flat_map(|at| [key(at, 0), key(at, 1)]) {
                let old = model.remove(&key).map(|(value, _)| value);
                assert_eq!(edit.remove(key)?, old);
            }
        }
    }
    Ok(())
}

/// A published version whose retired nodes may not be reclaimed yet.
struct Past {
    root: Root<Key, u64, u64>,
    model: Model,
    retired: Retired<Key, u64, u64>,
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 96 },
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_transactions_agree_with_a_btree_map(
        transactions in prop::collection::vec(transaction(), 1..if cfg!(miri) { 3 } else { 20 }),
    ) {
        let mut tree = Intervals::new();
        let mut model = Model::new();
        let mut past: Vec<Past> = Vec::new();
        let mut stamp = 0;
        for (ops, outcome) in &transactions {
            let before = tree.root();
            let mut next = model.clone();
            let mut edit = tree.edit();
            for op in ops {
                apply(&mut edit, &mut next, op, &mut stamp).unwrap();
            }
            assert_reads_as(edit.view(), &next, 0..0);
            if *outcome == Outcome::Abort {
                drop(edit);
            } else {
                let (_, retired) = edit.publish();
                let model = std::mem::replace(&mut model, next);
                past.push(Past { root: before, model, retired });
            }
            assert_reads_as(tree.view(), &model, stamp % 3000..stamp % 3000 + 5);
            for old in &past {
                // SAFETY: what the tree has retired since then is in `past`.
                assert_reads_as(unsafe { old.root.read() }, &old.model, 0..0);
            }
            if *outcome == Outcome::PublishAndReclaim {
                for old in past.drain(..) {
                    // SAFETY: no reader of past versions is left.
                    unsafe { tree.reclaim(old.retired) };
                }
            }
            prop_assert!(tree.accounts_for(past.iter().map(|old| old.retired.len).sum()));
        }
        for old in past {
            // SAFETY: as above.
            unsafe { tree.reclaim(old.retired) };
        }
    }
}

#[test]
fn every_order_of_growing_and_shrinking_ends_empty() {
    let bits = if cfg!(miri) { 9 } else { 16 };
    let all = 1 << bits;
    let up = || (0..all).collect::<Vec<_>>();
    let down = || (0..all).rev().collect::<Vec<_>>();
    let mixed = || scattered(bits).collect::<Vec<_>>();
    for (coming, going) in
        [(up(), up()), (up(), down()), (down(), mixed()), (mixed(), up()), (mixed(), mixed())]
    {
        let mut tree = Tree::new();
        commit(&mut tree, |edit| {
            for &key in &coming {
                assert_eq!(edit.insert(key, !key, ()), Ok(None));
            }
        });
        assert_eq!(tree.len() as u64, all);
        assert!(tree.accounts_for(0));
        assert!(tree.audit() as u64 <= all / 12, "inner nodes and leaves together are over a third full");
        assert!(tree.view().range(0..).eq((0..all).map(|key| (key, !key))));
        for part in going.chunks(going.len() / 8) {
            commit(&mut tree, |edit| {
                for &key in part {
                    assert_eq!(edit.remove(key), Ok(Some(!key)));
                }
            });
            assert!(tree.accounts_for(0));
        }
        assert_eq!(tree.audit(), 0);
        assert!(tree.allocated() < 130, "a small tree keeps little memory, however large it was");
    }
}

#[test]
fn an_edit_copies_each_node_once_and_an_abort_gives_all_back() {
    let mut tree = Tree::new();
    commit(&mut tree, |edit| {
        (0..1000).for_each(|key| assert_eq!(edit.insert(key, key, ()), Ok(None)));
    });
    let nodes = tree.audit();
    let before = tree.allocated();

    let mut edit = tree.edit();
    for round in 1..10 {
        (0..1000).for_each(|key| assert!(edit.insert(key, key + round, ()).unwrap().is_some()));
    }
    assert_eq!(edit.view().get(5), Some(14));
    drop(edit);
    assert_eq!(tree.view().get(5), Some(5));
    assert!(tree.accounts_for(0), "aborted: what was made is free again");

    let mut edit = tree.edit();
    for round in 1..10 {
        (0..1000).for_each(|key| assert!(edit.insert(key, key + round, ()).unwrap().is_some()));
    }
    let (_, retired) = edit.publish();
    assert_eq!(retired.len, nodes, "each node is retired once, in nine rounds");
    assert!(tree.accounts_for(nodes));
    assert!(tree.allocated() <= before + nodes + 10, "the second edit used what the first gave back");
    // SAFETY: no reader of this tree is left.
    unsafe { tree.reclaim(retired) };

    let edit = tree.edit();
    let (_, retired) = edit.publish();
    assert_eq!(retired.len, 0, "an edit that changes nothing retires nothing");
}

#[test]
fn memory_runs_out_before_anything_is_changed() {
    const BATCH: u64 = 50;
    for blocks in 0..60 {
        let mut tree = Tree::new();
        tree.limit(blocks);
        let mut stored = 0;
        loop {
            let mut edit = tree.edit();
            let batch = stored..stored + BATCH;
            let done = batch.take_while(|&key| edit.insert(key, key, ()).is_ok()).count() as u64;
            if done < BATCH {
                assert_eq!(edit.insert(u64::MAX, 0, ()), Err(NoMemory));
                assert!(edit.view().range(0..).map(|(key, _)| key).eq(0..stored + done), "no half insertion");
                break;
            }
            let (_, retired) = edit.publish();
            // SAFETY: no reader of this tree is left.
            unsafe { tree.reclaim(retired) };
            stored += BATCH;
        }
        assert!(tree.view().range(0..).map(|(key, _)| key).eq(0..stored), "the failed edit left no trace");
        assert!(tree.accounts_for(0));
        assert_eq!(tree.allocated(), blocks, "the edit used all the memory");
        assert!(blocks < 40 || stored > 100);
    }
}

#[test]
fn the_greatest_key_is_a_key() {
    let mut tree = Tree::new();
    commit(&mut tree, |edit| {
        assert_eq!(edit.view().floor(u64::MAX), None);
        assert_eq!(edit.remove(u64::MAX), Ok(None));
        for key in 0..40 {
            assert_eq!(edit.insert(u64::MAX - key, key, ()), Ok(None));
        }
    });
    assert!(tree.accounts_for(0));
    assert_eq!(tree.view().floor(u64::MAX), Some((u64::MAX, 0)));
    assert_eq!(tree.view().floor(u64::MAX - 40), None);
    assert!(tree.view().range(u64::MAX..).eq([(u64::MAX, 0)]));
}

/// Threads read an old version beside edits: under Miri a write to a shared node is a data race.
#[test]
fn readers_of_an_old_version_do_not_notice_edits() {
    let mut tree = Tree::new();
    commit(&mut tree, |edit| {
        (0..200).for_each(|key| assert_eq!(edit.insert(key, key, ()), Ok(None)));
    });
    let old = tree.root();
    let retired = std::thread::scope(|scope| {
        let reader = move || {
            // SAFETY: nothing is reclaimed before the scope has joined this thread.
            let view = unsafe { old.read() };
            for _ in 0..20 {
                assert!(view.range(0..).eq((0..200).map(|key| (key, key))));
            }
        };
        scope.spawn(reader);
        scope.spawn(reader);
        let mut retired = Vec::new();
        for key in 0..200 {
            let mut edit = tree.edit();
            assert_eq!(edit.remove(key), Ok(Some(key)));
            assert_eq!(edit.insert(key + 1000, key, ()), Ok(None));
            retired.push(edit.publish().1);
        }
        retired
    });
    for nodes in retired {
        // SAFETY: the readers have ended.
        unsafe { tree.reclaim(nodes) };
    }
    assert!(tree.accounts_for(0));
}

#[test]
fn negative_control_a_lost_node_is_missed() {
    let mut tree = Tree::new();
    commit(&mut tree, |edit| assert_eq!(edit.insert(1, 1, ()), Ok(None)));
    let mut edit = tree.edit();
    assert_eq!(edit.insert(2, 2, ()), Ok(None));
    let (_, retired) = edit.publish();
    assert_eq!(retired.len, 1);
    assert!(!tree.accounts_for(0), "forgetting what was retired does not go unnoticed");
    // SAFETY: no reader of this tree is left.
    unsafe { tree.reclaim(retired) };
    assert!(tree.accounts_for(0));
}
