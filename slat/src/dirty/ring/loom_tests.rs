//! A vCPU that makes pages writable and tells of it, beside a collector.
//!
//! The vCPU is the first thread of each test. It loads `head` before it stores it, and loom takes that load for the last
//! one that the store may race with: begun by the collector, the other order would not be tried.

use super::*;
use crate::loom_tests::{explore, finds};
use std::sync::Arc;

fn page(page: u64) -> Pushed {
    Pushed::from_words([0, page])
}

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The vCPU tells of a page before it is writable.
    ToldFirst,
    /// The entry is published by a plain store.
    PlainPush,
    /// An entry is published, then written.
    PublishedFirst,
    /// Room is made, then what stood there is read.
    RoomFirst,
}

/// [`Ring::push`], or one that is wrong in one thing.
fn push(ring: &Ring, pushed: Pushed, mistake: Mistake) {
    let head = ring.head.load(Relaxed);
    let entry = &ring.entries[(head % ring.entries.len() as u64) as usize];
    match mistake {
        Mistake::PlainPush => {
            entry.put(pushed);
            ring.head.store(head + 1, Relaxed);
        }
        Mistake::PublishedFirst => {
            ring.head.store(head + 1, Release);
            entry.put(pushed);
        }
        _ => assert!(ring.push(pushed)),
    }
}

/// A page that is writable when all is over is one that a collector will be told of.
fn stores(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((Ring::with(2, 2).expect("memory"), AtomicU64::new(0)));
        let theirs = shared.clone();
        let collector = loom::thread::spawn(move || {
            let (ring, writable) = &*theirs;
            for _ in ring.take() {
                // As a walk does it: a leaf that is not writable is left alone.
                if writable.load(Relaxed) == 1 {
                    writable.store(0, Relaxed);
                }
            }
        });
        let (ring, writable) = &*shared;
        if mistake == Mistake::ToldFirst {
            push(ring, page(0), mistake);
        }
        writable.store(1, Relaxed);
        if mistake != Mistake::ToldFirst {
            push(ring, page(0), mistake);
        }
        collector.join().expect("the collector ends");
        assert!(
            writable.load(Relaxed) == 0 || ring.waiting() == 1,
            "a writable page that nobody will tell of"
        );
    }
}

/// More pages than there is room for, each told once and in order.
fn goes_round(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        const PAGES: u64 = 3;
        let ring = Arc::new(Ring::with(2, 2).expect("memory"));
        let theirs = ring.clone();
        let collector = loom::thread::spawn(move || {
            let mut told = Vec::new();
            while told.len() < PAGES as usize {
                let taken = theirs.take();
                if mistake == Mistake::RoomFirst {
                    theirs.tail.store(taken.until, Release);
                }
                told.extend(taken.map(Pushed::page));
                loom::thread::yield_now();
            }
            told
        });
        for at in 0..PAGES {
            while ring.is_full() {
                loom::thread::yield_now();
            }
            push(&ring, page(at), mistake);
        }
        let told = collector.join().expect("the collector ends");
        assert!(told.into_iter().eq(0..PAGES), "not what was written");
    }
}

#[test]
fn a_writable_page_is_told_of_or_will_be() {
    explore(stores(Mistake::None));
}

#[test]
fn mistake_telling_before_the_page_is_writable() {
    assert!(finds("nobody will tell", stores(Mistake::ToldFirst)));
}

#[test]
fn mistake_publishing_an_entry_by_a_plain_store() {
    assert!(finds("nobody will tell", stores(Mistake::PlainPush)));
}

#[test]
fn a_ring_that_goes_round_tells_each_page_once() {
    explore(goes_round(Mistake::None));
}

#[test]
fn mistake_publishing_an_entry_before_it_is_written() {
    assert!(finds("not what was written", goes_round(Mistake::PublishedFirst)));
}

#[test]
fn mistake_making_room_before_the_entry_is_read() {
    assert!(finds("not what was written", goes_round(Mistake::RoomFirst)));
}
