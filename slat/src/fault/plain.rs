//! Which frames of a memslot the quick path may map: those where no more is to be asked than a vCPU remembers.

use crate::addr::{Gfn, Level, Span};
use crate::host::Host;
use crate::slots::Slot;
use crate::space::Space;
use crate::table::format::Format;
use crate::vm::Vm;
use slat_slots::MemoryType;

/// The frames of `slot` where nothing but the host, and a watch, decides what the guest may do, and no fault has to log.
pub(super) fn all<F: Format, H: Host>(vm: &Vm<F, H>, slot: &Slot) -> Span<Gfn> {
    let is_ordinary = slot.execute && slot.memory == MemoryType::WriteBack || seeded!(SlotTakenForPlain);
    let is_plain = is_ordinary && !slot.readonly && (!slot.log_dirty || vm.logs_by_bits());
    if is_plain { slot.gfns } else { Span::sized(slot.gfns.start, 0) }
}

/// Those near `gfn`: all of them or, where any frame of the VM is watched, those of one leaf table that has no such frame. And
/// whether some are left out for those that are watched.
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
    let plain = if space.watched.is_empty() || seeded!(WatchForgotten) { all } else { narrowed };
    (plain, plain != all)
}
