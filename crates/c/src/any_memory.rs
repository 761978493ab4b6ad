//! The memory of a VM of any format, as trait objects.

use crate::slat_status;
use crate::slat_status::SLAT_ENOENT;
use alloc::boxed::Box;
use slat::{DirtyError, Format, Gfn, GuestSpace, Host, Idle, Level, NoMemory, SlotId, SpaceId, Span, Vm};

/// An address space of any format.
pub(crate) trait AnySpace {
    fn dirty_bits(&self, idle: &mut Idle, id: SlotId, into: &mut [u64]) -> Result<u64, DirtyError>;
    fn clear_dirty(&self, idle: &mut Idle, of: ClearedPages<'_>) -> Result<u64, DirtyError>;
    fn mark_dirty_bits(&self, id: SlotId, first: u64, bits: &[u64]) -> Result<(), DirtyError>;
    fn write_protect(&self, idle: &mut Idle, gfns: Span<Gfn>);
    fn split(&self, idle: &mut Idle, gfns: Span<Gfn>, to: Level) -> Result<u64, NoMemory>;
    fn recover(&self, idle: &mut Idle, gfns: Span<Gfn>) -> u64;
}

/// The pages of a memslot that a call cleans: those set in `bits`, of `pages` pages from `first` on.
pub(crate) struct ClearedPages<'b> {
    pub(crate) id: SlotId,
    pub(crate) first: u64,
    pub(crate) pages: u64,
    pub(crate) bits: &'b [u64],
}

impl<F: Format, H: Host> AnySpace for GuestSpace<'_, F, H> {
    fn dirty_bits(&self, idle: &mut Idle, id: SlotId, into: &mut [u64]) -> Result<u64, DirtyError> {
        self.dirty_bits(idle, id, into)
    }

    fn clear_dirty(&self, idle: &mut Idle, of: ClearedPages<'_>) -> Result<u64, DirtyError> {
        self.clear_dirty(idle, of.id, of.first, of.pages, of.bits)
    }

    fn mark_dirty_bits(&self, id: SlotId, first: u64, bits: &[u64]) -> Result<(), DirtyError> {
        self.mark_dirty_bits(id, first, bits)
    }

    fn write_protect(&self, idle: &mut Idle, gfns: Span<Gfn>) {
        self.write_protect(idle, gfns).settle();
    }

    fn split(&self, idle: &mut Idle, gfns: Span<Gfn>, to: Level) -> Result<u64, NoMemory> {
        self.split(idle, gfns, to)
    }

    fn recover(&self, idle: &mut Idle, gfns: Span<Gfn>) -> u64 {
        self.recover(idle, gfns)
    }
}

/// The functions of a VM of any format on its memory.
pub(crate) trait AnyMemory {
    fn space(&self, id: SpaceId) -> Result<Box<dyn AnySpace + '_>, slat_status>;
    fn zap_all(&self, idle: &mut Idle) -> Result<(), NoMemory>;
    fn shrink(&self, idle: &mut Idle) -> u64;
}

impl<F: Format, H: Host> AnyMemory for Vm<F, H> {
    fn space(&self, id: SpaceId) -> Result<Box<dyn AnySpace + '_>, slat_status> {
        Ok(Box::new(self.space(id).ok_or(SLAT_ENOENT)?))
    }

    fn zap_all(&self, idle: &mut Idle) -> Result<(), NoMemory> {
        self.zap_all(idle)
    }

    fn shrink(&self, idle: &mut Idle) -> u64 {
        self.shrink(idle)
    }
}
