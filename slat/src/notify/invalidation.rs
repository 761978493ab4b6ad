//! `Invalidation`: a guard around a change in the primary MMU.
//!
//! ```text
//! vm.change(&mut idle, range, why, |idle| {     begin: faults on the range wait; walk, then one flush
//!     …the host changes its own entries…        no vCPU uses the range any more
//! });                                           end: faults on the range continue and see the new state
//! ```
//! The same in steps, for a host whose change is no closure:
//!
//! ```text
//! let change = vm.invalidate(range, why)        begin
//!     .apply(&mut idle)                         walk
//!     .settle();                                flush
//! …the host changes its own entries…
//! drop(change);                                 end
//! ```
//! The guard passes from step to step by value. If it is bound to no name, it ends before the host has changed
//! anything; the compiler says so where `unused_must_use` is denied, and warns elsewhere:
//!
//! ```compile_fail
//! #![deny(unused_must_use)]
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! vm.invalidate(Span::new(Hva(0), Hva(4096)), Why::Unmap).apply(idle).settle();
//! // …the host changes its own entries, but the invalidation has ended…
//! # }
//! ```
//! The guard cannot end while its debt is open. The compiler refuses to drop it before the debt:
//!
//! ```compile_fail,E0382
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let change = vm.invalidate(Span::new(Hva(0), Hva(4096)), Why::Unmap);
//! let applied = change.apply(idle);
//! drop(change);
//! applied.settle();
//! # }
//! ```
//! The invalidation records a debt of [`changed`](Invalidation::changed) that is leaked (`core::mem::forget`), and pays it
//! with the next debt or when it ends. A host whose begin and end are two calls keeps the guard in between
//! ([`Vm::invalidate_owned`]).
//!
//! A leaked invalidation never ends. Faults on its range wait for ever. Its place in the active set, and the tables
//! whose flush it owes, are freed only when the VM is dropped. The host must not change the range. Invalidations that
//! meet its holes pay its flush each time.
//!
//! No invalidation stops all vCPUs, waits for a fault, or makes a fault elsewhere retry ([`crate::active`] says why).

use super::begun::{Begun, Range, Scope};
use super::secondary::Again;
use crate::{FlushDebt, Format, Gfn, Host, HostPage, Hva, Idle, Reason, SpaceId, Span, Vm, Why};
use alloc::sync::Arc;

