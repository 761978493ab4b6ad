//! Grace periods on real threads, each with a negative control.

use super::*;
use crate::sync::prim::{Acquire, AtomicBool, Release};
use alloc::vec::Vec;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

#[test]
fn a_seat_counts_its_sections() {
    let side = ReadSide::new(1, Barrier::symmetric());
    let seat = side.claim(0).unwrap();
    for _ in 0..2 {
        assert!(side.claim(0).is_none(), "one holder, however often others try");
    }
    let section = side.enter(&seat);
    assert_eq!(seat.word.load(Relaxed), INSIDE);
    drop(section);
    assert_eq!(seat.word.load(Relaxed), OTHER);
    side.enter(&seat).end_mapped();
    assert_eq!((seat.word.load(Relaxed), side.total_mapped()), (OTHER + MAPPED, 1));
}

#[test]
fn a_borrowed_seat_has_one_holder() {
    let side = ReadSide::new(3, Barrier::detect());
    // More are made when two threads meet at a seat that a third gives back.
    let holders: Vec<AtomicU64> = (0..256).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    let borrowed = side.borrow(1);
                    let index = side.all().position(|seat| core::ptr::eq(seat, borrowed.0)).unwrap();
                    assert_ne!(index, 0, "seat 0 is a vCPU's");
                    let holder = &holders[index];
                    assert_eq!(holder.fetch_add(1, Relaxed), 0, "two threads on one seat");
                    drop(side.enter(&borrowed));
                    holder.fetch_sub(1, Relaxed);
                }
            });
        }
    });
}

#[test]
fn there_are_more_seats_where_all_are_held() {
    let side = ReadSide::new(3, Barrier::symmetric());
    let held: Vec<_> = (0..3).map(|_| side.borrow(0)).collect();
    let (has, had) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _seat = side.borrow(1);
            has.send(()).unwrap();
        });
        let alone = had.recv_timeout(Duration::from_secs(10));
        drop(held);
        assert!(alone.is_ok(), "it waits until a seat is given back");
    });
}

/// A reader holds a cell while a writer unlinks it. The writer poisons the cell, after a grace period or (the negative
/// control) at once. Returns how often the reader saw poison.
fn poisoned_reads(grace: bool) -> usize {
    let side = ReadSide::new(1, Barrier::detect());
    let cells = [AtomicU64::new(1), AtomicU64::new(1)];
    let (current, inside, go_on) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let wait_for = |flag: &AtomicBool| {
        let mut patience = Patience::default();
        while !flag.load(Acquire) {
            patience.wait();
        }
    };
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let seat = side.claim(0).unwrap();
            let _section = side.enter(&seat);
            let cell = &cells[current.load(Acquire) as usize];
            inside.store(true, Release);
            wait_for(&go_on);
            (0..10_000).filter(|_| cell.load(Relaxed) == 0).count()
        });
        wait_for(&inside);
        current.store(1, Release);
        if grace {
            go_on.store(true, Release);
            side.synchronize();
        }
        cells[0].store(0, Relaxed);
        go_on.store(true, Release);
        reader.join().unwrap()
    })
}

/// A reader parks, unparks, waits a little for the writer to replace what it reads, and reads. The writer poisons
/// the old cell, after a grace period or (the negative control) at once. Returns how often the reader saw poison.
fn poisoned_reads_beside_rest(grace: bool) -> usize {
    const ROUNDS: usize = 1000;
    let side = ReadSide::new(2, Barrier::detect());
    let cells = [AtomicU64::new(1), AtomicU64::new(1)];
    let (current, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let seat = side.claim(1).unwrap();
            let mut poisoned = 0;
            while !stop.load(Relaxed) {
                seat.park();
                seat.unpark(false);
                let _section = side.enter(&seat);
                let mine = current.load(Acquire);
                // Bounded: the writer may be waiting for this very section.
                let mut patience = Patience::default();
                for _ in 0..40 {
                    if current.load(Relaxed) != mine {
                        break;
                    }
                    patience.wait();
                }
                let reads = (0..200).filter(|_| cells[mine as usize].load(Relaxed) == 0);
                poisoned += reads.count();
            }
            poisoned
        });
        for round in 0..ROUNDS {
            let next = (round + 1) % 2;
            cells[next].store(1, Relaxed);
            current.store(next as u64, Release);
            if grace {
                side.synchronize();
            }
            cells[1 - next].store(0, Relaxed);
            if round % 16 == 0 {
                thread::yield_now();
            }
        }
        stop.store(true, Relaxed);
        reader.join().unwrap()
    })
}

#[test]
fn a_reader_back_from_rest_sees_what_was_unlinked_meanwhile() {
    assert_eq!(poisoned_reads_beside_rest(true), 0);
}

#[test]
fn negative_control_a_reader_beside_rest_sees_poison() {
    assert!((0..1000).any(|_| poisoned_reads_beside_rest(false) > 0));
}

#[test]
fn a_grace_period_outlasts_every_reader() {
    for _ in 0..50 {
        assert_eq!(poisoned_reads(true), 0);
    }
}

#[test]
fn negative_control_without_a_grace_period_readers_see_poison() {
    assert!(poisoned_reads(false) > 0);
}
