//! The judge on software vCPUs: it finds nothing where nothing is wrong, and everything that is.

mod soft;

use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae};
use slat::{Format, Idle};
use slat_judge::{conclude, judge, mutate, stale};
use soft::Soft;

fn nothing_differs<F: Format>(seed: u64) {
    let mut idle = Idle::take().unwrap();
    let mut machine = Soft::<F>::new();
    let verdict = judge::<F, _>(&mut machine, &mut idle, seed, 10_000);
    assert!(verdict.passed() && verdict.quirks.is_empty(), "{verdict:?}");
    assert!(verdict.lookups >= 10_000);
    assert!(conclude(&mut machine, &[verdict]));
}

#[test]
fn npt() {
    nothing_differs::<Npt4>(1);
    nothing_differs::<Npt5>(2);
    nothing_differs::<Pae>(3);
}

#[test]
fn ept() {
    nothing_differs::<Ept4>(4);
    nothing_differs::<Ept5>(5);
    nothing_differs::<Ept4NoAd>(6);
}

fn stale_is_seen_and_gone<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let verdict = stale::<F, _>(&mut Soft::<F>::new(), &mut idle, 1);
    assert!(verdict.passed(), "{verdict:?}");
}

#[test]
fn what_is_stale_is_seen_without_the_flush_and_gone_with_it() {
    stale_is_seen_and_gone::<Npt4>();
    stale_is_seen_and_gone::<Ept4NoAd>();
    stale_is_seen_and_gone::<Pae>();
}

fn flips_are_noticed<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let verdict = mutate::<F, _>(&mut Soft::<F>::new(), &mut idle);
    assert!(verdict.passed(), "{verdict:?}");
}

#[test]
fn what_matters_is_noticed_when_it_is_flipped() {
    flips_are_noticed::<Npt5>();
    flips_are_noticed::<Ept4>();
    flips_are_noticed::<Ept4NoAd>();
    flips_are_noticed::<Pae>();
}
