//! A ring, and the pages in it.

use super::*;
use crate::sync::prim::AtomicBool;
use alloc::vec;

fn page(page: u64) -> Pushed {
    Pushed::from_words([0, page])
}

fn pages(ring: &Ring) -> Vec<u64> {
    ring.take().map(Pushed::page).collect()
}

#[test]
fn pages_come_out_in_order_and_once_however_often_it_goes_round() {
    let ring = Ring::with(8, 6).unwrap();
    let mut next = 0;
    for lap in 1..40 {
        let many = lap % 7;
        for at in next..next + many {
            assert!(!ring.is_full());
            assert!(ring.push(page(at)));
        }
        assert_eq!(ring.is_full(), many == 6);
        assert_eq!(pages(&ring), (next..next + many).collect::<Vec<_>>());
        next += many;
    }
    assert!(pages(&ring).is_empty());
}

#[test]
fn soft_full_it_still_takes_pages_and_full_it_refuses_them() {
    let ring = Ring::new(RingSize::new(4096).unwrap()).unwrap();
    for at in 0..256 {
        assert_eq!(ring.is_full(), at >= 256 - 64, "{at}");
        assert!(ring.push(page(at)));
    }
    assert!(!ring.push(page(256)), "nothing is overwritten");
    assert_eq!(pages(&ring), (0..256).collect::<Vec<_>>());
    assert!(!ring.is_full());
    assert!(ring.push(page(256)));
}

#[test]
fn entries_that_a_collector_leaves_stay() {
    let ring = Ring::with(8, 6).unwrap();
    (0..6).for_each(|at| assert!(ring.push(page(at))));
    let looked = ring.take();
    assert_eq!(looked.until - looked.next, 6, "looked at, and not taken");
    drop(looked);
    assert!(ring.is_full());
    assert_eq!(ring.take().next(), Some(page(0)));
    assert!(!ring.is_full());
    assert_eq!(pages(&ring), [1, 2, 3, 4, 5]);
}

#[test]
fn nothing_is_lost_between_a_vcpu_and_collectors_that_take_turns() {
    const PAGES: u64 = if cfg!(miri) { 500 } else { 200_000 };
    let (ring, over) = (Ring::with(128, 64).unwrap(), AtomicBool::new(false));
    let collect = |over: &dyn Fn() -> bool| {
        let mut taken = vec![];
        while !over() {
            taken.extend(pages(&ring));
            std::thread::yield_now();
        }
        taken
    };
    let mut taken = std::thread::scope(|scope| {
        let vcpu = scope.spawn(|| {
            for at in 0..PAGES {
                while ring.is_full() {
                    std::thread::yield_now();
                }
                assert!(ring.push(page(at)));
            }
        });
        let other = scope.spawn(|| collect(&|| over.load(Relaxed)));
        let mut taken = collect(&|| vcpu.is_finished());
        over.store(true, Relaxed);
        taken.extend(other.join().unwrap());
        taken
    });
    taken.extend(pages(&ring));
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..PAGES));
}

fn log(serial: u64) -> Bitmap {
    Bitmap::new(1000, serial, false).unwrap()
}

#[test]
fn an_entry_encodes_its_space_slot_and_page() {
    let last = (1 << PAGE) - 1;
    for (space, slot, serial, page) in [
        (0, 0, 0, 0),
        (u8::MAX, u32::MAX, u64::MAX, last),
        (u8::MAX, 0, 0, 0),
        (0, u32::MAX, 0, 0),
        (0, 0, u64::MAX, 0),
        (0, 0, 0, last),
        (1, 0x1234_5678, 0x12_3456_789a, 999),
    ] {
        let log = log(serial);
        let pushed = Pushed::new(SpaceId(space), SlotId(slot), &log, page);
        assert_eq!((pushed.space(), pushed.slot(), pushed.page()), (SpaceId(space), SlotId(slot), page));
        assert_eq!(pushed.is_of(&log), page < 1000, "no page that the slot does not have");
        assert_eq!(Pushed::from_words(pushed.to_words()), pushed);
    }
}

