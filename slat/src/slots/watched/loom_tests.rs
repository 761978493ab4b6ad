use super::*;
use crate::loom_tests::{RACE, explore_within, finds_seeded};
use crate::seeded::Bug;

struct Nothing;

impl WriteListener for Nothing {}

/// A frame is watched for the first time beside a thread that asks for it, and for its neighbour.
fn asked_beside() {
    let watched = Arc::new(Watched::new());
    let theirs = watched.clone();
    let asking = loom::thread::spawn(move || {
        let _ = theirs.has(Gfn(1));
        assert!(!theirs.has(Gfn(2)), "its neighbour is not watched");
    });
    let id = watched.watch(Span::sized(Gfn(1), 1), Arc::new(Nothing)).expect("there is memory");
    asking.join().expect("it ends");
    assert!(watched.has(Gfn(1)) && watched.unwatch(id) && watched.is_empty());
}

#[test]
fn what_is_found_of_a_watch_is_made() {
    explore_within(3, asked_beside);
}

#[test]
fn mistake_to_show_counts_before_they_are_made() {
    finds_seeded(Bug::WatchedRelaxed, RACE, asked_beside);
}
