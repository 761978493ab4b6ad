//! An aging pass by an open walk: over guest frames, or over whatever memslots map of a host range.

use super::Walk;
use crate::addr::{Gfn, Hva, Span};
use crate::age::AccessedPages;
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::{Accessed, Scan};
use crate::host::Host;
use crate::slots::behind::Behind;
use crate::sync::mode::{Lockless, Mode};
use crate::table::format::Format;

impl<F: Format, H: Host> Walk<'_, F, H, Lockless> {
    /// Tells `seen` which pages of `gfns` were accessed since this was asked before, table by table in order, and makes
    /// them pages that were not. A large page is told as all of its pages. `seen` runs inside a section of the read
    /// side: it is short, and waits for no other thread.
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
        self.pass(gfns, How::every_leaf(Found::Kept).by(scan), |_| {
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
    pub(crate) fn pass_behind(
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
