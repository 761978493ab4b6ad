//! Aging passes by an open walk: over guest frames, or over the mappings of a host range.

use super::Walk;
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::{Accessed, Scan};
use crate::hooks::{Nested, NestedHooks};
use crate::slots::behind::Behind;
use crate::sync::mode::{Lockless, Mode};
use crate::{AccessedPages, Format, Gfn, Host, Hva, Span};

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
        let (mut at, end, mut goes_on) = (gfns.start, gfns.end.min(Gfn(1 << F::FRAME_BITS)), true);
        while goes_on && at < end {
            at = self.pass_some(Span::new(at, end), how, |accessed| {
                goes_on = seen(accessed);
                goes_on
            });
            if at < end {
                self.yield_section();
            }
        }
    }

    /// Makes a pass over a first part of `gfns`, without a yield: over pages that L2 uses, if they begin there, or up to
    /// them. Returns where to go on, after a yield unless it is the end.
    fn pass_some(&self, gfns: Span<Gfn>, how: How, seen: impl FnMut(AccessedPages<Gfn>) -> bool) -> Gfn {
        let end = match Nested::next_used(self, gfns) {
            Some(Ok(used)) if used.start == gfns.start => {
                self.young_with_l2(used, how).map(seen);
                return used.end;
            }
            Some(Ok(used)) => used.start,
            Some(Err(goal)) => goal,
            None => gfns.end,
        };
        let mut pass = Pass::<F, Accessed, _, _>::new(self.vm.tables(), how, seen);
        // SAFETY: this walk is one section from its opening or last yield, after which it reads the root, to the next one.
        unsafe { pass.stretch(self.root(), Span::new(gfns.start, end)) }
    }

    /// Returns the pages of `gfns`, within 2 MiB, that the guest or L2 has accessed.
    #[cold]
    fn young_with_l2(&self, gfns: Span<Gfn>, how: How) -> Option<AccessedPages<Gfn>> {
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
        // SAFETY: as in `pass_some`.
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
        let (mut left, mut goes_on) = (Behind::new(hvas), true);
        while goes_on && let Some(part) = self.behind(&left) {
            let goal = self.pass_some(part.gfns, how, |accessed| {
                goes_on = seen(&accessed.at(part.hva_of(accessed.first())), &accessed);
                goes_on
            });
            left = left.after(&part, goal);
            if goal < part.gfns.end {
                self.yield_section();
            }
        }
    }
}
