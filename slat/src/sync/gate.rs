//! The entry of a walk: a section of the read side, which keeps what the walk reads.
//!
//! For measurements, the lock of a baseline policy comes before it ([`baselines`](super::baselines), with the feature of
//! that name). Under every policy a walk is a section, which alone keeps the memslots that it reads, as in KVM, whose
//! faults also are SRCU sections. With a lock alone, a version of the slots could be freed during a walk.

#[cfg(feature = "baselines")]
pub(crate) use super::baselines::{Baseline, Lock, Locked};
use super::mode::Mode;
use super::readside::{ReadSide, Seat, Section, Within};
#[cfg(not(feature = "baselines"))]
pub(crate) use none::{Baseline, Lock, Locked};

/// No baselines.
#[cfg(not(feature = "baselines"))]
#[expect(clippy::unused_self, clippy::extra_unused_type_parameters, reason = "as with baselines")]
mod none {
    use super::Mode;
    use core::marker::PhantomData;

    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Baseline(());

    impl Baseline {
        #[inline(always)]
        pub(crate) fn has_lock(self) -> bool {
            false
        }

        #[inline(always)]
        pub(crate) fn ignores_reasons(self) -> bool {
            false
        }

        #[inline(always)]
        pub(crate) fn ages_alone(self) -> bool {
            false
        }
    }

    pub(crate) struct Lock;
    pub(crate) struct Locked<'g>(PhantomData<&'g Lock>);

    impl Lock {
        pub(crate) fn new(_: Baseline) -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn take<M: Mode>(&self) -> Locked<'_> {
            Locked(PhantomData)
        }
    }

    impl Locked<'_> {
        #[inline(always)]
        pub(crate) fn bump(&self) {}
    }
}

/// An open gate. Dropping it leaves.
pub(crate) struct Gate<'g> {
    /// Released before the section ends.
    held: Locked<'g>,
    section: Section<'g>,
}

impl Lock {
    /// Enters in mode `M`. The borrow of `seat` and the caller's borrow of `Idle` keep it from entering twice.
    #[inline(always)]
    pub(crate) fn enter<'g, M: Mode>(&'g self, reads: &ReadSide, seat: &'g Seat) -> Gate<'g> {
        let held = self.take::<M>();
        // After the lock, for which this may have waited.
        Gate { held, section: reads.enter(seat) }
    }
}

impl Gate<'_> {
    /// See [`Section::within`].
    #[inline(always)]
    pub(crate) fn within(&self) -> Within<'_> {
        self.section.within()
    }

    /// Leaves, lets waiters in, and enters again in the same mode.
    #[inline]
    pub(crate) fn yield_section(&mut self, reads: &ReadSide) {
        self.held.bump();
        self.section.yield_section(reads);
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
