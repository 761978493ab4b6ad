//! Aging passes by an open walk: over guest frames, or over the mappings of a host range.

use super::Walk;
use crate::addr::{Gfn, Hva, Span};
use crate::age::AccessedPages;
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::{Accessed, Scan};
use crate::hooks::{Nested, NestedHooks};
use crate::host::Host;
use crate::slots::behind::Behind;
use crate::sync::mode::{Lockless, Mode};
use crate::table::format::Format;

impl<F: Format, H: Host> Walk<'_, F, H, Lockless> {
    /// Calls `seen` with the pages of `gfns` that were accessed since the last pass, table by table in order, and
    /// clears their Accessed state. A large page counts as all of its pages. `seen` runs inside a section of the read
    /// side: it must be short, and must not wait for another thread.
    ///
    /// Owes no flush. A page that a TLB holds is noticed only after the TLB forgets it.
    ///
    /// ```
    /// # use slat::*;
    /// # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
    /// let mut young = 0;
    /// vm.memory().lockless(idle).age(Span::new(Gfn(0), Gfn(1 << 18)), |seen| young += seen.count());
    /// println!("{young} pages of the first GiB were used since the last pass");
    /// # }
    /// ```
    pub fn age(&mut self, gfns: Span<Gfn>, mut seen: impl FnMut(&AccessedPages<Gfn>)) {
        self.pass(gfns, How::by_links(), |accessed| {
            seen(&accessed);
            true
        });
    }

    /// Whether any page of `gfns` was accessed. Changes nothing, and stops at the first such page.
    pub fn is_young(&mut self, gfns: Span<Gfn>) -> bool {
        self.young_by(gfns, Scan::detect())
    }

    /// Like [`is_young`](Self::is_young) with a given scan, for measurements.
    #[cfg(feature = "baselines")]
    #[doc(hidden)]
    pub fn is_young_by(&mut self, gfns: Span<Gfn>, scan: Scan) -> bool {
        self.young_by(gfns, scan)
    }

    fn young_by(&mut self, gfns: Span<Gfn>, scan: Scan) -> bool {
        let mut found = false;
        self.pass(gfns, How::every_leaf(Found::Kept).by(scan), |_| {
            found = true;
            false
        });
        found
    }
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// Makes a pass over `gfns`, with yields, including L2's use of them.
    fn pass(&mut self, gfns: Span<Gfn>, how: How, mut seen: impl FnMut(AccessedPages<Gfn>) -> bool) {
        let mut at = gfns.start;
        while let Some(next) = Nested::next_used(self, Span::new(at, gfns.end)) {
            let used = match next {
                Ok(used) => used,
                Err(goal) if goal >= gfns.end => break,
                Err(goal) => Span::new(goal, goal),
            };
            let young = self.young_with_l2(used, how);
            let goes_on =
                self.pass_own(Span::new(at, used.start), how, &mut seen) && young.is_none_or(&mut seen);
            if !goes_on {
                return;
            }
            at = used.end;
            self.yield_section();
        }
        self.pass_own(Span::new(at, gfns.end), how, &mut seen);
    }

    /// Makes a pass over the guest's own mappings. Returns false if `seen` has stopped it.
    fn pass_own(
        &mut self,
        gfns: Span<Gfn>,
        how: How,
        seen: &mut impl FnMut(AccessedPages<Gfn>) -> bool,
    ) -> bool {
        let (vm, mut goes_on) = (self.vm, true);
        let mut pass = Pass::<F, Accessed, _, _>::new(vm.tables(), how, |accessed| {
            goes_on = seen(accessed);
            goes_on
        });
        let mut at = gfns.start;
        while at < gfns.end.min(Gfn(1 << F::FRAME_BITS)) {
            // SAFETY: this walk is one section from its opening or last yield, after which it read the root, to the next
            // yield.
            at = unsafe { pass.stretch(self.root(), Span::new(at, gfns.end)) };
            if at < gfns.end.min(Gfn(1 << F::FRAME_BITS)) {
                self.yield_section();
            }
        }
        goes_on
    }

    /// Returns the pages of `gfns`, within 2 MiB, that the guest or L2 has accessed.
    #[cold]
    fn young_with_l2(&self, gfns: Span<Gfn>, how: How) -> Option<AccessedPages<Gfn>> {
        if gfns.is_empty() {
            return None;
        }
        let mut bits = Nested::young(self, gfns, how.clears());
        let mut pass = Pass::<F, Accessed, _, _>::new(self.vm.tables(), how, |own: AccessedPages<Gfn>| {
            let by = own.first().0 - gfns.start.0;
            own.pages().for_each(|page| {
                let bit = page.0 - own.first().0 + by;
                bits[(bit / 64) as usize] |= 1 << (bit % 64);
            });
            true
        });
        // One leaf table, so no yield is due.
        // SAFETY: as in `pass_own`.
        unsafe { pass.stretch(self.root(), gfns) };
        let count = bits.iter().map(|word| word.count_ones()).sum();
        (count > 0).then(|| AccessedPages::new(gfns.start, (gfns.len() as u32, count), bits))
    }

    /// Makes a pass over all mappings of `hvas`. After a yield it looks the slots up again, because frames may have
    /// other pages by then.
    pub(crate) fn pass_behind(
        &mut self,
        hvas: Span<Hva>,
        how: How,
        mut seen: impl FnMut(&AccessedPages<Hva>, &AccessedPages<Gfn>) -> bool,
    ) {
        let vm = self.vm;
        let mut left = Behind::new(hvas);
        let mut go_on = true;
        while go_on && let Some(part) = self.behind(&left) {
            let mut told = |accessed: AccessedPages<Gfn>| {
                go_on = seen(&accessed.at(part.hva_of(accessed.first())), &accessed);
                go_on
            };
            let used = Nested::next_used(self, part.gfns);
            let goal = if let Some(Ok(used)) = used
                && used.start == part.gfns.start
            {
                self.young_with_l2(used, how).map(&mut told);
                used.end
            } else {
                let end = match used {
                    Some(Ok(used)) => used.start,
                    Some(Err(goal)) => goal,
                    None => part.gfns.end,
                };
                let own = Span::new(part.gfns.start, end);
                let mut pass = Pass::<F, Accessed, _, _>::new(vm.tables(), how, told);
                // SAFETY: as above.
                unsafe { pass.stretch(self.root(), own) }
            };
            left = left.after(&part, goal);
            if goal < part.gfns.end {
                self.yield_section();
            }
        }
    }
}
