//! How loom is run: `RUSTFLAGS="--cfg loom" cargo test -p slat --release --lib loom_tests`.
//!
//! The tests lie beside what they test, in `loom_tests.rs` of that room: the shipped code, on loom's atomics, thread
//! against thread, every execution that the memory model allows; where those are too many, and with three threads, every
//! one with so many preemptions as the test says. Each goes with mistakes that loom must find: a test that finds nothing is
//! no test. An ordering that is weakened, or left out, is weakened in the shipped code ([`crate::seeded`]).
//!
//! Every `ORDER(tag)` of the engine stands here, with the test that is about it first of all; `cargo xtask house` sees to
//! that, and that each has two sides.
//!
//! | tag | tests in | first of all |
//! |---|---|---|
//! | `grace` | `sync/readside` | `a_grace_period_outlasts_every_section_that_began_before` |
//! | `grace-end` | `sync/readside` | `a_grace_period_outlasts_every_section_that_began_before` |
//! | `asymmetric` | `sync/gate` | `an_exclusive_walk_waits_for_lockless_ones` |
//! | `rest` | `sync/readside` | `who_is_seen_at_rest_will_see_what_was_replaced` |
//! | `seat` | `sync/readside` | `a_seat_has_one_holder_at_a_time` |
//! | `seats` | `sync/readside` | `a_section_on_a_seat_that_was_added_is_outlasted` |
//! | `rmw` | `sync/readside` | `who_has_answered_will_see_what_was_replaced` |
//! | `begin` | `notify/active` | `a_fault_never_installs_what_the_host_has_taken_back` |
//! | `quiet` | `notify/active` | `n_answers_while_it_stands` |
//! | `follow` | `notify/edit` | `an_older_invalidation_that_unhooks_hides_no_newer_one` |
//! | `active` | `notify/active` | `an_invalidation_that_has_ended_is_not_taken_for_the_next` |
//! | `adopt` | `notify/edit` | `debts_are_adopted_until_they_are_paid` |
//! | `places` | `notify/active` | `a_fault_that_looks_at_all_places_sees_those_beyond_the_first` |
//! | `upgrade` | `notify/edit` | `an_upgrade_gives_no_permission_that_is_being_withdrawn` |
//! | `link` | `table/radix` | `who_finds_a_link_finds_a_filled_table` |
//! | `flush` | `tlb/shootdown` | `a_page_is_reused_only_when_no_vcpu_can_reach_it` |
//! | `flush-answer` | `tlb/shootdown` | `a_page_is_reused_only_when_no_vcpu_can_reach_it` |
//! | `flush-range` | `tlb/shootdown` | `a_range_is_never_taken_for_another` |
//! | `kick` | `tlb/shootdown` | `a_kick_brings_its_flush` |
//! | `stamp` | `slots/publish` | `a_confirmed_stamp_and_its_slots_are_of_one_moment` |
//! | `publish` | `slots/publish` | `a_confirmed_stamp_and_its_slots_are_of_one_moment` |
//! | `hint` | `slots/remembered` | `what_is_remembered_is_of_one_version` |
//! | `bitmap` | `dirty` | `a_permission_is_marked_or_taken` |
//! | `bitmap-all` | `dirty` | `a_permission_is_marked_or_taken_where_all_pages_are_dirty` |
//! | `keep` | `dirty` | `a_leaf_that_goes_is_told` |
//! | `ad-bits` | `dirty` | `what_is_stored_is_copied_or_told` |
//! | `ring` | `dirty/ring` | `a_writable_page_is_told_of_or_will_be` |
//! | `ring-room` | `dirty/ring` | `a_ring_that_goes_round_tells_each_page_once` |
//!
//! `rmw` is one-sided: it is a fence, and its callers say who pairs.
//!
//! Not shown, because another ordering does the same, and it says what is meant:
//! * `stamp`: the number under which slots were published, which the epoch carries to every fault that begins later.
//! * `active`: the Release of a slot's state, before the list by a Release; `adopt`: the same in `owes_again`, before edits.
//! * `kick`: the Release, after a fence. `seat`: the Acquire, before one.
//! * `ad-bits` has nothing to weaken: what is shown is that the flush is what counts.
//!
//! Not shown, because loom has no membarrier, tries the loads of a thread in their order, and stores to one place in the
//! order in which they come: the asymmetric half of `asymmetric`, where both sides are a fence here; and that the words of a
//! `hint`, and the range of a flush (`flush-range`), are written after they are claimed, by an Acquire. Of other pairs one
//! side is weakened, mostly the Release.
//!
//! loom takes a SeqCst access for an AcqRel one, so fences say what is meant here. Where an exchange fails at once, and
//! where a thread yields, it tries fewer orders than there are: tests load first, and wait as little as they can.

use crate::seeded::{self, Bug, Tool};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{println, thread};

/// Preemptions in which a mistake is looked for, at most.
const ENOUGH: usize = 3;

/// Runs `test` in every execution.
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    explored(None, test);
}

/// The same in those with so many preemptions at most.
pub(crate) fn explore_within(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    explored(Some(preemptions), test);
}

fn explored(preemptions: Option<usize>, test: impl Fn() + Send + Sync + 'static) {
    let executions = Arc::new(AtomicU64::new(0));
    counted(preemptions, test, &executions);
    let name = thread::current().name().unwrap_or_default().replace("::loom_tests", "");
    println!("EXECUTIONS Loom {name} {}", executions.load(Relaxed));
}

fn counted(preemptions: Option<usize>, test: impl Fn() + Send + Sync + 'static, executions: &Arc<AtomicU64>) {
    let executions = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        executions.fetch_add(1, Relaxed);
        test();
    });
}

/// Whether `test` fails in any, saying `what`.
pub(crate) fn finds(what: &str, test: impl Fn() + Send + Sync + 'static) -> bool {
    finds_after(what, test).is_some()
}

/// Demands that `test` fails, saying `what`, where the shipped code makes the mistake `bug`.
pub(crate) fn finds_seeded(bug: Bug, what: &str, test: impl Fn() + Send + Sync + 'static) {
    let executions = seeded::with(bug, || finds_after(what, test));
    let executions = executions.unwrap_or_else(|| panic!("not found: {}", bug.what()));
    if bug.tool() == Tool::Loom {
        seeded::found(bug, executions);
    }
}

/// After how many executions it fails. With few preemptions first: most mistakes need no more, and there are few executions.
fn finds_after(what: &str, test: impl Fn() + Send + Sync + 'static) -> Option<u64> {
    let (executions, test) = (Arc::new(AtomicU64::new(0)), Arc::new(test));
    (1..=ENOUGH).find_map(|preemptions| {
        let test = test.clone();
        let explored = || counted(Some(preemptions), move || test(), &executions);
        let panic = catch_unwind(AssertUnwindSafe(explored)).err()?;
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or(panic.downcast_ref::<&str>().copied())?;
        said.contains(what).then(|| executions.load(Relaxed))
    })
}

/// What loom says of two accesses that nothing keeps apart.
pub(crate) const RACE: &str = "Causality violation";
