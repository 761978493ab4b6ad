//! Counters of flushes by cause. They tell an administrator what makes vCPUs wait.
//!
//! A flush interrupts vCPUs, so counters that all payers share cost nothing in comparison. They have their own cache
//! lines, because a vCPU reads their neighbours when it enters the guest.

use crate::sync::prim::{AtomicU64, Padded, Relaxed};
pub use crate::why::Cause;
use core::fmt;

/// The flushes of one cause, or of all: see [`Stats::flushes`](crate::Stats::flushes).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Flushes {
    /// Number of edits that took something away. All edits of nested guests' shadows that one shootdown pays for count
    /// as one edit, of no page.
    pub requested: u64,
    /// Number of shootdowns. Each paid for at least one edit.
    pub paid: u64,
    /// Number of frames that these edits covered.
    pub pages: u64,
}

impl fmt::Display for Flushes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "paid {}, requested {}, pages {}", self.paid, self.requested, self.pages)
    }
}

impl Flushes {
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            requested: self.requested + other.requested,
            paid: self.paid + other.paid,
            pages: self.pages + other.pages,
        }
    }

    /// Returns what was counted since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        since!(self, earlier: requested, paid, pages;)
    }
}

/// The flushes of each cause: see [`Stats::flushes_by`](crate::Stats::flushes_by).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushesByCause([Flushes; Cause::COUNT]);

impl FlushesByCause {
    /// Returns the flushes of one cause.
    pub fn of(&self, cause: Cause) -> Flushes {
        self.0[cause.index()]
    }

    /// Returns each cause with its flushes, in the order of [`Cause::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Cause, Flushes)> {
        Cause::ALL.into_iter().zip(self.0)
    }

    /// Returns the sum over all causes.
    pub fn total(&self) -> Flushes {
        self.0.iter().fold(Flushes::default(), |all, &one| all.with(one))
    }

    /// Returns what was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(core::array::from_fn(|cause| self.0[cause].since(earlier.0[cause])))
    }
}

/// The order is that of [`Cause::ALL`].
impl From<[Flushes; Cause::COUNT]> for FlushesByCause {
    fn from(flushes: [Flushes; Cause::COUNT]) -> Self {
        Self(flushes)
    }
}

/// A map from each cause's [name](Cause::name), also of those without flushes.
#[cfg(feature = "serde")]
impl serde::Serialize for FlushesByCause {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(cause, flushes)| (cause.name(), flushes)))
    }
}

/// Shows only causes with flushes, by name.
impl fmt::Debug for FlushesByCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = self.iter().filter(|(_, flushes)| *flushes != Flushes::default());
        f.debug_map().entries(some.map(|(cause, flushes)| (cause.name(), flushes))).finish()
    }
}

/// The counters of each cause: shootdowns requested, shootdowns paid, pages.
#[derive(Debug, Default)]
pub(crate) struct ByCause(Padded<[[AtomicU64; 3]; Cause::COUNT]>);

impl ByCause {
    /// Counts one shootdown, for `edits` edits of `pages` pages.
    pub(crate) fn paid(&self, cause: Cause, edits: u64, pages: u64) {
        for (counter, more) in self.0[cause.index()].iter().zip([edits, 1, pages]) {
            counter.fetch_add(more, Relaxed);
        }
    }

    /// Returns all counters, in the order of [`Cause::ALL`].
    pub(crate) fn read(&self) -> FlushesByCause {
        FlushesByCause(self.0.each_ref().map(|counters| {
            let [requested, paid, pages] = counters.each_ref().map(|counter| counter.load(Relaxed));
            Flushes { requested, paid, pages }
        }))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::table::formats::Ept4;
    use crate::*;

    struct Identity;

    impl Host for Identity {
        fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
        }
    }

    #[test]
    fn each_cause_has_a_unique_index_and_name() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), index);
            assert_eq!(Cause::ALL.iter().filter(|other| other.name() == cause.name()).count(), 1);
        }
    }

    /// Each cause takes something away from two pages of eight, once. No other cause is charged for it.
    #[test]
    fn each_flush_is_counted_for_its_cause() {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Ept4, _>::builder(Identity).build().unwrap();
        let slot = Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30));
        vm.memory().commit(&mut idle, |tx| tx.create(slot.log_dirty())).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let hvas = Span::sized(Hva((1 << 30) + 0x2000), 0x2000);
        let mut expected = [Flushes::default(); Cause::COUNT];
        for cause in [
            Cause::Change(Reason::Migrate),
            Cause::Change(Reason::Slot),
            Cause::DirtyLog,
            Cause::WriteProtect,
            Cause::Aging,
            Cause::Change(Reason::Migrate),
        ] {
            for gfn in 2..4 {
                let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }).unwrap();
            }
            let before = vm.stats();
            match cause {
                Cause::Change(why) => assert!(vm.invalidate(hvas, why).apply(&mut idle).owes()),
                Cause::DirtyLog => vm.memory().harvest_all(&mut idle).unwrap().commit(),
                Cause::WriteProtect => {
                    assert!(vm.memory().write_protect(&mut idle, Span::sized(Gfn(2), 2)).settle());
                }
                Cause::Aging => assert!(vm.young(&mut idle, hvas, Young::ClearAndFlush)),
            }
            let counted = &mut expected[cause.index()];
            counted.requested += 2;
            counted.paid += 1;
            counted.pages += 2;
            let after = vm.stats();
            assert_eq!(after.flushes_by, expected.into(), "{cause:?}, before: {before:?}");
            let one = Flushes { requested: 2, paid: 1, pages: 2 };
            let since = after.since(&before);
            assert_eq!((since.flushes_by.of(cause), since.flushes), (one, one));
            assert_eq!(after.flushes.pages, before.flushes.pages + 2);
        }
    }
}
