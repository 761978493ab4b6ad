//! `SecondaryMmu`: a listener that keeps copies of a primary MMU's translations; and what the primary MMU tells it.
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
//! Begin and end are one call, so neither can be lost, doubled or crossed. With several listeners the primary MMU nests
//! the calls, its own change innermost. Ranges may overlap, within a thread and between threads.
//!
//! # Why page by page is safe
//! Hardware may use the old page until the flush. The primary MMU frees the frame after the invalidation has ended,
//! hence after the flush. A host that changes the contents of a page flushes first. A replaced page has equal contents
//! and stays read-only: the first store faults, waits for the end, and asks the host. Breaking a copy-on-write share
//! follows the same rule: the copy is mapped read-only, and flushed under the page lock before it can be written.
//!
//! A told page is edited by the code that edits ranges, so its holes take the invalidation's number. An answer that a
//! fault got earlier is refused there, and nowhere else in the announced range. Pages that now map nothing may be told
//! together after their locks are released, as NUMA balancing does: another change of one of them has its own
//! notification, and the numbers of holes never fall (rule 16 of [`crate::notify`]).

use crate::{AccessedPages, HostPage, Hva, Idle, Reason, Span};

/// A change that a primary MMU is about to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The host addresses that may change; none outside changes.
    pub hvas: Span<Hva>,
    /// The reason of the change.
    pub why: Reason,
    /// Whether a listener may wait for others: locks, memory, grace periods, a seat, a place in the active set. A
    /// thread that reclaims memory must not. The listener then returns [`Again`], or holds all that it needs until the
    /// event is over. It may always wait for vCPUs in the guest, and for uses of [held](crate::held) frames.
    pub may_block: bool,
}

impl Event {
    /// Returns an event whose listeners may wait.
    pub fn new(hvas: Span<Hva>, why: impl Into<Reason>) -> Self {
        Self { hvas, why: why.into(), may_block: true }
    }
}

/// Error: a listener would have had to wait. Nothing was changed; try later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Again;

errors! { Again: Self => "it would have to wait: try again"; }

/// The action of an aging query on the Accessed bits of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Young {
    /// Only look, up to the first accessed page.
    Test,
    /// Clear them. A TLB may keep a copy with Accessed set; the next access then goes unnoticed.
    Clear,
    /// Clear them, and flush TLBs.
    ClearAndFlush,
}

/// A copy of a primary MMU's translations: a [`Vm`](crate::Vm), a device, a test.
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
    /// Makes sure that no access through this MMU uses `event.hvas` in a way that the reason forbids; calls `change`
    /// once; pays the debt for the pages that it told; then lets faults continue. Until it returns, no fault on the
    /// range completes with an old translation. May sleep, unless the event forbids it.
    ///
    /// # Errors
    /// [`Again`] if the event may not block and this would wait. `change` was not called.
    ///
    /// # Panics
    /// It should not. If it does, before or after `change`, it must first make sure that no access uses `event.hvas`: the
    /// primary MMU may free the frames. A panic of `change` itself may unwind through it; a guard then lets faults
    /// continue. What else a panic leaves behind is for the primary MMU to say.
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again>;

    /// Whether a change [page by page](Reason::page_by_page) costs this MMU only the told pages. A primary MMU may then
    /// announce a wide range for a few pages in it, with one flush for all. Affects speed only.
    fn heeds_pages(&self) -> bool {
        false
    }

    /// Whether any page of the range has been accessed through this MMU since its Accessed bit was cleared. An MMU
    /// without such bits returns false.
    fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        let _ = (idle, hvas, young);
        false
    }

    /// Whether this MMU can report on many pages at once without waiting for any thread. An aging pass then calls
    /// [`age`](Self::age), and skips other MMUs. Eviction still asks those whether a page is [`young`](Self::young).
    fn ages(&self) -> bool {
        false
    }

    /// Passes to `seen` the pages of the range that have been accessed through this MMU since their bits were cleared,
    /// in order, up to 512 at once, and clears the bits. No lock, no flush. `seen` may not wait, nor call this MMU.
    fn age(&self, idle: &mut Idle, hvas: Span<Hva>, seen: &mut dyn FnMut(&AccessedPages<Hva>)) {
        let _ = (idle, hvas, seen);
    }

    /// Asks every TLB to drop the range soon, after an aging pass, so that the next access is noticed. Waits for no
    /// thread; no caller may rely on it.
    fn forget(&self, idle: &mut Idle, hvas: Span<Hva>) {
        let _ = (idle, hvas);
    }
}

/// Reports of a running change, page by page, under the primary MMU's lock of that page.
pub trait Pages {
    /// Reports that `hvas`, in the event's range, changes. Either it lies in one page, of any size, that maps `to` now,
    /// where `to` names the frame of the first 4 KiB of `hvas`. Or it is any number of pages that map nothing usable.
    /// The primary MMU's own entry must not change during the call. Waits for no thread. Eager reasons ignore it.
    ///
    /// Outside of the event's range a VM edits nothing, and the guest keeps the page. A build with debug assertions panics
    /// there.
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>);

    /// Pays the debt so far at once, instead of once at the end. Waits for vCPUs in the guest.
    fn flush(&mut self, idle: &mut Idle);

    /// Pays the open debts of other changes for `hvas`, which is in the event's range. On return no vCPU uses a
    /// translation that a change told before this call has taken away. Reports no change, and flushes nothing if no
    /// debt is open. Waits for vCPUs in the guest.
    ///
    /// **A primary MMU settles a page before it copies it, unless the event's reason is an eager one.** A change page
    /// by page withdraws write permission first and flushes later. A vCPU that has not answered yet still stores to the
    /// old frame, and a store after the copy is lost. An eager reason has settled its range before the change begins.
    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>);
}

/// Reports to two listeners in turn; nested, to any number.
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

/// No listeners: the innermost of nested [`Both`]s.
#[derive(Clone, Copy, Debug)]
pub struct NoPages;

impl Pages for NoPages {
    fn changed(&mut self, _: &mut Idle, _: Span<Hva>, _: Option<HostPage>) {}
    fn flush(&mut self, _: &mut Idle) {}
    fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
}
