//! Walking what memslots map of a host range: part by part, with rests.

use crate::addr::{Gfn, Hva, Level, Span};
use crate::host::Host;
use crate::slots::publish::Behind;
use crate::sync::mode::Mode;
use crate::table::format::Format;
use crate::table::steps::Steps;
use crate::table::walk::Walk;

/// Calls `visit` with steps along each range of frames that is backed by a part of `hvas`; it returns where it ended, and
/// goes on from there where the walk had to rest.
pub(super) fn along<F: Format, H: Host, M: Mode>(
    walk: &mut Walk<'_, F, H, M>,
    hvas: Span<Hva>,
    mut visit: impl FnMut(Steps<'_, '_, F, H, M>, Span<Gfn>) -> Gfn,
) {
    let mut left = Behind::new(hvas);
    let slots = &walk.space.memslots;
    while let Some(part) = slots.behind(&walk.vm.reads, walk.seat, &left) {
        let steps = walk.steps(part.gfns, Level::K4).up_to_a_rest();
        let goal = visit(steps, part.gfns);
        left = left.after(&part, goal);
        // Not before the slots are looked up again: frames that are other pages by then are not ours.
        if walk.is_rest_due() {
            walk.rest();
        }
    }
}