#[test]
fn an_entry_matches_only_the_log_that_it_was_pushed_for() {
    let pushed = Pushed::new(SpaceId(0), SlotId(3), &log(7), 5);
    assert!(pushed.is_of(&log(7)) && !pushed.is_of(&log(8)));
    let late = Pushed::new(SpaceId(0), SlotId(3), &log((1 << SERIAL) + 7), 5);
    assert!(late.is_of(&log((1 << SERIAL) + 7)), "however many there were");
}

#[test]
fn neighbours_become_one_word_whatever_came_between_them() {
    let page = |space, slot, serial, page| Pushed::new(SpaceId(space), SlotId(slot), &log(serial), page);
    let mut pages: Vec<_> =
        [64, 63, 7, 64, 0, 127, 640].iter().map(|&number| page(0, 3, 1, number)).collect();
    pages.extend([page(1, 3, 1, 7), page(0, 3, 2, 7), page(0, 2, 1, 7)]);
    pages.rotate_left(5);
    pages.sort_unstable();
    let logs = pages.chunk_by(Pushed::shares_log);
    let words: Vec<_> = logs.map(|pages| merge(pages).collect::<Vec<_>>()).collect();
    let seven = vec![(0, 1 << 7)];
    let all = vec![(0, 1 << 63 | 1 << 7 | 1), (1, 1 << 63 | 1), (10, 1)];
    assert_eq!(words, [seven.clone(), all, seven.clone(), seven]);
    assert_eq!(merge(&[]).count(), 0);
}

#[test]
fn a_reset_takes_what_was_read_and_leaves_what_was_pushed_since() {
    let ring = Ring::with(8, 6).unwrap();
    assert!(ring.push(page(1)));
    assert_eq!(ring.collect().map(Pushed::page).collect::<Vec<_>>(), [1]);
    assert!(ring.push(page(2)));
    assert_eq!(ring.waits_for_reset(), 1);
    assert_eq!(ring.take_told(u64::MAX).map(Pushed::page).collect::<Vec<_>>(), [1]);
    assert_eq!(pages(&ring), [2]);
}

#[test]
fn reported_entries_take_up_room_until_they_are_taken() {
    let ring = Ring::with(8, 6).unwrap();
    (0..6).for_each(|at| assert!(ring.push(page(at))));
    assert_eq!(ring.collect().by_ref().take(4).count(), 4);
    assert_eq!((ring.is_full(), ring.waits_for_reset()), (true, 4));
    assert_eq!(ring.take_told(u64::MAX).take(1).count(), 1);
    assert_eq!((ring.is_full(), ring.waits_for_reset()), (false, 3));
    assert_eq!(ring.collect().map(Pushed::page).collect::<Vec<_>>(), [4, 5], "each is read once");
    assert_eq!(pages(&ring), [1, 2, 3, 4, 5], "a harvest takes what was read, too");
    assert_eq!((ring.collect().count(), ring.waits_for_reset()), (0, 0));
}

#[test]
fn the_first_of_what_was_told_goes_and_what_is_struck_out_counts_for_nothing() {
    let ring = Ring::with(8, 6).unwrap();
    (0..6).for_each(|at| assert!(ring.push(page(at))));
    let mut taking = ring.collect();
    while let Some(pushed) = taking.next() {
        if [0, 2, 3].contains(&pushed.page()) {
            taking.strike_out();
        }
    }
    drop(taking);
    let told = |most| {
        ring.take_told(most).filter(|pushed| *pushed != Pushed::STRUCK_OUT).map(Pushed::page).collect()
    };
    let (first, room): (Vec<_>, _) = (told(1), ring.waits_for_reset());
    assert_eq!((first, room), (vec![1], 2), "with 0, 2 and 3");
    assert!(ring.push(page(6)));
    assert_eq!((told(2), pages(&ring)), (vec![4, 5], vec![6]), "no more than was told");
}
