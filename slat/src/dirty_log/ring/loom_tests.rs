//! A vCPU that makes pages writable and pushes them, and a collector.
//!
//! The vCPU is the first thread of each test. It loads `head` before it stores it. loom takes that load for the last
//! one that the store may race with: if the collector began, loom would not try the other order.

use super::*;
use crate::loom_tests::{RACE, UnsafeCell, explore, finds, thread};
use crate::sync::prim::Release;
use std::sync::Arc;

fn page(page: u64) -> Pushed {
    Pushed::from_words([0, page])
}

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The vCPU pushes a page before it is writable.
    ToldFirst,
    /// An entry is published, then written.
    PublishedFirst,
    /// The collector makes room before it reads the entry.
    RoomFirst,
}

/// [`Ring::push`], or a version with one mistake.
fn push(ring: &Ring, pushed: Pushed, mistake: Mistake) {
    let head = ring.head.load(Relaxed);
    let entry = &ring.entries[(head % ring.entries.len() as u64) as usize];
    if mistake == Mistake::PublishedFirst {
        ring.head.store(head + 1, Release);
        entry.put(pushed);
    } else {
        assert!(ring.push(pushed));
    }
}

/// A page that is writable at the end is in the ring, or has been collected.
fn stores(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((Ring::with(2, 2).expect("memory"), AtomicU64::new(0)));
        let theirs = shared.clone();
        let collector = thread::spawn(move || {
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
        assert!(writable.load(Relaxed) == 0 || ring.waiting() == 1, "a writable page that is in no ring");
    }
}

/// More pages than there is room for: each is reported once, in order.
fn goes_round(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        const PAGES: u64 = 3;
        // A copy of each entry in a cell that loom checks: loom orders loads, so the entry itself shows no late read.
        let shadow = [UnsafeCell::new(0), UnsafeCell::new(0)];
        let shared = Arc::new((Ring::with(2, 2).expect("memory"), shadow));
        let theirs = shared.clone();
        let collector = thread::spawn(move || {
            let (ring, shadow) = &*theirs;
            let mut told = Vec::new();
            while told.len() < PAGES as usize {
                let taken = ring.take();
                if mistake == Mistake::RoomFirst {
                    ring.tail.store(taken.until, Release);
                }
                for pushed in taken {
                    // SAFETY: loom checks that no thread writes it meanwhile.
                    shadow[told.len() % 2].with(|shadow| unsafe { *shadow });
                    told.push(pushed.page());
                }
                thread::yield_now();
            }
            told
        });
        let (ring, shadow) = &*shared;
        for at in 0..PAGES {
            while ring.is_full() {
                thread::yield_now();
            }
            // SAFETY: as above.
            shadow[at as usize % 2].with_mut(|shadow| unsafe { *shadow = at });
            push(ring, page(at), mistake);
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
    assert!(finds("in no ring", stores(Mistake::ToldFirst)));
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
    assert!(finds(RACE, goes_round(Mistake::RoomFirst)));
}
