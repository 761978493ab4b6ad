//! Mistakes made in this crate ([`slat::seeded`]): each must make the test fail that guards the step. Under `--cfg seeded`
//! only: `cargo xtask verify --only load`.

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
    (Bug::ShareOverwritten, "share::a_page_that_a_fork_uses_stays_with_it_and_is_written_by_it_alone"),
    (Bug::CacheUncounted, "share::a_page_that_a_fork_uses_stays_with_it_and_is_written_by_it_alone"),
    (Bug::UnmappedUnsaid, "share::a_frame_that_only_the_cache_has_goes_to_who_needs_room"),
    (Bug::LeavingTwice, "share::a_share_on_its_way_is_taken_by_no_other_thread"),
    (Bug::VersionNotOutlasted, "beside::nothing_is_left_where_munmap_has_been"),
    (Bug::MappingBeforeLock, "beside::nothing_is_left_where_munmap_has_been"),
    (Bug::RangeNotKept, "beside::what_is_mapped_anew_is_not_emptied"),
    (Bug::ForkUnshown, "beside::a_fork_is_of_one_moment"),
    (Bug::MoveShownEarly, "beside::a_range_that_moves_is_found_whole_or_not_at_all"),
    (Bug::ShareUnlooked, "beside::a_share_is_not_broken_where_something_else_is_mapped_by_now"),
    (Bug::MergeUnlooked, "beside::what_may_be_merged_no_more_is_not_merged"),
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
