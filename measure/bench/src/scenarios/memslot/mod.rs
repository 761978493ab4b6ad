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
//! | `layout` | the area and its slots |
//! | [`design`] | what a design of memslots has to offer, and slat's |
//! | [`array`](mod@array) | the design before the series: one sorted array, copied whole for every change, on the same engine |
//! | `guests` | what guests do, and where they meet the host's thread |
//! | [`scenario`] | those of KVM's `memslot_perf_test`, which `slat bench memslot-perf` runs |
//! | `ground` | a machine, its mover, what must be true afterwards |
//! | `published` | the series' figures beside these |
//!
//! **What is simulated of a search**: loads of the words of tree nodes that it looks at, and the transfers of their lines between CPUs.
//! So is the copying of nodes, and of the array with its index. **What is not**: caches have no capacity, and entries that move
//! inside a node cost nothing. `slat bench memslot-perf` measures all of it.

#[cfg(not(virtual_time))]
mod kvm;
#[cfg(not(virtual_time))]
mod memslot_flags;
#[cfg(not(virtual_time))]
mod micro;

pub mod array;
pub mod design;
mod ground;
pub mod guest_tests;
mod guests;
mod layout;
mod scalable_memslots_figures;
#[cfg(test)]
mod tests;

use crate::parts::point::{Figure, Point};
use crate::parts::setting::MMU_LOCKS;
use crate::parts::setting::Setting;
use crate::scenario::{ALL_THERE, NO_AGER};
use crate::scenario::{Scenario, Simulated};
use ground::Ground;
pub use layout::Layout;
use slat_series::PatchSeries;

/// Slots in use, as the series has them. The figures are of the most of them, unless they say otherwise.
const SLOTS: [u32; 3] = [32_764, 509, 10];

/// Figures that are set against the series'.
const MOVE: &str = "ns per move";
const MOVE_FEW: &str = "ns per move, 10 slots";

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "memslot-perf",
    asks: "Memslots move, come and lose their pages while a guest runs (the scalable memslots series)",
    series: PatchSeries::ScalableMemslots,
    simulated: Simulated {
        published: scalable_memslots_figures::against,
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

/// Runs the scenario once.
fn run_once(setting: &Setting<'_>) -> Result<Point, String> {
    let run = |slots| Ground::new(setting, slots, false)?.run(setting);
    let (most, some, few) = (run(SLOTS[0])?, run(SLOTS[1])?, run(SLOTS[2])?);
    let per_move = |count: u64| count as f64 / most.moves as f64;
    let figures = vec![
        Figure::new(MOVE, most.moved_ns[0], "ns"),
        Figure::new("ns per move of the slot beside", most.moved_ns[1], "ns"),
        Figure::new("ns per move, 509 slots", some.moved_ns[0], "ns"),
        Figure::new(MOVE_FEW, few.moved_ns[0], "ns"),
        Figure::new("ns per access", most.access_ns, "ns"),
        Figure::new("kicks per move", per_move(most.stats.kicks), "kicks"),
        Figure::new("retries per move", per_move(most.retries), "retries"),
        Figure::new("exits for want of memory per move", per_move(most.seen.absent), "exits"),
    ];
    Ok(Point {
        operations: most.moves,
        flushes: most.flushes,
        checks: [most.checks, some.checks, few.checks].concat(),
        ..Point::of(setting, figures, most.stats)
    })
}
