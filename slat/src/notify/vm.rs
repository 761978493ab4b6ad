//! A VM as a secondary MMU.

use super::begun::{Begun, Range, Scope};
use super::secondary::{Again, Event, Pages, SecondaryMmu, Young};
use crate::age::pass::{Found, How};
use crate::host::Kicks;
use crate::slots::behind::Behind;
use crate::space::Space;
use crate::sync::{Borrowed, Exclusive, Lockless, Seat};
use crate::tlb::debt::Owed;
use crate::{
    AccessedPages, Cause, FlushDebt, Format, Gfn, Host, HostPage, Hva, Idle, PageWhy, Reason, Span, Vm, Walk,
};

impl<F: Format, H: Host> Vm<F, H> {
    /// Returns the reason as this VM treats it: an unmap, if the VM was built to ignore reasons.
    pub(super) fn heard(&self, range: Range, why: Reason) -> Reason {
        let ignored = self.policy.baseline.ignores_reasons() && matches!(range, Range::Hvas(_));
        if ignored { Reason::Unmap } else { why }
    }

    /// Ages the range without a lock, or, as a baseline, under it.
    fn pass_over(
        &self,
        space: &Space<F>,
        idle: &mut Idle,
        hvas: Span<Hva>,
        how: How,
        seen: impl FnMut(&AccessedPages<Hva>, &AccessedPages<Gfn>) -> bool,
    ) {
        if self.policy.baseline.ages_alone() {
            Walk::<F, H, Exclusive>::on_any_seat(self, space, idle).pass_behind(hvas, how, seen);
        } else {
            Walk::<F, H, Lockless>::on_any_seat(self, space, idle).pass_behind(hvas, how, seen);
        }
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Runs `change`, in which the host changes single pages of `hvas`, and tells each by [`Pages::changed`] while it
    /// holds the lock of its own entry. Faults on the range wait until `change` has returned and the flush is paid;
    /// vCPUs use pages that are not told all the while. The host frees no frame, and stores to no page that lost its
    /// frame, before this returns, or before [`Pages::flush`]. May sleep, and waits for vCPUs in the guest.
    ///
    /// All of `hvas` changes? Use [`change`](Self::change). Several listeners? Use [`SecondaryMmu::around`].
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
    /// # let pages = [(Hva(0x4000_0000), Pfn(7)), (Hva(0x4000_1000), Pfn(8))];
    /// # let vm = Vm::<Npt4, _>::builder(Table(Mutex::new(pages.into()))).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.prefault(&mut idle, Span::sized(Gfn(0), 2), Prefault::OLD)?;
    /// // Reclaim looks at both pages, and takes the second.
    /// let both = Span::sized(Hva(0x4000_0000), 2 * PAGE_SIZE);
    /// let frame = vm.change_pages(&mut idle, both, PageWhy::Reclaim, |idle, pages| {
    ///     let mut table = vm.host().0.lock().unwrap();
    ///     let frame = table.remove(&Hva(0x4000_1000));
    ///     pages.changed(idle, Span::sized(Hva(0x4000_1000), PAGE_SIZE), None);
    ///     frame
    /// });
    /// assert_eq!(frame, Some(Pfn(8))); // no vCPU uses it: swap it out, and free it
    /// assert_eq!([0, 1].map(|gfn| vm.memory().translate(&mut idle, Gfn(gfn)).is_some()), [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change_pages<R>(
        &self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        why: PageWhy,
        change: impl FnOnce(&mut Idle, &mut dyn Pages) -> R,
    ) -> R {
        let begun = Begun::begin(self, Range::Hvas(hvas), why.into());
        PageByPage { begun, kept: None }.around(idle, change)
    }
}

