//! A held frame of a VM of any format, as a trait object.

use crate::c_host::CHost;
use alloc::boxed::Box;
use core::ptr::NonNull;
use slat::{Format, HeldForHardware, HeldUse, HoldError, Idle, InGuest, Pfn};

/// A held frame of a VM of any format.
pub(crate) trait AnyHold {
    /// Begins a use. `None`: refresh it first.
    fn begin(&mut self, idle: &mut Idle, writes: bool) -> Option<Pfn>;
    fn end(&mut self);
    fn refresh(&mut self, idle: &mut Idle) -> Result<(), HoldError>;
    fn current(&self, guest: &InGuest<'static>) -> Option<Pfn>;
    fn mark_dirty(&self);
}

enum How<'vm, F: Format> {
    Plain(slat::Held<'vm, F, CHost>),
    ForHardware(HeldForHardware<'vm, F, CHost>),
}

/// A held frame of a VM of format `F`.
pub(crate) struct Holding<'vm, F: Format> {
    /// The use under way, which borrows the held frame.
    used: Option<HeldUse<'vm, F, CHost>>,
    /// Made by `Box::leak`.
    how: NonNull<How<'vm, F>>,
}

impl<'vm, F: Format> Holding<'vm, F> {
    pub(crate) fn new(held: slat::Held<'vm, F, CHost>) -> Self {
        Self { used: None, how: NonNull::from(Box::leak(Box::new(How::Plain(held)))) }
    }

    pub(crate) fn for_hardware(held: HeldForHardware<'vm, F, CHost>) -> Self {
        Self { used: None, how: NonNull::from(Box::leak(Box::new(How::ForHardware(held)))) }
    }

    /// Returns the held frame after the end of any use.
    fn held(&mut self) -> &'vm mut How<'vm, F> {
        self.used = None;
        // SAFETY: made by `Box::leak`, and freed when `self` drops; nothing borrows it, and what is made of this is dropped
        // before the next call: by `used`, which is ended above.
        unsafe { self.how.as_mut() }
    }
}

impl<'vm, F: Format> AnyHold for Holding<'vm, F> {
    fn begin(&mut self, idle: &mut Idle, writes: bool) -> Option<Pfn> {
        let held = self.held();
        // SAFETY: the token is in use until `end`, says its state.
        let idle: &'vm mut Idle = unsafe { &mut *core::ptr::from_mut(idle) };
        self.used = match (held, writes) {
            (How::Plain(held), true) => held.write(idle),
            (How::Plain(held), false) => held.read(idle),
            (How::ForHardware(held), true) => held.write(idle),
            (How::ForHardware(held), false) => held.read(idle),
        };
        self.used.as_ref().map(HeldUse::pfn)
    }

    fn end(&mut self) {
        self.used = None;
    }

    fn refresh(&mut self, idle: &mut Idle) -> Result<(), HoldError> {
        match self.held() {
            How::Plain(held) => held.refresh(idle),
            How::ForHardware(held) => held.refresh(idle),
        }
    }

    fn current(&self, guest: &InGuest<'static>) -> Option<Pfn> {
        // SAFETY: as in `held`; a use only looks, too.
        match unsafe { self.how.as_ref() } {
            How::Plain(_) => None,
            How::ForHardware(held) => held.current(guest),
        }
    }

    fn mark_dirty(&self) {
        // SAFETY: as above.
        match unsafe { self.how.as_ref() } {
            How::Plain(held) => held.mark_dirty(),
            How::ForHardware(held) => held.mark_dirty(),
        }
    }
}

impl<F: Format> Drop for Holding<'_, F> {
    fn drop(&mut self) {
        self.used = None;
        // SAFETY: made by `Box::leak`, and nothing borrows it any more.
        drop(unsafe { Box::from_raw(self.how.as_ptr()) });
    }
}
