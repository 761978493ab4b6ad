//! The settings of an oracle, and its handle for the embedder.

use super::state::World;
#[cfg(doc)]
use super::violation::Rule;
use super::violation::Violation;
use crate::addr::{Gfn, Pfn};
use crate::slots::SpaceId;
use crate::sync::prim::Mutex;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

/// The settings of an oracle: see [`Builder::checked_with`](crate::Builder::checked_with).
#[derive(Clone)]
pub struct Checks {
    report: Arc<dyn Fn(&Violation) + Send + Sync>,
    shares: bool,
    patience: Duration,
}

impl Default for Checks {
    /// Each report is a panic. A frame backs one writable address. A kick is late after ten seconds.
    fn default() -> Self {
        Self { report: Arc::new(panics), shares: false, patience: Duration::from_secs(10) }
    }
}

impl Checks {
    /// Calls `report` for each violation, on the thread that broke the rule, instead of panicking. It may be inside a
    /// section of the read side: the rules of [`Host::lookup`](crate::Host::lookup) apply.
    #[must_use]
    pub fn report(self, report: impl Fn(&Violation) + Send + Sync + 'static) -> Self {
        Self { report: Arc::new(report), ..self }
    }

    /// Allows one frame at several addresses, and as a table page: for hosts with shared memory, and for those whose
    /// frames are no machine frames.
    #[must_use]
    pub fn shared_frames(self) -> Self {
        Self { shares: true, ..self }
    }

    /// Sets after which time a kick counts as late. Needs the feature `std`.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").field("shares", &self.shares).finish_non_exhaustive()
    }
}

fn panics(violation: &Violation) {
    #[cfg(feature = "std")]
    if std::thread::panicking() {
        return;
    }
    panic!("{violation}");
}

/// The oracle of a VM, for facts that only the embedder knows. Without [`Builder::checked`](crate::Builder::checked) its
/// functions do nothing.
#[derive(Debug, Default)]
pub struct Oracle(Option<Box<Ghost>>);

impl Oracle {
    pub(super) fn new(checks: Option<Checks>, logs: bool, last: Pfn) -> Self {
        Self(checks.map(|checks| {
            let world = World::new(checks.shares, logs, last);
            Box::new(Ghost { world: Mutex::new(world), checks })
        }))
    }

    /// Makes a step, and then reports what it found, outside the lock. `None` if the oracle is off.
    #[inline]
    pub(super) fn step<R>(&self, step: impl FnOnce(&mut World) -> R) -> Option<R> {
        let Ghost { world, checks } = &**self.0.as_ref()?;
        let mut world = world.lock();
        let result = step(&mut world);
        let found = world.take_found();
        drop(world);
        for violation in &found {
            (checks.report)(violation);
        }
        Some(result)
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn patience(&self) -> Duration {
        self.0.as_ref().map_or(Duration::MAX, |ghost| ghost.checks.patience)
    }

    /// The host is about to use this frame for something else. Reports [`Rule::FreedInUse`] if a guest may use it.
    pub fn frees(&self, pfn: Pfn) {
        self.step(|world| world.frees(pfn));
    }

    /// The VMM has stored to this frame itself, and marks it dirty by `mark`. The next harvest must have it, unless one
    /// begins meanwhile.
    pub fn stores<R>(&self, space: SpaceId, gfn: Gfn, mark: impl FnOnce() -> R) -> R {
        let before = self.step(|world| world.takes);
        let result = mark();
        self.step(|world| {
            if before == Some(world.takes) {
                world.stores(space, gfn);
            }
        });
        result
    }
}

#[derive(Debug)]
struct Ghost {
    world: Mutex<World>,
    checks: Checks,
}
