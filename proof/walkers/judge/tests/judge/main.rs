//! The judge on software vCPUs: it finds every mistake, and nothing else.

mod soft;
mod wrong;

use slat::table::formats::{
    Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept, Ept4, Ept4NoAd, Ept5, Npt, Npt4, Npt5, Pae, Sv39x4,
    Sv39x4NoAd, Sv48x4, Sv57x4,
};
use slat::{Format, Idle};
use slat_judge::{Seen, conclude, judge, mutate, stale};
use soft::Soft;

fn nothing_differs<F: Format>(seed: u64) {
    let mut idle = Idle::take().unwrap();
    let mut machine = Soft::<F>::new();
    let verdict = judge::<F, _>(&mut machine, &mut idle, seed, 10_000);
    assert!(verdict.passed() && verdict.quirks.is_empty(), "{verdict:?}");
    // The look-ups must meet every kind of entry of the format.
    let Seen { through, permission, hole, mmio, withdrawn, frozen, beyond } = verdict.seen;
    let all = [through[0], through[1], permission, hole, mmio, frozen, beyond];
    assert!(verdict.lookups >= 10_000 && all.iter().all(|&count| count > 50), "{verdict:?}");
    assert_eq!((through[2] > 0, withdrawn > 0), (F::MAX_LEAF.number() == 3, !F::HARDWARE_AD), "{verdict:?}");
    assert!(conclude(&mut machine, &[verdict]));
}

#[test]
fn npt() {
    nothing_differs::<Npt4>(1);
    nothing_differs::<Npt5>(2);
    nothing_differs::<Pae>(3);
    nothing_differs::<Npt<4, 51>>(15);
}

#[test]
fn ept() {
    nothing_differs::<Ept4>(4);
    nothing_differs::<Ept5>(5);
    nothing_differs::<Ept4NoAd>(6);
    nothing_differs::<Ept<4, true, 47>>(16);
}

#[test]
fn arm64() {
    nothing_differs::<Arm64L39>(7);
    nothing_differs::<Arm64L40>(8);
    nothing_differs::<Arm64L48>(9);
    nothing_differs::<Arm64NoAd>(10);
}

#[test]
fn riscv() {
    nothing_differs::<Sv39x4>(11);
    nothing_differs::<Sv39x4NoAd>(12);
    nothing_differs::<Sv48x4>(13);
    nothing_differs::<Sv57x4>(14);
}

fn stale_entries_are_seen_and_gone<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let verdict = stale::<F, _>(&mut Soft::<F>::new(), &mut idle, 1);
    assert!(verdict.passed(), "{verdict:?}");
}

#[test]
fn stale_entries_are_seen_without_the_flush_and_gone_with_it() {
    stale_entries_are_seen_and_gone::<Npt4>();
    stale_entries_are_seen_and_gone::<Ept4NoAd>();
    stale_entries_are_seen_and_gone::<Pae>();
    stale_entries_are_seen_and_gone::<Arm64L40>();
    stale_entries_are_seen_and_gone::<Sv39x4>();
}

fn flips_are_noticed<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let verdict = mutate::<F, _>(&mut Soft::<F>::new(), &mut idle);
    assert!(verdict.passed(), "{verdict:?}");
}

#[test]
fn flips_of_relevant_bits_change_look_ups() {
    flips_are_noticed::<Npt5>();
    flips_are_noticed::<Ept4>();
    flips_are_noticed::<Ept4NoAd>();
    flips_are_noticed::<Pae>();
    flips_are_noticed::<Arm64L40>();
    flips_are_noticed::<Arm64NoAd>();
    flips_are_noticed::<Sv48x4>();
}
