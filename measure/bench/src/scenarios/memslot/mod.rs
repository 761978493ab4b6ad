//! A memslot moves while vCPUs fault and use it: the scalable memslots series.
//!
//! ```text
//! area     512 MiB, cut into 10, 509 or 32,764 memslots:  │ … │ beside │ last │ ← where the two move to, and back from →
//! vCPUs    of four pages that one uses: the next one of the area, where it faults; that one twice more; one of the last slot
//! mover    last slot away, the one beside it away, last slot back, the one beside it back; and again
//! ```
//! While the last slot is away guests find no memory there: exits, which are counted. After each move the mover rests a
//! little, so that guests meet what has changed, fault, and cache it again.
//!
//! | file | idea |
//! |---|---|
//! | [`slot_design`] | the operations of a design of memslots, and slat's design; the area and its slots |
//! | [`array`](mod@array) | the design before the series: one sorted array, copied whole for every change, on the same engine |
//! | `slot_guests` | what guests do, and where they meet the host's thread |
//! | [`guest_tests`] | the tests of KVM's `memslot_perf_test`, which `slat bench memslot-perf` runs |
//! | [`moving_slot`] | a machine, its mover, what must be true afterwards; the series' figures beside these |
//!
//! **Simulated of a search**: loads of the words of tree nodes that it looks at, and the transfers of their lines between CPUs.
//! So is the copying of nodes, and of the array with its index. **What is not**: caches have no capacity, and entries that move
//! inside a node cost nothing. `slat bench memslot-perf` measures all of it.

pub mod array;
#[cfg(test)]
mod design_tests;
pub mod guest_tests;
#[cfg(not(virtual_time))]
mod kvm_requests;
#[cfg(not(virtual_time))]
mod memslot_flags;
#[cfg(not(virtual_time))]
mod micro;
pub mod moving_slot;
pub mod slot_design;
mod slot_guests;

use crate::scenarios::prelude::*;
use moving_slot::run_once;

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "memslot-perf",
    asks: "Memslots move, come and lose their pages while a guest runs (the scalable memslots series)",
    series: PatchSeries::ScalableMemslots,
    simulated: Simulated {
        published: moving_slot::against,
        takes: ["15 s", "40 MiB"],
        example: "-v 1,16,416",
        unused: &[
            NO_AGER,
            (&["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines"], ALL_THERE),
        ],
        ..Simulated::of(run_once, MMU_LOCKS)
    },
    #[cfg(not(virtual_time))]
    measured: memslot_flags::MEASURED,
};
