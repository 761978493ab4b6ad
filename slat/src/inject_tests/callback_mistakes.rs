//! Each seeded mistake about callbacks that panic is found.

use super::callbacks::each_panics;
use super::machine::Panics;
use crate::seeded::{self, Bug};
use crate::table::formats::Npt4;
use std::collections::BTreeSet;
use std::panic::catch_unwind;

/// Whether the case shows the mistake.
fn shows(bug: Bug, case: &str) {
    let run = || each_panics::<Npt4, false>(&[case], &[Panics::Once], &mut BTreeSet::new());
    let ended = catch_unwind(|| seeded::with(bug, run));
    assert!(ended.is_err(), "{bug:?} makes no difference in {case}");
    seeded::found(bug, 1);
}

#[test]
fn mistake_a_log_is_armed_after_an_event() {
    shows(Bug::ArmedAfterEvent, "begin a log");
}

#[test]
fn mistake_a_log_is_not_armed_if_a_split_panics() {
    shows(Bug::ArmedAfterSplit, "begin a log of large pages");
}

#[test]
fn mistake_a_thread_stays_busy() {
    shows(Bug::BusyForEver, "unmap and collect");
}

#[test]
fn mistake_pages_that_were_taken_are_in_no_harvest() {
    shows(Bug::TakenAside, "harvest what was dirty from the start");
}

#[test]
fn mistake_a_store_that_panics_is_not_marked() {
    shows(Bug::PartUnmarked, "emulate a store");
}

#[test]
fn mistake_a_listener_misses_a_store() {
    shows(Bug::ListenersCutShort, "emulate a store");
}

#[test]
fn mistake_a_page_is_told_before_the_callback_has_it() {
    shows(Bug::ToldBeforeCalled, "collect and reset a ring");
}
