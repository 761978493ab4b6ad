//! Loom tests: one or two threads write a hint while another reads it.

use super::*;
use crate::loom_tests::{explore, explore_within, thread};
use std::sync::Arc;

const TORN: &str = "words of another version";

/// The words of a version are its number, three times.
fn remembers(asked: u64, versions: &'static [u64]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let remembered = Arc::new(SeqlockWords::default());
        remembered.put([1; 3], 1);
        let theirs = remembered.clone();
        let asks = thread::spawn(move || {
            let found = theirs.get(asked);
            assert!(found.is_none_or(|words| words == [asked; 3]), "{TORN}");
        });
        let others: Vec<_> = versions[1..]
            .iter()
            .map(|&version| {
                let theirs = remembered.clone();
                thread::spawn(move || theirs.put([version; 3], version))
            })
            .collect();
        remembered.put([versions[0]; 3], versions[0]);
        asks.join().expect("it ends");
        others.into_iter().for_each(|other| other.join().expect("it ends"));
    }
}

#[test]
fn a_hint_is_of_one_version() {
    explore(remembers(1, &[2]));
    explore(remembers(2, &[2]));
}

#[test]
fn a_hint_with_concurrent_writers_is_of_one_version() {
    explore_within(3, remembers(2, &[2, 3]));
}
