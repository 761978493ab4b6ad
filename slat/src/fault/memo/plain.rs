//! Which frames of the memo's slot the quick path may map: those where no more is to be asked than [`Memo`] remembers.

use super::{Memo, Near, Quiet};
use crate::addr::{Gfn, Level, Span};
use crate::host::Host;
use crate::slots::Slot;
use crate::space::Space;
use crate::table::format::Format;
use crate::vm::Vm;
use slat_slots::MemoryType;

impl Memo {
    /// Whether the quick path may map `gfn`, if anything is confirmed of it.
    #[inline(always)]
    pub(in crate::fault) fn has(&self, gfn: Gfn) -> bool {
        self.plain.contains(gfn)
    }

    /// The same for a fault that knows what kind of memory the guest means.
    pub(in crate::fault) fn has_as(&self, gfn: Gfn, private: bool) -> bool {
        self.has(gfn) && self.slot.is_private() == private
    }

    /// Whether [`look_around`](Self::look_around) may find more frames for the quick path, where none is watched any more.
    #[inline(always)]
    pub(in crate::fault) fn is_narrow(&self) -> bool {
        self.narrow
    }

    /// Where frames are watched, the quick path is for one leaf table that has no such frame: that of `gfn`, if it can be.
    #[cold]
    pub(in crate::fault) fn look_around<F: Format, H: Host>(
        &mut self,
        vm: &Vm<F, H>,
        space: &Space<F>,
        gfn: Gfn,
    ) {
        let all = plain(vm, &self.slot);
        let table = Span::sized(gfn.base(Level::M2), Level::M2.pages()).clamp(&all);
        let has_any = space.watched.any(table);
        let narrowed = if has_any { Span::sized(table.start, 0) } else { table };
        let plain = if space.watched.is_empty() || seeded!(WatchForgotten) { all } else { narrowed };
        if plain != self.plain {
            (self.plain, self.near, self.quiet) = (plain, Near::NOTHING, Quiet::NOTHING);
        }
        self.narrow = plain != all;
    }
}

/// The frames of `slot` where nothing but the host, and a watch, decides what the guest may do, and no fault has to log.
pub(super) fn plain<F: Format, H: Host>(vm: &Vm<F, H>, slot: &Slot) -> Span<Gfn> {
    let is_ordinary = slot.execute && slot.memory == MemoryType::WriteBack || seeded!(SlotTakenForPlain);
    let is_plain = is_ordinary && !slot.readonly && (!slot.log_dirty || vm.logs_by_bits());
    if is_plain { slot.gfns } else { Span::sized(slot.gfns.start, 0) }
}