/// A guard around a change in the primary MMU; see the module's header.
///
/// Dropping a guard that was never applied cancels it: the host then changes nothing. Dropping one whose debt is open
/// pays that debt, and so waits for vCPUs in the guest: the dropping thread must not be in the guest itself.
///
/// ```
/// use slat::{*, table::formats::Npt4};
///
/// /// A host whose frame is always the address.
/// struct Identity;
/// impl Host for Identity {
///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
///     }
/// }
///
/// let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.prefault(&mut idle, Span::sized(Gfn(0), 2), Prefault::OLD)?;
/// let first = Span::sized(Hva(1 << 30), 4096);
/// let change = vm.invalidate(first, Why::Migrate); // faults on the page wait from here
/// let change = change.apply(&mut idle).settle(); // no vCPU uses the page any more
/// // … here the host copies the page to another frame and changes its own table …
/// drop(change); // faults continue, and ask the host again
/// assert_eq!(vm.memory().translate(&mut idle, Gfn(0)), None);
/// assert!(vm.memory().translate(&mut idle, Gfn(1)).is_some(), "not in the range");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the range is protected only while this lives"]
pub struct Invalidation<'vm, F: Format, H: Host> {
    pub(crate) begun: Begun<'vm, F, H>,
    /// Keeps the VM of an owned guard alive. Dropped last: fields drop in order.
    _owner: Option<Arc<Vm<F, H>>>,
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Invalidates `hvas`, then runs `change`, in which the host changes its own table there, and ends the
    /// invalidation. Faults on the range wait meanwhile; when `change` runs, no vCPU uses the range any more. May sleep,
    /// and waits for vCPUs in the guest.
    ///
    /// This is [`invalidate`](Self::invalidate), [`apply`](Invalidation::apply) and
    /// [`settle`](super::Applied::settle). Single pages change by [`change_pages`](Self::change_pages). A host with several
    /// listeners uses [`SecondaryMmu::around`](super::SecondaryMmu::around) instead.
    ///
    /// A reason by which only some pages change does not compile here:
    ///
    /// ```compile_fail,E0308
    /// # use slat::*;
    /// # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle, hvas: Span<Hva>) {
    /// vm.change(idle, hvas, PageWhy::Reclaim, |_| {});
    /// # }
    /// ```
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # use std::{collections::BTreeMap, sync::Mutex};
    /// # struct Table(Mutex<BTreeMap<Hva, Pfn>>);
    /// # impl Host for Table {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         let pfn = *self.0.lock().unwrap().get(&hva).ok_or(HostError::Fault)?;
    /// #         Ok(HostPage { pfn, ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Table(Mutex::new([(Hva(0x4000_0000), Pfn(7))].into()))).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.prefault(&mut idle, Span::sized(Gfn(0), 1), Prefault::OLD)?;
    /// let page = Span::sized(Hva(0x4000_0000), PAGE_SIZE);
    /// let freed = vm.change(&mut idle, page, Why::Unmap, |_| vm.host().0.lock().unwrap().remove(&page.start));
    /// assert_eq!((freed, vm.memory().translate(&mut idle, Gfn(0))), (Some(Pfn(7)), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change<R>(
        &self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        why: Why,
        change: impl FnOnce(&mut Idle) -> R,
    ) -> R {
        // In place: each move of an invalidation copies some 200 bytes.
        let mut begun = Begun::begin(self, Range::Hvas(hvas), why.into());
        begun.edit(idle, &Scope::Whole, None);
        begun.settle(true);
        let changed = change(idle);
        drop(begun);
        changed
    }

    /// Begins an [`Invalidation`]: the host is about to change `hvas`. Faults on the range wait from here until the
    /// guard is dropped.
    ///
    /// A thread may nest any number of them. Up to 4,032 are in flight at once in a VM; the next one waits for one to
    /// end. The 65th and later ones may allocate (16 KiB at first), and wait if there is no memory. While more than 64
    /// are in flight, edits, and faults that they are announced to, scan up to as many places as were ever in use.
    ///
    /// An invalidation of at most 16 regions (aligned 2 MiB pieces of host addresses) costs faults in other regions
    /// nothing. A wider one costs each concurrent fault one more attempt when it begins, and one when it ends. So does
    /// one that must zap a large page which reaches out of its range, for want of a table page.
    pub fn invalidate(&self, hvas: Span<Hva>, why: impl Into<Reason>) -> Invalidation<'_, F, H> {
        Invalidation::of(Begun::begin(self, Range::Hvas(hvas), why.into()))
    }

    /// Like [`invalidate`](Self::invalidate), but returns [`Again`] instead of waiting.
    ///
    /// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Nothing;
    /// # impl Host for Nothing {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
    /// let page = Span::sized(Hva(0x7000_0000), 4096);
    /// match vm.try_invalidate(page, Why::Unmap) {
    ///     Ok(mut change) => drop(change.apply(&mut idle)),
    ///     Err(Again) => { /* 4,032 are in flight: let some of them end first */ }
    /// }
    /// ```
    pub fn try_invalidate(
        &self,
        hvas: Span<Hva>,
        why: impl Into<Reason>,
    ) -> Result<Invalidation<'_, F, H>, Again> {
        Begun::try_begin(self, Range::Hvas(hvas), why.into(), true).map(Invalidation::of).ok_or(Again)
    }

    /// Zaps one leaf so that something else can be mapped. For a host that cannot say without sleeping that it has made
    /// the page writable in place.
    #[cold]
    pub(crate) fn take_away(&self, idle: &mut Idle, space: SpaceId, gfns: Span<Gfn>) {
        let mut begun = Begun::begin(self, Range::Gfns(space, gfns), Reason::Clear);
        begun.edit(idle, &Scope::Whole, None);
        begun.settle(true);
    }
}

impl<F: Format, H: Host + 'static> Vm<F, H> {
    /// Like [`invalidate`](Self::invalidate), with a guard that keeps the VM alive: for a host whose begin and end are two
    /// callbacks, as those of Linux's MMU notifiers (`invalidate_range_start`, `invalidate_range_end`). The host keeps the
    /// guard in a map by range or in the event itself. Any thread may end it.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{table::formats::Npt4, *};
    /// use std::{collections::BTreeMap, sync::{Arc, Mutex}};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    ///
    /// /// The kernel calls this when it changes its page tables.
    /// struct Notifier {
    ///     vm: Arc<Vm<Npt4, Identity>>,
    ///     open: Mutex<BTreeMap<Hva, Invalidation<'static, Npt4, Identity>>>,
    /// }
    /// impl Notifier {
    ///     fn invalidate_range_start(&self, idle: &mut Idle, hvas: Span<Hva>) {
    ///         let change = self.vm.invalidate_owned(hvas, Why::Unmap).apply(idle).settle();
    ///         self.open.lock().unwrap().insert(hvas.start, change);
    ///     }
    ///     fn invalidate_range_end(&self, hvas: Span<Hva>) {
    ///         let change = self.open.lock().unwrap().remove(&hvas.start);
    ///         drop(change.expect("begun")); // faults continue
    ///     }
    /// }
    ///
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Arc::new(Vm::<Npt4, _>::builder(Identity).build()?);
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let fault = Fault { gpa: Gpa(0), access: Access::Read };
    /// let _ = vcpu.fault(&mut idle, fault)?;
    /// let (notifier, page) = (Notifier { vm: vm.clone(), open: Mutex::default() }, Span::sized(Hva(1 << 30), 4096));
    /// notifier.invalidate_range_start(&mut idle, page);
    /// assert_eq!(vm.memory().translate(&mut idle, Gfn(0)), None);
    /// notifier.invalidate_range_end(page);
    /// assert_eq!(vcpu.fault(&mut idle, fault)?, Next::Resume(Resume::Mapped(Level::K4)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invalidate_owned(
        self: &Arc<Self>,
        hvas: Span<Hva>,
        why: impl Into<Reason>,
    ) -> Invalidation<'static, F, H> {
        let owner = self.clone();
        // SAFETY: the VM stays in place and lives as long as `owner`, which is dropped after the invalidation has ended. An
        // invalidation keeps no reference, but pointers (`Lent`), and lends out nothing for `'static`.
        let vm = unsafe { &*Arc::as_ptr(&owner) };
        Invalidation { begun: Begun::begin(vm, Range::Hvas(hvas), why.into()), _owner: Some(owner) }
    }
}

