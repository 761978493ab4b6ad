//! `SecondaryMmu`: what keeps copies of a primary MMU's translations; and what it is told.
//!
//! ```text
//! primary                              each secondary MMU
//! around(event, change) ─────────────▶ begin: faults on the range wait
//!                                      eager reasons: edit all of the range, flush
//!   change: for each page, locked  ◀──
//!     own entry; told.changed(page) ─▶ reasons page by page: edit that page; the flush is owed
//!   done ────────────────────────────▶ flush what is owed; end
//! frames are freed
//! ```
//! Begin and end are one call, so they cannot be lost, doubled or crossed: with several listeners the primary MMU nests
//! the calls, innermost its own change. Ranges may overlap, within a thread and between threads.
//!
//! # Why page by page is safe
//! Hardware may use the old page until the flush. The frame is not freed before the invalidation has ended, which is after the
//! flush; and a host that changes what a page *contains* flushes first. A page that is replaced has the contents of the one before
//! and stays read-only: the first store faults, waits for the end, and asks the host. Breaking a copy-on-write share follows the
//! same rule: the copy comes read-only, and is flushed under the page lock before it can be written.
//!
//! A page that is told is edited by the code that edits ranges, so its holes take the invalidation's number: an answer that a fault
//! got before is refused there, and nowhere else in the announced range. Pages that map nothing any more may be told together,
//! after their locks are free again, as NUMA balancing does: another change of one of them has a notification of its own, and the
//! numbers of holes never fall (rule 16 of [`crate::notify`]).

use crate::addr::{Hva, Span};
use crate::age::AccessedPages;
use crate::host::HostPage;
use crate::sync::idle::Idle;
use crate::why::Why;

/// A change that a primary MMU is about to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What may change: no byte outside of it does.
    pub hvas: Span<Hva>,
    /// For which reason.
    pub why: Why,
    /// Whether a listener may wait for others: locks, memory, grace periods, a seat, a place in the active set. Where it may not
    /// (a thread that frees memory when there is none), it answers [`Again`] instead, or has all that it needs until the event
    /// is over. What it waits for in any case is vCPUs in the guest, which owe an answer, and uses of [held](crate::held) frames.
    pub may_block: bool,
}

impl Event {
    /// An event whose listeners may wait.
    pub const fn new(hvas: Span<Hva>, why: Why) -> Self {
        Self { hvas, why, may_block: true }
    }
}

/// A listener would have had to wait: nothing was changed, try later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Again;

errors! { Again: Self => "it would have to wait: try again"; }

/// What to do with the Accessed bits of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Young {
    /// Only look; the first one found ends it.
    Test,
    /// Clear them. A TLB may keep a copy that says accessed: the next access is then not noticed.
    Clear,
    /// Clear them, and make every TLB forget.
    ClearAndFlush,
}

/// Keeps copies of a primary MMU's translations: a [`Vm`](crate::Vm), a device, a test.
///
/// ```
/// use slat::{notify::Pages, *};
/// use std::{collections::BTreeSet, sync::Mutex};
///
/// /// The host pages that a device may access.
/// #[derive(Default)]
/// struct Iommu(Mutex<BTreeSet<u64>>);
///
/// impl SecondaryMmu for Iommu {
///     fn around(
///         &self,
///         idle: &mut Idle,
///         event: Event,
///         change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
///     ) -> Result<(), Again> {
///         // The device's own faults wait for this lock until the change is over.
///         let mut mapped = self.0.lock().unwrap();
///         mapped.retain(|&hva| !event.hvas.contains(Hva(hva)));
///         change(idle, &mut Eager);
///         Ok(())
///     }
/// }
///
/// /// All of the range has been unmapped and flushed already, so pages need not be told.
/// struct Eager;
/// impl Pages for Eager {
///     fn changed(&mut self, _: &mut Idle, _: Span<Hva>, _: Option<HostPage>) {}
///     fn flush(&mut self, _: &mut Idle) {}
///     fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
/// }
///
/// // The primary MMU takes a page away:
/// let iommu = Iommu(Mutex::new([0x1000, 0x2000].into()));
/// let event = Event::new(Span::new(Hva(0x2000), Hva(0x3000)), Why::Unmap);
/// let mut idle = Idle::take().unwrap();
/// let mut unmapped = false;
/// iommu.around(&mut idle, event, &mut |_, _| unmapped = true)?; // here it changes its own table
/// assert!(unmapped && *iommu.0.lock().unwrap() == [0x1000].into());
/// # Ok::<(), Again>(())
/// ```
pub trait SecondaryMmu: Send + Sync {
    /// Makes sure that no access uses `event.hvas` through this MMU in a way that the reason forbids, calls `change` once,
    /// pays what is owed for the pages that it told, then lets faults go on. Until it returns, no fault on the range
    /// completes with what was there before. May sleep, unless the event says otherwise: then it may answer
    /// [`Again`], and `change` was not called.
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again>;

