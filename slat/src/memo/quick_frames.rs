//! The frames of a memslot that the quick path may map, because the vCPU's memo suffices for them.

use crate::space::Space;
use crate::{Format, Gfn, Host, Level, Slot, Span, Vm};
use slat_slots::MemoryType;

/// The frames of `slot` whose permissions depend only on the host and on watches, and whose faults have nothing to log.
pub(super) fn all<F: Format, H: Host>(vm: &Vm<F, H>, slot: &Slot) -> Span<Gfn> {
    let is_ordinary = slot.execute && slot.memory == MemoryType::WriteBack;
    let is_plain = is_ordinary && !slot.readonly && (!slot.log_dirty || vm.logs_by_bits());
    if is_plain { slot.gfns } else { Span::sized(slot.gfns.start, 0) }
}

/// The plain frames near `gfn`: all, or, if any frame of the VM is watched, those of one leaf table that has no watched
/// frame. Also returns whether any are left out because of watched frames.
#[cold]
pub(super) fn near<F: Format, H: Host>(
    vm: &Vm<F, H>,
    space: &Space<F>,
    slot: &Slot,
    gfn: Gfn,
) -> (Span<Gfn>, bool) {
    let all = all(vm, slot);
    let table = Span::sized(gfn.base(Level::M2), Level::M2.pages()).clamp(&all);
    let has_any = space.watched.any(table);
    let narrowed = if has_any { Span::sized(table.start, 0) } else { table };
    let plain = if space.watched.is_empty() { all } else { narrowed };
    (plain, plain != all)
}
