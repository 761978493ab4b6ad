//! The promises to safe code, each with the program that would break it: extreme arguments, leaked guards, panicking
//! hosts and TLBs, vCPUs that come back under another number, on another CPU, in another VM.
//!
//! | file | promise |
//! |---|---|
//! | `memo.rs` | a vCPU never uses its memo of the last fault longer than it is valid |
//! | `maps.rs` | `Map` and `Format`: every table that a walk reaches belongs to the map |
//! | `answers.rs` | answers of a host and arguments of a caller are checked once, with one error, before anything changes |
//! | `events.rs` | invalidations end, and pay their debts, however their owner ends them |
//! | `sections.rs` | what is read under a section is not used after it |
//! | `limits.rs` | many of everything at once: it grows, or is refused |
//! | `vcpus.rs` | a vCPU's guards may leak or unwind; its number and its CPU may change |
//!
//! Each promise in detail. A test without a path is in this folder; `compile_fail` is code in the documentation of the
//! named item that must not compile; a mistake is a record in `proof/mistakes/`.
//!
//! | promise | guarded by |
//! |---|---|
//! | a map follows only links that it made: an entry takes leaves and absent words, and panics for others | `maps::a_place_refuses_a_word_that_links_a_table`, `maps::a_leaf_without_permissions_is_refused_where_the_format_takes_it_for_a_link`, mistake `link-taken` |
//! | a split links a page of the entry's own map | `maps::a_split_links_a_table_of_its_own_map` |
//! | a page number beyond the format gets `None` or an error | `maps::a_page_beyond_the_format_has_no_entry` |
//! | safe code cannot write a format that breaks its obligations | `compile_fail` (E0200) at `Format` |
//! | a format with wrong constants has no VM and no map | `compile_fail` (E0080) at `Format`, for `Ept<1>` and `Arm64<52>` |
//! | a foreign crate's format works by an `unsafe impl` | `maps::a_format_of_another_crate_works_by_an_unsafe_impl` |
//! | only the engine writes entries of a VM's tables; hardware models do it by `unsafe` methods | `Entry::touch_raw`, `cas_raw`, `store_raw` |
//! | a map uses its memory to the last page, and loses none when memory runs out | `maps::a_map_out_of_memory_has_used_every_page_and_loses_none`, mistake `spare-lost` |
//! | a host cannot name a level that does not exist | `compile_fail` (E0603) at `Level`; `answers::a_page_has_a_level_that_exists_or_cannot_be_said`, `answers::a_page_of_any_level_is_mapped_by_leaves_that_exist` |
//! | if the host reports a changed large page, each small leaf maps its own frame | `answers::each_small_leaf_of_a_large_page_that_is_told_maps_its_own_frame`, mistake `told-first-frame` |
//! | an inverted span, or one beyond the format, is empty | `answers::inverted_spans_and_frames_beyond_the_format_are_empty`, `answers::inverted_host_spans_are_empty` |
//! | a vCPU maps no page of a deleted memslot, whatever its memo has | `memo::a_slot_that_is_gone_is_not_mapped_by_the_stamp_of_its_neighbour`, mistake `slot-changed-stamp-kept` (model, shuttle, exploration) |
//! | a host that panics inside a fault leaves no state that a later fault uses | `memo::a_host_that_panics_beside_an_invalidation_leaves_no_stamp_for_its_frames`, `vcpus::a_fault_after_a_prefault_that_panicked_is_the_guests` |
//! | after a leaked guard of the guest, or a TLB that panics on entry, the vCPU's next operation is outside the guest | `vcpus::slots_outlive_a_reader_whose_guard_was_leaked` and its neighbours, mistake `leaked-guard-believed` |
//! | a reused vCPU number, and a vCPU that changes its CPU, use no old translation | `vcpus::a_number_taken_again_forgets_what_its_last_holder_cached`, `vcpus::a_vcpu_that_comes_back_to_a_processor_forgets_what_it_left_there`, mistake `caches-believed` |
//! | a hint answers only for the slots that it is asked about, in any VM | `vcpus::a_hint_answers_for_the_slots_that_it_is_asked_about` |
//! | a leaked flush debt is paid when its invalidation ends, which frees its tables | `events::a_forgotten_debt_is_flushed_when_its_invalidation_ends`, mistake `leaked-unpaid` (model, history) |
//! | a leaked invalidation never ends; others that meet its holes pay its flush | `events::an_invalidation_that_is_leaked_leaves_its_flush_to_the_next_one` |
//! | a kick that panics loses no flush | `events::a_kick_that_panics_loses_no_flush`, mistake `kicks-cut-short` |
//! | 4,032 invalidations may be open before the next one waits, also for a transaction inside one | `events::a_thread_may_hold_any_number_of_invalidations`, `events::a_transaction_inside_an_invalidation_waits_for_no_other` |
//! | an event that may not block completes, or returns `Again` | `events::an_event_that_may_not_block_waits_for_no_seat`, mistake `seat-not-kept` |
//! | a snapshot of slots shows its version until it is dropped, also without its owner | `crates/slots/src/shared/tests.rs`, mistake `snapshot-unasked` |
//! | a walk of a guest hypervisor's tables is bounded and ends in a typed answer | `nested/tests/memory.rs`, `nested/tests/random.rs` |
//! | an invalidation that keeps its VM may end on any thread, and the VM is dropped after it | `any_thread_ends_an_invalidation_that_keeps_its_vm`; Miri: `last_owners` |
//! | an owned vCPU keeps its VM alive, and lends nothing that outlives it | `compile_fail` at `OwnedVcpu` |
//! | marks of any size hold a section for 512 words of the log | `events::a_transaction_does_not_wait_for_all_pages_that_a_device_marks`, mistakes `marked-at-once`, `given-back-at-once` |

mod common;

mod answers;
mod events;
mod limits;
mod maps;
mod memo;
mod sections;
mod vcpus;