    /// Whether a change [page by page](Why::page_by_page) costs this MMU only the pages that it is told. Then a primary MMU
    /// may announce a wide range for a few pages in it, and have them all for one flush. It matters for speed alone.
    fn heeds_pages(&self) -> bool {
        false
    }

    /// Whether any page of the range has been accessed through this MMU since its bit was cleared. One that keeps no
    /// such bits says no.
    fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        let _ = (idle, hvas, young);
        false
    }

    /// Whether it can be asked about many pages at once without a wait for any thread: then an aging pass asks it
    /// ([`age`](Self::age)). One that cannot is passed over there; eviction still asks whether a page is
    /// [`young`](Self::young).
    fn ages(&self) -> bool {
        false
    }

    /// Tells `seen` which pages of the range have been accessed through this MMU since their bits were cleared, in order
    /// and up to 512 at once, and clears them. No lock, no flush. `seen` may not wait, nor call this MMU.
    fn age(&self, idle: &mut Idle, hvas: Span<Hva>, seen: &mut dyn FnMut(&AccessedPages<Hva>)) {
        let _ = (idle, hvas, seen);
    }

    /// Asks every TLB to forget what it holds of the range, soon: after an aging pass, so that the next access is noticed.
    /// Waits for no thread, and no caller may count on it.
    fn forget(&self, idle: &mut Idle, hvas: Span<Hva>) {
        let _ = (idle, hvas);
    }
}

/// What a change says while it runs, page by page, under the primary MMU's own lock of that page.
pub trait Pages {
    /// `hvas`, which is in the event's range, changes: it lies in one page, of any size, that maps `to` now, where `to`
    /// names the frame of the first 4 KiB of `hvas`; or it is any number of pages that map nothing that may be used. To be
    /// called between two moments at which the primary MMU's own entry cannot change. Waits
    /// for no thread. Says nothing new where the reason is an eager one.
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>);

    /// Pays at once what is owed so far, which otherwise is paid at the end, once. Waits for vCPUs in the guest.
    fn flush(&mut self, idle: &mut Idle);

    /// Pays what other changes owe for `hvas`, which is in the event's range, and have not paid yet. On return no translation
    /// is in use that a change told before this call has taken away. Nothing is told, and where no debt is open nothing is
    /// flushed. Waits for vCPUs in the guest.
    ///
    /// **A primary MMU settles a page before it copies it, unless the event's reason is an eager one.** A change page by page
    /// withdraws write permission first and flushes later. A vCPU that has not answered yet still stores to the old frame,
    /// and a store after the copy is lost. An eager reason has settled its range before the change begins.
    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>);
}

/// To several listeners at once: one that was told before, and the next.
pub struct Both<'a>(pub &'a mut dyn Pages, pub &'a mut dyn Pages);

impl core::fmt::Debug for Both<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Both").finish_non_exhaustive()
    }
}

impl Pages for Both<'_> {
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        self.0.changed(idle, hvas, to);
        self.1.changed(idle, hvas, to);
    }

    fn flush(&mut self, idle: &mut Idle) {
        self.0.flush(idle);
        self.1.flush(idle);
    }

    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        self.0.settle(idle, hvas);
        self.1.settle(idle, hvas);
    }
}

/// No listeners: the innermost part of a list of them.
#[derive(Clone, Copy, Debug)]
pub struct NoPages;

impl Pages for NoPages {
    fn changed(&mut self, _: &mut Idle, _: Span<Hva>, _: Option<HostPage>) {}
    fn flush(&mut self, _: &mut Idle) {}
    fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
}
