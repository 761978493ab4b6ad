//! The primary MMU, seen from outside.
//!
//! | file | question |
//! |---|---|
//! | `notify` | are all MMUs told, with the right reason, before; and are frames freed after? |
//! | `reasons` | the same as a table: which reason is told for which change? |
//! | `many` | are many secondary MMUs all told, may they come and go, and what is left after exit? |
//! | `reap` | does the reaper never sleep, and lose nothing where it would have to? |
//! | `soft_dirty` | which pages were written since? |
//! | `huge` | do huge pages keep their contents when they are divided, moved, shared? |
//! | `memory` | files, permissions, placement; memory that runs out; memory that comes back |
//! | `vm` | does a VM on top see what this process sees? |
//! | `nested` | is a table of a hypervisor in the guest read, and marked, wherever its pages are? |
//! | `numa` | do pages move to where they are used, and what do others hear of it? |
//! | `pin` | does what a device uses stay where it is? |
//! | `model` | random operations against a model that is a map |
//! | `user_fault` | do faults left to a user's thread sleep, wake and find what they must? |
//! | `user_fault_race` | … with many vCPUs and handlers, beside a host that takes pages away? |
//! | `ksm` | are pages with the same contents merged, exactly counted, and without a visible change? |
//! | `ksm_race` | … beside threads that write to them meanwhile? |
//! | `swap` | does what is swapped out come back, byte for byte, and is no copy forgotten? |
//! | `swap_device` | … where devices fail, fill up, stop short, or give back something else? |
//! | `swap_kept` | … and not written twice, where they did not change? |
//! | `swap_files` | … where the pages are a file's? |
//! | `share` | do pages that forks share go and come back as one, exactly charged? |
//! | `swap_others` | do others neither wait for the device, nor pay, and is what was full asked again? |
//! | `swap_io` | are devices asked for much at once, in order of priority, ahead of need, and again when they failed? |
//! | `swap_race` | … beside threads that use and change the same pages meanwhile? |
//! | `lru` | are cold pages told from others, and evicted, and the limit kept, and nothing lost? |
//! | `lru_guest` | … with guests, whose accesses this process does not see? |
//! | `group` | are groups charged for what is theirs, and keep their limits, and leave other groups alone? |
//! | `lru_race` | … on many threads, beside a host that ages, evicts and moves? |
//! | `late` | is the last store of a vCPU that answers late kept, if another thread copies the page meanwhile? |
//! | `seeded` | under `--cfg seeded`: does each mistake in this crate make its test fail? |
//! | `beside` | do faults go on beside changes of the mappings elsewhere, and find the right thing in the same place? |
//! | `race` | a device that caches translations, beside a host that moves everything |

mod beside;
#[path = "../../../slat/src/edges.rs"]
mod edges;
mod fixture;
mod group;
mod huge;
mod ksm;
mod ksm_race;
mod late;
mod listener;
mod lru;
mod lru_gen;
mod lru_guest;
mod lru_race;
mod many;
mod memory;
mod model;
mod nested;
mod notify;
mod numa;
mod pin;
mod race;
mod reap;
mod reasons;
#[cfg(seeded)]
mod seeded;
mod share;
mod soft_dirty;
mod swap;
mod swap_device;
mod swap_files;
mod swap_io;
mod swap_kept;
mod swap_others;
mod swap_race;
#[path = "../../../slat/tests/engine/common/thorough.rs"]
mod thorough;
mod user_fault;
mod user_fault_race;
mod vm;
