//! Changes that an invalidation must have made, read from the tables when its edits are made.
//!
//! Faults on the range wait until the invalidation ends. So no leaf may be left in it, or, where only write permission is
//! withdrawn, no leaf that is writable or that remembers that the host allowed stores.

use super::seam::Checked;
use super::violation::Rule;
use crate::addr::{Gfn, Level};
use crate::host::Host;
use crate::notify::begun::{Begun, Extent, Scope, walk};
use crate::notify::host_range::walk_behind;
use crate::sync::idle::Idle;
use crate::sync::mode::Shared;
use crate::sync::readside::Seat;
use crate::table::format::{Access, Format, Kind};
use crate::walk::Steps;
use crate::why::Reason;
use alloc::format;

/// The edits of `scope` are made.
pub(crate) fn edited<F: Format, H: Host>(
    begun: &mut Begun<'_, F, H>,
    idle: &mut Idle,
    scope: &Scope<'_>,
    seat: Option<&Seat>,
) {
    begun.ghost.edited(scope);
    let (vm, why) = (begun.target.vm.get(), begun.target.why);
    if matches!(scope, Scope::Told(..)) || !Checked::oracle(&vm.host).is_on() {
        return;
    }
    let mut left = None;
    for space in &vm.spaces {
        match begun.target.range.part(scope) {
            Extent::Gfns(only, parts) if only == space.id => {
                for &gfns in parts {
                    let mut walk = walk::<F, H, Shared>(vm, space, idle, seat);
                    left = left.or(find_left(&mut walk.steps(gfns, Level::K4), why));
                }
            }
            Extent::Gfns(..) => {}
            Extent::Hvas(hvas, _) => {
                let mut walk = walk::<F, H, Shared>(vm, space, idle, seat);
                walk_behind(&mut walk, hvas, |steps, _| {
                    left = left.or(find_left(steps, why));
                    steps.goal()
                });
            }
        }
    }
    if let Some(gfn) = left {
        let seen = format!("{} left a leaf of gfn {:#x}", why.name(), gfn.0);
        Checked::oracle(&vm.host).step(|world| world.finds(Rule::LeafLeft, "Invalidation::apply", seen));
    }
}

/// Walks to the end of `steps`. Returns the frames of a leaf that the invalidation should have edited.
fn find_left<F: Format, H: Host>(steps: &mut Steps<'_, '_, F, H, Shared>, why: Reason) -> Option<Gfn> {
    let mut left = None;
    while let Some((_, step)) = steps.next() {
        let is_left = match step.at.word.kind::<F>(step.at.level) {
            Kind::Leaf | Kind::Withdrawn if super::state::keeps_frames(why) => {
                let leaf = F::decode(step.at.word);
                leaf.perms.allows(Access::Write) || leaf.host_writable
            }
            Kind::Leaf | Kind::Withdrawn => true,
            _ => false,
        };
        if is_left {
            left = left.or(Some(step.gfns.start));
        }
    }
    left
}
