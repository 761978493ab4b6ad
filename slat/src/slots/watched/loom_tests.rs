use super::*;
use crate::loom_tests::{explore_within, thread};
use crate::sync::prim::{SeqCst, fence};

struct Nothing;

impl WriteListener for Nothing {}

/// A frame is watched for the first time, while another thread looks up this frame and its neighbour.
fn asked_beside() {
    let watched = Arc::new(Watched::default());
    let theirs = watched.clone();
    let asking = thread::spawn(move || {
        let _ = theirs.has(Gfn(1));
        assert!(!theirs.has(Gfn(2)), "its neighbour is not watched");
    });
    let id = watched.watch(Span::sized(Gfn(1), 1), Arc::new(Nothing)).expect("there is memory");
    asking.join().expect("it ends");
    assert!(watched.has(Gfn(1)) && watched.unwatch(id) && watched.is_empty());
}

#[test]
fn counts_are_complete_before_they_are_found() {
    explore_within(3, asked_beside);
}

/// A store outside the tables races with a new watch of its frame, as in [`crate::writes`]: the watch is counted, then
/// comes the fence of the invalidation, then the listener reads the memory.
fn stored_beside() {
    let (watched, word) = (Arc::new(Watched::default()), Arc::new(AtomicU64::new(0)));
    let id = watched.watch(Span::sized(Gfn(0), 1), Arc::new(Nothing)).expect("there is memory");
    let theirs = (watched.clone(), word.clone());
    let storing = thread::spawn(move || {
        theirs.1.store(1, Relaxed);
        theirs.0.has_after_store(Gfn(1))
    });
    let second = watched.watch(Span::sized(Gfn(1), 1), Arc::new(Nothing)).expect("there is memory");
    fence(SeqCst);
    let found = word.load(Relaxed) == 1;
    let told = storing.join().expect("it ends");
    assert!(found || told, "the store is neither told nor found");
    assert!(watched.unwatch(second) && watched.unwatch(id));
}

#[test]
fn a_store_beside_a_watch_is_told_or_found() {
    explore_within(3, stored_beside);
}
