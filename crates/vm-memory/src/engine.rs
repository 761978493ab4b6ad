//! The dirty log of the engine's VM as a vm-memory bitmap.

use slat::{Format, Gpa, Host, Hva, Slot, Span, Vm};
use slat_mm::PinnedPage;
use std::fmt;
use std::sync::Arc;
use vm_memory::bitmap::{Bitmap, BitmapSlice, WithBitmapSlice};

/// The engine's dirty log for one memslot. A device's write is marked in every logging slot that maps the page,
/// and is part of the VM's next harvest.
pub struct EngineLog<F: Format, H: Host> {
    vm: Arc<Vm<F, H>>,
    gpa: Gpa,
    hva: Hva,
}

/// [`EngineLog`] from an offset on.
pub struct EngineMarks<'a, F: Format, H: Host> {
    vm: &'a Vm<F, H>,
    gpa: Gpa,
    hva: Hva,
    /// Keeps the page of the slice in place.
    pin: Option<Arc<PinnedPage>>,
}

impl<F: Format, H: Host> EngineLog<F, H> {
    /// The log of `slot` in `vm`, which identifies pages by host address.
    pub fn new(vm: &Arc<Vm<F, H>>, slot: &Slot) -> Self {
        Self { vm: vm.clone(), gpa: slot.gpas().start, hva: slot.hva }
    }
}

impl<'a, F: Format, H: Host> EngineMarks<'a, F, H> {
    /// Marks from `gpa` on; `pin` holds its page.
    pub(crate) fn pinned(vm: &'a Vm<F, H>, gpa: Gpa, hva: Hva, pin: PinnedPage) -> Self {
        Self { vm, gpa, hva, pin: Some(Arc::new(pin)) }
    }
}

impl<F: Format, H: Host> fmt::Debug for EngineLog<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineLog").field("gpa", &self.gpa).field("hva", &self.hva).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> fmt::Debug for EngineMarks<'_, F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineMarks").field("gpa", &self.gpa).field("hva", &self.hva).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> Clone for EngineMarks<'_, F, H> {
    fn clone(&self) -> Self {
        Self { vm: self.vm, gpa: self.gpa, hva: self.hva, pin: self.pin.clone() }
    }
}

impl<'a, F: Format, H: Host + 'static> WithBitmapSlice<'a> for EngineLog<F, H> {
    type S = EngineMarks<'a, F, H>;
}

impl<F: Format, H: Host + 'static> Bitmap for EngineLog<F, H> {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.slice_at(offset).mark_dirty(0, len);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.slice_at(offset).dirty_at(0)
    }

    fn slice_at(&self, offset: usize) -> EngineMarks<'_, F, H> {
        EngineMarks { vm: &self.vm, gpa: self.gpa, hva: self.hva, pin: None }.slice_at(offset)
    }
}

impl<F: Format, H: Host + 'static> WithBitmapSlice<'_> for EngineMarks<'_, F, H> {
    type S = Self;
}

impl<F: Format, H: Host + 'static> BitmapSlice for EngineMarks<'_, F, H> {}

impl<F: Format, H: Host + 'static> Bitmap for EngineMarks<'_, F, H> {
    fn mark_dirty(&self, offset: usize, len: usize) {
        if len > 0 {
            self.vm.mark_dirty(Span::sized(self.hva + offset as u64, len as u64));
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.vm.memory().is_dirty(Gpa(self.gpa.0 + offset as u64).gfn())
    }

    fn slice_at(&self, offset: usize) -> Self {
        Self { gpa: Gpa(self.gpa.0 + offset as u64), hva: self.hva + offset as u64, ..self.clone() }
    }
}
