//! `FlushDebt`: the flush that an edit owes, as a value that cannot be ignored.
//!
//! Walks take things away and collect what that owes; the debt is settled once, when the walk is over, by at
//! most one shootdown for all of it. Only then may the host reuse the pages, and only then do the table pages
//! that the walk unhooked go on to their grace period.
//!
//! Dropping a debt pays it: [`FlushDebt::settle`] exists so that the reader sees where. A debt that is leaked
//! (`core::mem::forget`) is not paid at that moment. An invalidation keeps its own record of what it owes, so it pays a
//! leaked debt with its next one, or when it ends. The debt of a write protection is lost: the next write protection of the
//! same pages owes their flush again, since a clear W never proves that no TLB writes. Not using a debt at all is an error of
//! the compiler where `unused_must_use` is denied:
//!
//! ```compile_fail
//! #![deny(unused_must_use)]
//! # use slat::*;
//! fn forget<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//!     vm.write_protect(idle, Span::new(Gfn(0), Gfn(1)));
//! }
//! ```

use super::cause::Cause;
use crate::addr::{Gfn, Level, Span};
use crate::table::memory::Node;
use crate::table::retire::Unlinked;
use core::marker::PhantomData;

/// In the count of edits: frames were taken from their holders, and uses that have begun are waited for.
const USES: u64 = 1 << 63;
/// The same: hardware has such a frame, and lets go of it when its vCPU leaves the guest. A broadcast does not do.
const KICKS: u64 = 1 << 62;
/// The same: what L2's tag has is to be forgotten, whatever its frames are.
const NESTED: u64 = 1 << 61;

/// What one walk owes, collected edit by edit.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// Hull of what lost something.
    pub(crate) gfns: Span<Gfn>,
    /// With [`USES`], [`KICKS`] and [`NESTED`]: where nothing is held and nothing nested, these cost nothing.
    edits: u64,
    pub(crate) pages: u64,
    pub(crate) unlinked: Unlinked,
}

impl Owed {
    /// An edit took something away from `gfns`.
    pub(crate) fn owe(&mut self, gfns: Span<Gfn>) {
        self.gfns = self.gfns.hull(&gfns);
        self.edits += 1;
        self.pages += gfns.len();
    }

    /// As many edits took a page each away from `gfns`.
    pub(crate) fn owe_pages(&mut self, gfns: Span<Gfn>, pages: u64) {
        self.gfns = self.gfns.hull(&gfns);
        self.edits += pages;
        self.pages += pages;
    }

    /// Frames were taken from their holders: this hull of some from hardware.
    #[cold]
    pub(crate) fn owe_held(&mut self, hardware: Option<Span<Gfn>>) {
        self.edits |= USES;
        if let Some(gfns) = hardware {
            if !seeded!(HeldBroadcast) {
                self.edits |= KICKS;
            }
            self.owe(gfns);
        }
    }

    /// A shadow was reached: frames of L1 name nothing under L2's tag, so all of it is forgotten ([`crate::nested`]).
    #[cold]
    pub(crate) fn owe_nested(&mut self) {
        self.edits |= NESTED;
    }

    pub(crate) fn is_nested(&self) -> bool {
        self.edits & NESTED != 0
    }

    /// A table of `level` left the tree with all below it: they wait in this debt.
    pub(crate) fn unlink(&mut self, top: Node, level: Level) {
        self.unlinked.add(top, level);
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.edits == 0 && self.unlinked.is_empty()
    }

    /// Whether uses of held frames are to be waited for.
    #[inline(always)]
    pub(crate) fn waits_for_uses(&self) -> bool {
        self.edits >= USES
    }

    /// They have been. Whether a broadcast does not do for what else is owed.
    pub(crate) fn has_waited_for_uses(&mut self) -> bool {
        let kicks = self.edits & KICKS != 0;
        self.edits &= KICKS - 1;
        kicks
    }

    pub(crate) fn edits(&self) -> u64 {
        self.edits & (NESTED - 1)
    }
}

/// Who pays: a VM, with its format and host forgotten.
pub(crate) trait Pay {
    /// One shootdown for all of `owed`; its tables go to the grace queue, which is collected where this thread
    /// `may_collect`. Waits for answers.
    fn pay(&self, owed: Owed, cause: Cause, may_collect: bool);

    /// Nothing is owed any more.
    fn paid(&self) {}
}

/// A flush that is owed. See the module's header. Settling waits for vCPUs to answer: the thread must be idle,
/// which the borrow `'g` of its [`Idle`](crate::Idle) guarantees.
#[must_use = "an unpaid flush debt means stale translations"]
pub struct FlushDebt<'g> {
    payer: &'g dyn Pay,
    owed: Record<'g>,
    cause: Cause,
    /// Whether the payer may wait for a grace period. A walk's own debt is paid inside that walk; an invalidation's
    /// after it.
    may_collect: bool,
    _idle: PhantomData<&'g mut ()>,
}

/// Where it is written what a debt owes.
enum Record<'g> {
    /// In the debt alone: that of a walk.
    Here(Owed),
    /// In the payer, an invalidation, which outlives a debt that is leaked.
    Kept(&'g mut Owed),
}

impl Record<'_> {
    fn owed(&self) -> &Owed {
        match self {
            Self::Here(owed) => owed,
            Self::Kept(owed) => owed,
        }
    }
}

impl core::fmt::Debug for FlushDebt<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FlushDebt").field("owed", self.owed.owed()).finish_non_exhaustive()
    }
}

impl<'g> FlushDebt<'g> {
    pub(crate) fn new(payer: &'g dyn Pay, owed: Owed, cause: Cause) -> Self {
        Self { payer, owed: Record::Here(owed), cause, may_collect: false, _idle: PhantomData }
    }

    /// What an invalidation owes, as it keeps record of it.
    pub(crate) fn of(payer: &'g dyn Pay, owed: &'g mut Owed, cause: Cause) -> Self {
        Self { payer, owed: Record::Kept(owed), cause, may_collect: true, _idle: PhantomData }
    }

    /// The same, to be paid without a wait for a grace period.
    pub(crate) fn without_grace(self) -> Self {
        let mut this = self;
        this.may_collect = false;
        this
    }

    /// Pays. Returns whether there was anything to pay.
    #[allow(clippy::must_use_candidate, reason = "the payment is the point")]
    pub fn settle(self) -> bool {
        !self.owed.owed().is_nothing()
    }

    /// Frames that lost a translation; with zero there is nothing to flush. Includes what earlier debts of the same
    /// invalidation owe that were leaked.
    pub fn pages(&self) -> u64 {
        self.owed.owed().pages
    }
}

impl Drop for FlushDebt<'_> {
    fn drop(&mut self) {
        let owed = match &mut self.owed {
            Record::Here(owed) => owed,
            Record::Kept(owed) => &mut **owed,
        };
        if seeded!(FlushedTooEarly) {
            self.payer.paid();
        }
        if !owed.is_nothing() {
            self.payer.pay(core::mem::take(owed), self.cause, self.may_collect);
        }
        self.payer.paid();
    }
}