impl<'vm, F: Format, H: Host> Invalidation<'vm, F, H> {
    pub(crate) fn of(begun: Begun<'vm, F, H>) -> Self {
        Self { begun, _owner: None }
    }

    /// Tells that the host's pages at `hvas`, in the range, map `to` now, or nothing: edits what is mapped there, and
    /// returns the debt. For reasons that are reported [page by page](Reason::page_by_page), before or instead of
    /// [`apply`](Self::apply); after it this does nothing. `to` names the frame of the first page of `hvas`; if it is
    /// larger than 4 KiB, the following pages have the following frames. Frames beyond that one page are zapped, and all
    /// are if `to` [does not fit](crate::HostError::BadFrame). The host must not change its entry meanwhile, nor reuse
    /// the old frames before settling. An invalidation of guest frames edits all of its range.
    pub fn changed<'i>(
        &'i mut self,
        idle: &'i mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
    ) -> FlushDebt<'i> {
        self.begun.tell(idle, hvas, to, None);
        FlushDebt::of(&mut self.begun)
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use crate::active::Page;
    use crate::notify::Invalidation;
    use crate::table::{Word, formats::Npt4};
    use crate::*;
    use std::sync::Arc;
    use std::vec::Vec;

    /// A host that is dropped with its VM.
    struct Plain(#[allow(dead_code, reason = "its drop is counted")] Arc<()>);

    impl Host for Plain {
        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage::PLAIN)
        }
    }

    const FIRST: Span<Hva> = Span::new(Hva(0), Hva(4096));
    const WIDE: Span<Hva> = Span::new(Hva(0), Hva(1 << 40));

    /// A VM, and what lives as long as it.
    fn vm() -> (Arc<Vm<Npt4, Plain>>, Arc<()>) {
        let host = Arc::default();
        (Arc::new(Vm::<Npt4, _>::builder(Plain(Arc::clone(&host))).build().unwrap()), host)
    }

    /// Whether faults on the first page wait: asks for a stamp, as a fault does.
    fn waits(vm: &Vm<Npt4, Plain>) -> bool {
        let (epoch, page) = (vm.active.epoch(), Page::small(Gfn(0), Hva(0)));
        vm.active.stamp(epoch, page, Level::K4, Word::OLDEST).is_err()
    }

    #[test]
    fn any_thread_ends_an_invalidation_that_keeps_its_vm() {
        for hvas in [FIRST, WIDE] {
            let (vm, _host) = vm();
            // Among the first places, and beyond them.
            let others: Vec<_> = (0..100)
                .map(|_| vm.invalidate(Span::new(Hva(1 << 50), Hva(1 << 51)), Reason::Clear))
                .collect();
            for many in [0, 100] {
                let _some = &others[..many];
                assert!(!waits(&vm));
                let change = vm.invalidate_owned(hvas, Reason::Unmap);
                assert!(waits(&vm));
                std::thread::spawn(move || drop(change)).join().unwrap();
                assert!(!waits(&vm));
            }
        }
    }

    #[test]
    fn the_vm_of_the_last_invalidation_is_dropped_after_it() {
        let (vm, host) = vm();
        let change: Invalidation<'static, _, _> = vm.invalidate_owned(FIRST, Reason::Unmap);
        drop(vm);
        assert_eq!(Arc::strong_count(&host), 2);
        let change = change.apply(&mut Idle::take().unwrap()).settle();
        drop(change);
        assert_eq!(Arc::strong_count(&host), 1);
    }

    #[test]
    fn a_debt_that_is_open_is_paid_at_the_end() {
        let (mut idle, (vm, _host)) = (Idle::take().unwrap(), vm());
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0)))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Read }).unwrap();
        let mut change = vm.invalidate_owned(FIRST, Reason::Unmap);
        core::mem::forget(change.changed(&mut idle, FIRST, None));
        let before = vm.stats().flushes.paid;
        std::thread::spawn(move || drop(change)).join().unwrap();
        assert_eq!(vm.stats().flushes.paid, before + 1);
    }
}
