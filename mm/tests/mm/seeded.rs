//! Tests of the mistakes in this crate ([`slat::seeded`]): each must make the test fail that guards the step.
//! Only under `--cfg seeded`: `cargo xtask verify --only load`.

use slat::seeded::{Bug, Tool, each_fails_in_a_process};
use std::collections::BTreeSet;

/// Each mistake, and its test.
const GUARDS: [(Bug, &str); 28] = [
    (Bug::FullBelieved, "swap_others::a_device_that_was_full_for_a_moment_is_asked_again"),
    (Bug::NoFrameIsFull, "swap_others::an_arena_that_was_full_for_a_moment_does_not_make_the_swap_full"),
    (Bug::PoolChargedToAll, "swap_others::an_address_space_pays_for_its_own_copies_only"),
    (
        Bug::StoredUnderLock,
        "swap_others::neither_faults_nor_changes_nor_listeners_wait_for_pages_on_their_way_to_the_device",
    ),
    (Bug::BooksHeld, "swap_io::a_device_that_holds_its_writes_costs_faults_elsewhere_nothing"),
    (Bug::OneAtATime, "swap_io::writes_of_a_batch_are_on_their_way_at_once"),
    (Bug::NeverProbed, "swap_io::a_device_that_fails_and_recovers_loses_nothing_and_is_used_again_by_itself"),
    (Bug::GroupsTogether, "group::a_group_over_its_limit_leaves_the_working_set_of_another_alone"),
    (Bug::ShareUncounted, "share::a_page_that_forks_share_is_written_once_and_comes_back_shared"),
    (Bug::KinForgotten, "share::a_page_that_forks_share_is_written_once_and_comes_back_shared"),
    (Bug::ShareOverwritten, "share::a_fork_keeps_the_page_that_it_uses_and_writes_to_its_own"),
    (Bug::CacheUncounted, "share::a_fork_keeps_the_page_that_it_uses_and_writes_to_its_own"),
    (Bug::UnmappedUnsaid, "share::a_frame_that_only_the_cache_holds_is_freed_on_demand"),
    (Bug::LeavingTwice, "share::no_other_thread_takes_a_share_that_is_being_stored"),
    (Bug::VersionNotOutlasted, "during_change::munmap_leaves_no_page_behind"),
    (Bug::MappingBeforeLock, "during_change::munmap_leaves_no_page_behind"),
    (Bug::RangeNotKept, "during_change::munmap_does_not_empty_a_new_mapping"),
    (Bug::ForkUnshown, "during_change::a_fork_shows_one_moment"),
    (Bug::MoveShownEarly, "during_change::a_range_that_moves_is_found_whole_or_not_at_all"),
    (Bug::ShareUnlooked, "during_change::no_share_is_broken_after_the_mapping_changed"),
    (Bug::MergeUnlooked, "during_change::a_page_that_refuses_merging_is_not_merged"),
    (Bug::TrimmedUnlocked, "memory::no_frame_is_trimmed_that_another_thread_takes"),
    (Bug::RefaultUncharged, "group::the_sums_are_exact_whatever_is_done"),
    (Bug::FailureBelieved, "swap_device::a_device_that_fails_to_write_loses_nothing"),
    (Bug::ZeroedInName, "memory::frames_that_were_zeroed_ahead_hold_zeroes"),
    (Bug::ZeroedHidden, "memory::frames_that_were_zeroed_ahead_are_found_by_threads_that_need_any"),
    (Bug::ZeroedLate, "memory::a_frame_is_zeroed_before_another_thread_can_have_it"),
    (Bug::ZoneAlone, "memory::threads_find_the_last_frame_wherever_it_is"),
];

fn guard(bug: Bug) -> &'static str {
    GUARDS.iter().find(|(guarded, _)| *guarded == bug).expect("each has its test").1
}

#[test]
fn every_mistake_is_found() {
    let tests: BTreeSet<_> = GUARDS.iter().map(|(_, test)| *test).collect();
    let program = std::env::current_exe().expect("this program");
    let right = std::process::Command::new(program).arg("--exact").args(&tests).output().expect("it starts");
    let said = String::from_utf8_lossy(&right.stdout);
    assert!(right.status.success() && said.contains(&format!("ok. {} passed", tests.len())), "{said}");
    println!("EXECUTIONS Host tests {}", tests.len());
    each_fails_in_a_process(Tool::Host, guard, false);
}
