//! Tests of the primary MMU through its public interface.
//!
//! | file | question |
//! |---|---|
//! | `notify` | are all MMUs told before a change, with the right reason, and are frames freed after it? |
//! | `reasons` | which reason is told for which change? (a table) |
//! | `many_mmus` | are many secondary MMUs all told, may they come and go, and what is left after exit? |
//! | `reap` | does the reaper never sleep, and skip what would make it sleep? |
//! | `soft_dirty` | which pages were written since the last clear? |
//! | `soft_dirty_copy` | does a copy that is kept up to date by that stay equal? |
//! | `huge` | do huge pages keep their contents when they are divided, moved or shared? |
//! | `memory` | files, permissions, placement; memory that runs out; memory that comes back |
//! | `vm` | does a VM on top see what this process sees? |
//! | `nested` | is the table of a hypervisor in the guest read and marked wherever its pages are? |
//! | `numa` | do pages move to where they are used, and which notifications does that send? |
//! | `pin` | does the memory that a device uses stay in place? |
//! | `model` | random operations against a model that is a map |
//! | `unwound` | is the address space whole after a secondary MMU has panicked? |
//! | `user_fault` | do faults that a user's thread resolves sleep and wake, and find the right page? |
//! | `user_fault_race` | … with many vCPUs and handlers, beside a host that takes pages away? |
//! | `ksm` | are pages with the same contents merged, exactly counted, and without a visible change? |
//! | `ksm_race` | … beside threads that write to them meanwhile? |
//! | `swap` | do swapped pages come back byte for byte, and is no copy leaked? |
//! | `swap_device` | … where devices fail, fill up, write only a part, or return something else? |
//! | `swap_kept` | … and without a second write of an unchanged page? |
//! | `swap_files` | … where the pages are a file's? |
//! | `share` | do pages that forks share leave and return as one, exactly charged? |
//! | `swap_others` | do other processes neither wait nor pay for the device, and is a full device asked again? |
//! | `swap_io` | do devices get many requests at once, by priority, ahead of need, and again after a failure? |
//! | `swap_race` | … beside threads that use and change the same pages meanwhile? |
//! | `lru` | are cold pages found and evicted, is the limit kept, and is nothing lost? |
//! | `lru_guest` | … with guests, whose accesses this process does not see? |
//! | `group` | do groups pay for their own pages, keep their limits, and leave other groups alone? |
//! | `lru_race` | … on many threads, beside a host that ages, evicts and moves? |
//! | `late_answer` | does a vCPU that answers late keep its last store, if another thread copies the page meanwhile? |
//! | `during_change` | do faults elsewhere go on during a change, and do faults in the same place find the right page? |
//! | `race` | a device that caches translations, beside a host that moves everything |

mod during_change;
mod fixture;
mod group;
mod huge;
mod ksm;
mod ksm_race;
mod late_answer;
mod listener;
mod lru;
mod lru_gen;
mod lru_guest;
mod lru_race;
mod many_mmus;
mod memory;
mod model;
#[path = "../../../../slat/src/near_edges.rs"]
mod near_edges;
mod nested;
mod notify;
mod numa;
mod pin;
mod race;
mod reap;
mod reasons;
mod share;
mod soft_dirty;
mod soft_dirty_copy;
mod swap;
mod swap_device;
mod swap_files;
mod swap_io;
mod swap_kept;
mod swap_others;
mod swap_race;
#[path = "../../../../slat/tests/engine/common/thorough.rs"]
mod thorough;
mod unwound;
mod user_fault;
mod user_fault_race;
mod vm;
