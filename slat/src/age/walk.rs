//! A pass over a VM: over guest frames, or over whatever memslots map of a host range.

use super::accessed::AccessedPages;
use super::pass::{Found, How, Pass};
use super::scan::{Accessed, Scan};
use crate::addr::{Gfn, Hva, Span};
use crate::host::{Host, Kicks};
use crate::notify::Young;
use crate::slots::publish::Behind;
use crate::space::Space;
use crate::sync::gate::MmuLock;
use crate::sync::idle::Idle;
use crate::sync::mode::{Exclusive, Lockless, Mode};
use crate::table::format::Format;
use crate::table::walk::Walk;
use crate::tlb::debt::Owed;
use crate::tlb::{Cause, FlushDebt};
use crate::vm::Vm;

impl<F: Format, H: Host> Walk<'_, F, H, Lockless> {
    /// Tells `seen` which pages of `gfns` were accessed since this was asked before, table by table in order, and makes
    /// them pages that were not. A large page is told as all of its pages. `seen` runs inside a section of the read
    /// side: it is short, and waits for nobody.
    ///
    /// No flush is owed, so none is paid: a page that a TLB holds is noticed when that forgets it.
    ///
    /// ```
    /// # use slat::*;
    /// # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
    /// let mut young = 0;
    /// vm.lockless(idle).age(Span::new(Gfn(0), Gfn(1 << 18)), |seen| young += seen.count());
    /// println!("{young} pages of the first GiB were used since the last pass");
    /// # }
    /// ```
    pub fn age(&mut self, gfns: Span<Gfn>, mut seen: impl FnMut(&AccessedPages<Gfn>)) {
        self.pass(gfns, How::by_links(), |accessed| {
            seen(&accessed);
            true
        });
    }

    /// Whether any page of `gfns` was accessed. Changes nothing; ends at the first.
    pub fn is_young(&mut self, gfns: Span<Gfn>) -> bool {
        self.is_young_by(gfns, Scan::detect())
    }

    /// The same by one of the scans, for measurements.
    #[doc(hidden)]
    pub fn is_young_by(&mut self, gfns: Span<Gfn>, scan: Scan) -> bool {
        let mut found = false;
        self.pass(gfns, How { scan, ..How::every_leaf(Found::Kept) }, |_| {
            found = true;
            false
        });
        found
    }
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// A pass over `gfns`, with rests.
    fn pass(&mut self, gfns: Span<Gfn>, how: How, seen: impl FnMut(AccessedPages<Gfn>) -> bool) {
        let vm = self.vm;
        let mut pass = Pass::<F, Accessed, H, _>::new(&vm.host, how, seen);
        let mut at = gfns.start;
        loop {
            // SAFETY: this walk is one section from its opening or last rest, in which the root is read, to the next.
            at = unsafe { pass.stretch(self.root(), Span::new(at, gfns.end)) };
            if at >= gfns.end.min(Gfn(1 << F::FRAME_BITS)) {
                return;
            }
            self.rest();
        }
    }

    /// The same over whatever is mapped of `hvas`. After a rest the slots are looked up again: frames may stand for
    /// other pages by then.
    fn pass_behind(
        &mut self,
        hvas: Span<Hva>,
        how: How,
        mut seen: impl FnMut(&AccessedPages<Hva>, &AccessedPages<Gfn>) -> bool,
    ) {
        let vm = self.vm;
        let slots = &self.space.memslots;
        let mut left = Behind::new(hvas);
        let mut go_on = true;
        while go_on && let Some(part) = slots.behind(&vm.reads, self.seat, &left) {
            let mut pass = Pass::<F, Accessed, H, _>::new(&vm.host, how, |accessed: AccessedPages<Gfn>| {
                go_on = seen(&accessed.at(part.hva_of(accessed.first())), &accessed);
                go_on
            });
            // SAFETY: as above.
            let goal = unsafe { pass.stretch(self.root(), part.gfns) };
            left = left.after(&part, goal);
            if goal < part.gfns.end {
                self.rest();
            }
        }
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Whether any page of `hvas` was accessed, and whatever else `young` asks for, in every address space.
    pub(crate) fn young_behind(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        let mut any = false;
        for space in &self.spaces {
            let mut owed = Owed::default();
            let found = if young == Young::Test { Found::Kept } else { Found::Cleared };
            // A page that a fault has brought is young, even before a walker has come through its links.
            self.pass_over(space, idle, hvas, How::every_leaf(found), |_, gfns| {
                any = true;
                if young == Young::ClearAndFlush {
                    gfns.pages().for_each(|gfn| owed.owe(Span::sized(gfn, 1)));
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

    /// As [`SecondaryMmu::age`](crate::SecondaryMmu::age) asks.
    pub(crate) fn age_behind(
        &self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        seen: &mut dyn FnMut(&AccessedPages<Hva>),
    ) {
        for space in &self.spaces {
            self.pass_over(space, idle, hvas, How::by_links(), |hvas, _| {
                seen(hvas);
                true
            });
        }
    }

    /// As [`SecondaryMmu::forget`](crate::SecondaryMmu::forget) asks.
    pub(crate) fn forget_behind(&self, idle: &mut Idle, hvas: Span<Hva>) {
        let mut gfns = Span::new(Gfn(0), Gfn(0));
        for space in &self.spaces {
            let walk = Walk::<F, H, Lockless>::on_any_seat(self, space, idle);
            let mut left = Behind::new(hvas);
            while let Some(part) = space.memslots.behind(&self.reads, walk.seat, &left) {
                gfns = gfns.hull(&part.gfns);
                left = left.after(&part, part.gfns.end);
            }
        }
        if !gfns.is_empty() {
            let kicks = Kicks::new(&self.host);
            self.tlb.ask(gfns, |vcpu| kicks.kick(vcpu));
            kicks.end();
        }
    }

    /// By this VM's policy: lockless, or under the lock as before the MGLRU aging series.
    fn pass_over(
        &self,
        space: &Space<F>,
        idle: &mut Idle,
        hvas: Span<Hva>,
        how: How,
        seen: impl FnMut(&AccessedPages<Hva>, &AccessedPages<Gfn>) -> bool,
    ) {
        if self.policy.lockless_aging || self.lock.policy() == MmuLock::None {
            Walk::<F, H, Lockless>::on_any_seat(self, space, idle).pass_behind(hvas, how, seen);
        } else {
            Walk::<F, H, Exclusive>::on_any_seat(self, space, idle).pass_behind(hvas, how, seen);
        }
    }
}