impl<F: Format, H: Host> SecondaryMmu for Vm<F, H> {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let range = Range::Hvas(event.hvas);
        let (begun, kept) = if event.may_block {
            (Begun::begin(self, range, event.why), None)
        } else {
            // A baseline policy's lock would be waited for asleep.
            if self.policy.baseline.has_lock() {
                return Err(Again);
            }
            // Kept to the end, so that no told page waits for a seat.
            let kept = Some(self.try_borrow_seat().ok_or(Again)?);
            (Begun::try_begin(self, range, event.why, false).ok_or(Again)?, kept)
        };
        PageByPage { begun, kept }.around(idle, |idle, pages| change(idle, pages));
        Ok(())
    }

    fn heeds_pages(&self) -> bool {
        !self.policy.baseline.ignores_reasons()
    }

    fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        let mut any = false;
        for space in &self.spaces {
            let mut owed = Owed::default();
            let found = if young == Young::Test { Found::Kept } else { Found::Cleared };
            // A page that a fault has mapped is young, even before a hardware walker sets Accessed in its links.
            self.pass_over(space, idle, hvas, How::every_leaf(found), |_, gfns| {
                any = true;
                if young == Young::ClearAndFlush {
                    gfns.pages().for_each(|gfn| owed.owe(Span::sized(gfn, 1)));
                    if self.runs_nested() {
                        owed.owe_nested();
                    }
                }
                young != Young::Test
            });
            FlushDebt::new(self, owed, Cause::Aging).settle();
            if any && young == Young::Test {
                break;
            }
        }
        any
    }

    fn ages(&self) -> bool {
        true
    }

    fn age(&self, idle: &mut Idle, hvas: Span<Hva>, seen: &mut dyn FnMut(&AccessedPages<Hva>)) {
        for space in &self.spaces {
            self.pass_over(space, idle, hvas, How::by_links(), |hvas, _| {
                seen(hvas);
                true
            });
        }
    }

    fn forget(&self, idle: &mut Idle, hvas: Span<Hva>) {
        let mut gfns = Span::<Gfn>::default();
        for space in &self.spaces {
            let walk = Walk::<F, H, Lockless>::on_any_seat(self, space, idle);
            let mut left = Behind::new(hvas);
            while let Some(part) = walk.behind(&left) {
                gfns = gfns.hull(&part.gfns);
                left = left.after(&part, part.gfns.end);
            }
        }
        if !gfns.is_empty() {
            let kicks = Kicks::new(&self.host);
            let nested = self.runs_nested();
            if nested || !self.tlb.is_broadcast(|| kicks.broadcast(gfns)) {
                self.tlb.ask((gfns, nested), |vcpu| kicks.kick(vcpu));
            }
            kicks.end();
        }
    }
}

/// An open invalidation that is told page by page. If the change panics, the invalidation pays its debts when it ends.
struct PageByPage<'vm, F: Format, H: Host> {
    begun: Begun<'vm, F, H>,
    /// The seat of an event that may not block.
    kept: Option<Borrowed<'vm>>,
}

impl<'vm, F: Format, H: Host> PageByPage<'vm, F, H> {
    /// Edits the range unless its pages are told; runs `change`; pays; ends.
    fn around<R>(mut self, idle: &mut Idle, change: impl FnOnce(&mut Idle, &mut dyn Pages) -> R) -> R {
        let (seat, is_told) = (self.seat(), self.begun.target.why.page_by_page());
        if !is_told {
            self.begun.edit(idle, &Scope::Whole, seat);
        }
        self.pay(is_told);
        let changed = change(idle, &mut self);
        self.pay(false);
        changed
    }

    fn seat(&self) -> Option<&'vm Seat> {
        self.kept.as_ref().map(Borrowed::for_owner)
    }

    /// Pays what is owed. If pages will be told after it, it may ask the host for table pages first.
    fn pay(&mut self, is_told: bool) {
        let may_block = self.kept.is_none();
        if may_block && is_told {
            self.begun.restock(true);
        }
        self.begun.settle(may_block);
    }
}

