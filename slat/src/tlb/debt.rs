//! `FlushDebt`: the flush that an edit owes, as a value that the compiler does not let you ignore.
//!
//! Walks take things away and collect what they owe. The debt is settled once, after the walk, by at most one
//! shootdown. Only then may the host reuse the pages, and only then does the grace period of the unhooked table pages
//! begin.
//!
//! Dropping a debt pays it; [`FlushDebt::settle`] makes the place visible. A debt that is leaked (`core::mem::forget`)
//! is not paid at that moment. An invalidation keeps its own record of its debt, so it pays a leaked debt with its next
//! one, or when it ends. The debt of a write protection is lost. The next write protection of the same pages owes their
//! flush again, because a clear W never proves that no TLB writes. Code that does not use a debt at all fails to
//! compile if `unused_must_use` is denied:
//!
//! ```compile_fail
//! #![deny(unused_must_use)]
//! # use slat::*;
//! fn forget<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//!     vm.memory().write_protect(idle, Span::new(Gfn(0), Gfn(1)));
//! }
//! ```

use super::cause::Cause;
use crate::addr::{Gfn, Level, Span};
use crate::table::memory::Node;
use crate::table::retire::Unlinked;
use core::marker::PhantomData;

/// Flag in the count of edits: frames were taken from their holders, and uses that have begun must end.
const USES: u64 = 1 << 63;
/// Flag in the count of edits: hardware has such a frame, and releases it when its vCPU leaves the guest. A broadcast
/// is not enough.
const KICKS: u64 = 1 << 62;
/// Flag in the count of edits: everything under L2's tag must be forgotten, for all frames.
const NESTED: u64 = 1 << 61;

/// The debt of one walk, collected edit by edit.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// The hull of the frames that lost something.
    pub(crate) gfns: Span<Gfn>,
    /// The count, with [`USES`], [`KICKS`] and [`NESTED`]. The flags cost nothing if nothing is held or nested.
    edits: u64,
    pub(crate) pages: u64,
    pub(crate) unlinked: Unlinked,
}

impl Owed {
    /// Adds an edit that took something away from `gfns`.
    pub(crate) fn owe(&mut self, gfns: Span<Gfn>) {
        self.gfns = self.gfns.hull(&gfns);
        self.edits += 1;
        self.pages += gfns.len();
    }

    /// Adds `pages` edits that each took a page away from `gfns`.
    pub(crate) fn owe_pages(&mut self, gfns: Span<Gfn>, pages: u64) {
        self.gfns = self.gfns.hull(&gfns);
        self.edits += pages;
        self.pages += pages;
    }

    /// Adds frames taken from their holders. `hardware` is the hull of those that hardware uses.
    #[cold]
    pub(crate) fn owe_held(&mut self, hardware: Option<Span<Gfn>>) {
        self.edits |= USES;
        if let Some(gfns) = hardware {
            self.edits |= KICKS;
            self.owe(gfns);
        }
    }

    /// Adds an edit of a shadow. L1's frame numbers mean nothing under L2's tag, so everything under that tag must be
    /// forgotten ([`crate::nested`]).
    #[cold]
    pub(crate) fn owe_nested(&mut self) {
        self.edits |= NESTED;
    }

    pub(crate) fn is_nested(&self) -> bool {
        self.edits & NESTED != 0
    }

    /// Adds an unhooked table of `level` with everything below it.
    pub(crate) fn unlink(&mut self, top: Node, level: Level) {
        self.unlinked.add(top, level);
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.edits == 0 && self.unlinked.is_empty()
    }

    /// Whether the payer must wait for uses of held frames.
    #[inline(always)]
    pub(crate) fn waits_for_uses(&self) -> bool {
        self.edits >= USES
    }

    /// Records that the payer has waited. Returns whether the rest needs kicks, because a broadcast is not enough.
    pub(crate) fn has_waited_for_uses(&mut self) -> bool {
        let kicks = self.edits & KICKS != 0;
        self.edits &= KICKS - 1;
        kicks
    }

    /// Number of edits. All edits of shadows count as one, so a debt that is paid has at least one edit.
    pub(crate) fn edits(&self) -> u64 {
        (self.edits & (NESTED - 1)) + u64::from(self.is_nested())
    }
}

/// The payer of a debt: a VM, without its format and host as type parameters.
pub(crate) trait Pay {
    /// Makes one shootdown for all of `owed` and waits for the answers. The tables go to the grace queue, which is
    /// collected if this thread `may_collect`. A panic of a callback leaves this function only after the flush.
    fn pay(&self, owed: Owed, cause: Cause, may_collect: bool);
}

/// An invalidation, which keeps the record of its debt, so that a leaked debt is not lost.
pub(crate) trait Owes {
    fn owed(&self) -> &Owed;
    /// Pays what is owed.
    fn settle(&mut self);
}

/// An owed flush; see the [module](self). Settling waits for vCPUs to answer. The thread must therefore be idle, which
/// the borrow `'g` of its [`Idle`](crate::Idle) guarantees.
#[must_use = "an unpaid flush debt means stale translations"]
pub struct FlushDebt<'g> {
    debt: Debt<'g>,
    _idle: PhantomData<&'g mut ()>,
}

enum Debt<'g> {
    /// Of a walk, which is paid inside that walk: the payer waits for no grace period.
    OfWalk(&'g dyn Pay, Owed, Cause),
    OfInvalidation(&'g mut dyn Owes),
}

impl core::fmt::Debug for FlushDebt<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FlushDebt").field("owed", self.owed()).finish_non_exhaustive()
    }
}

impl<'g> FlushDebt<'g> {
    pub(crate) fn new(payer: &'g dyn Pay, owed: Owed, cause: Cause) -> Self {
        Self { debt: Debt::OfWalk(payer, owed, cause), _idle: PhantomData }
    }

    /// The debt of an invalidation.
    pub(crate) fn of(invalidation: &'g mut dyn Owes) -> Self {
        Self { debt: Debt::OfInvalidation(invalidation), _idle: PhantomData }
    }

    fn owed(&self) -> &Owed {
        match &self.debt {
            Debt::OfWalk(_, owed, _) => owed,
            Debt::OfInvalidation(invalidation) => invalidation.owed(),
        }
    }

    /// Pays. Returns whether anything was owed.
    #[allow(clippy::must_use_candidate, reason = "the payment is the point")]
    pub fn settle(self) -> bool {
        !self.owed().is_nothing()
    }

    /// Number of frames that lost a translation, including those of leaked debts of the same invalidation. Zero means
    /// that there is nothing to flush.
    pub fn pages(&self) -> u64 {
        self.owed().pages
    }
}

impl Drop for FlushDebt<'_> {
    fn drop(&mut self) {
        match &mut self.debt {
            Debt::OfWalk(payer, owed, cause) if !owed.is_nothing() => {
                payer.pay(core::mem::take(owed), *cause, false);
            }
            Debt::OfWalk(..) => {}
            Debt::OfInvalidation(invalidation) => invalidation.settle(),
        }
    }
}
