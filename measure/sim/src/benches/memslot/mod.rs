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

pub mod array;
pub mod design;
mod ground;
mod guests;
mod layout;
mod published;
pub mod scenario;
#[cfg(test)]
mod tests;

use super::{ALL_THERE, About, Against, Bench, Figure, NO_AGER, Point, Policy, Setting};
use ground::Ground;
pub use layout::Layout;
use slat_series::PatchSeries;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct MemslotPerf;

/// Slots in use, as the series has them. The figures are of the most of them, unless they say otherwise.
const SLOTS: [u32; 3] = [32_764, 509, 10];

/// Figures that are set against the series'.
const MOVE: &str = "ns per move";
const MOVE_FEW: &str = "ns per move, 10 slots";

/// Its row of the registry.
const ABOUT: About = About {
    asks: "A memslot moves while vCPUs fault and use it (the scalable memslots series)",
    takes: ["15 s", "40 MiB"],
    example: "-v 1,16,416",
    unused: &[
        NO_AGER,
        (&["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines"], ALL_THERE),
    ],
    ..About::of(
        "memslot-perf",
        PatchSeries::ScalableMemslots,
        &[Policy::Exclusive, Policy::ReadWrite, Policy::None],
    )
};

impl Bench for MemslotPerf {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
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

    fn against_series(&self, points: &[Point]) -> Vec<Against> {
        published::against(points)
    }
}