impl<F: Format, H: Host> Pages for PageByPage<'_, F, H> {
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        let seat = self.seat();
        self.begun.tell(idle, hvas, to, seat);
    }

    fn flush(&mut self, _: &mut Idle) {
        self.pay(true);
    }

    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        let seat = self.seat();
        self.begun.adopt(idle, hvas, seat);
        self.flush(idle);
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use crate::inject;
    use crate::notify::Again;
    use crate::table::formats::Npt4;
    use crate::*;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;
    use std::vec::Vec;

    struct Nowhere;

    impl Host for Nowhere {
        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            Err(HostError::Fault)
        }
    }

    /// The resource of which all others are taken.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum All {
        Seats,
        Places,
    }

    /// Whether an event that may not block ends by itself while all other seats or places are taken, and there is no
    /// memory for more. It tells a page, settles it and flushes. Then the others are freed.
    fn tells_while_taken(all: All) -> bool {
        let vm = Vm::<Npt4, _>::builder(Nowhere).build().unwrap();
        let [hvas, elsewhere] = [0, 1 << 30].map(|start| Span::sized(Hva(start), 4096));
        let event = Event { may_block: false, ..Event::new(hvas, Reason::Reclaim) };
        let (ready, go_on, told) = (channel(), channel(), channel());
        thread::scope(|scope| {
            let vm = &vm;
            scope.spawn(move || {
                let tell = |idle: &mut Idle, pages: &mut dyn Pages| {
                    ready.0.send(()).unwrap();
                    go_on.1.recv().unwrap();
                    pages.changed(idle, hvas, None);
                    pages.settle(idle, hvas);
                    pages.flush(idle);
                    told.0.send(()).unwrap();
                };
                let work = || vm.around(&mut Idle::take().unwrap(), event, &mut { tell }).unwrap();
                inject::every(inject::Point::Alloc, 1, work);
            });
            ready.1.recv().unwrap();
            let seats: Vec<_> =
                core::iter::from_fn(|| (all == All::Seats).then(|| vm.try_borrow_seat())?).collect();
            let others = if all == All::Places { 4031 } else { 0 };
            let places: Vec<_> = (0..others).map(|_| vm.invalidate(elsewhere, Reason::Clear)).collect();
            let again = vm.around(&mut Idle::take().unwrap(), event, &mut |_, _| panic!("nothing changes"));
            assert_eq!(again, Err(Again), "{all:?} are all taken");
            go_on.0.send(()).unwrap();
            let alone = told.1.recv_timeout(Duration::from_secs(10)).is_ok();
            drop((seats, places));
            alone
        })
    }

    #[test]
    fn an_event_that_may_not_block_keeps_its_seat() {
        assert!(tells_while_taken(All::Seats));
    }

    #[test]
    fn an_event_that_may_not_block_keeps_its_place() {
        assert!(tells_while_taken(All::Places));
    }

    /// A host that resolves each address to the same page.
    struct One;

    impl Host for One {
        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage::PLAIN)
        }
    }

    /// Tells `told` in a change of the first page. The change is one of a part of the page where `part` says so.
    fn tells(told: Span<Hva>, part: bool) {
        let (vm, mut idle) = (Vm::<Npt4, _>::builder(One).build().unwrap(), Idle::take().unwrap());
        let announced = if part { Span::sized(Hva(16), 16) } else { Span::sized(Hva(0), 4096) };
        vm.change_pages(&mut idle, announced, PageWhy::Reclaim, |idle, pages| {
            pages.changed(idle, told, None);
        });
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "announce all that changes")]
    fn a_page_outside_of_the_range_is_not_told() {
        tells(Span::sized(Hva(4096), 4096), false);
    }

    #[test]
    fn all_of_a_page_is_told_where_the_range_is_a_part_of_it() {
        tells(Span::sized(Hva(0), 4096), true);
        tells(Span::default(), true);
    }

    /// A change settles a page whose earlier invalidation has not flushed.
    #[test]
    fn a_page_is_settled_before_it_is_copied() {
        let vm = &Vm::<Npt4, _>::builder(One).build().unwrap();
        let (hvas, mut idle) = (Span::sized(Hva(0), 4096), Idle::take().unwrap());
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1, Hva(0)))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
        let first = vm.invalidate(hvas, Reason::Migrate);
        let owed = first.apply(&mut idle);
        let copies = || {
            let (before, mut flushes) = (vm.stats().flushes.paid, 0);
            let mut tell = |idle: &mut Idle, pages: &mut dyn Pages| {
                pages.settle(idle, hvas);
                flushes = vm.stats().flushes.paid - before;
            };
            vm.around(&mut Idle::take().unwrap(), Event::new(hvas, Reason::ChangePte), &mut tell).unwrap();
            flushes
        };
        let flushes = thread::scope(|scope| scope.spawn(copies).join().unwrap());
        drop(owed.settle());
        assert_eq!(flushes, 1);
    }
}
