//! Who is told of changes: any number of secondary MMUs, each told of each change.
//!
//! ```text
//! first.around ─── begin
//!   second.around ── begin
//!     the change, once; what it tells page by page goes to both
//!   ◀─────────────── end
//! ◀──────────────── end
//! ```
//! The calls are nested, so each listener that has begun ends, whatever the listeners inside it answer. The first listener that
//! would have to wait calls off a change that may not wait ([`Again`]); the listeners around it end. A change that may wait is
//! made: a listener that refuses it, against its contract, is passed over.
//!
//! **Coming and going** is possible at any time; it waits for changes in progress, since a listener that missed the
//! beginning of a change could copy what the change is about to take away. A listener that goes is told
//! [`Why::Exit`](slat::Why::Exit) over all addresses, and nothing after it. Inside [`around`](SecondaryMmu::around) no listener can
//! come or go: the change holds the same lock.

use slat::notify::{Both, NoPages};
use slat::{Again, Event, Hva, Idle, Pages, SecondaryMmu, Span, Young};
use std::sync::{Arc, Weak};

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Weak<dyn SecondaryMmu>>);

impl Listeners {
    pub(crate) fn add(&mut self, mmu: Weak<dyn SecondaryMmu>) {
        self.remove(&mmu);
        self.0.push(mmu);
    }

    /// Removes it, and listeners that were dropped. Returns whether it was there.
    pub(crate) fn remove(&mut self, mmu: &Weak<dyn SecondaryMmu>) -> bool {
        let is_it = |other: &Weak<dyn SecondaryMmu>| std::ptr::addr_eq(other.as_ptr(), mmu.as_ptr());
        let known = self.0.iter().any(is_it);
        self.0.retain(|other| !is_it(other) && other.strong_count() > 0);
        known
    }

    /// Each of them that is still there.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<dyn SecondaryMmu>> + '_ {
        self.0.iter().filter_map(Weak::upgrade)
    }

    /// Whether all of them take a change page by page.
    pub(crate) fn heed_pages(&self) -> bool {
        self.each().all(|mmu| mmu.heeds_pages())
    }

    /// Whether any page of the range was used through one of them; whatever else `young` asks for, of all of them. A test
    /// stops at the first that says yes.
    pub(crate) fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        let mut found = false;
        for mmu in self.each() {
            found |= mmu.young(idle, hvas, young);
            if found && young == Young::Test {
                break;
            }
        }
        found
    }

    /// Tells them all, one inside the other, and runs `change` in the innermost.
    pub(crate) fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        nest(&self.0, idle, event, &mut NoPages, change)
    }
}

/// `told` passes each change on to the listeners that were told before.
fn nest(
    listeners: &[Weak<dyn SecondaryMmu>],
    idle: &mut Idle,
    event: Event,
    told: &mut dyn Pages,
    change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
) -> Result<(), Again> {
    let Some((first, rest)) = listeners.split_first() else {
        change(idle, told);
        return Ok(());
    };
    let Some(mmu) = first.upgrade() else { return nest(rest, idle, event, told, change) };
    let mut inner = None;
    let _ = mmu.around(idle, event, &mut |idle, pages| {
        inner = Some(nest(rest, idle, event, &mut Both(told, pages), change));
    });
    match inner {
        Some(inner) => inner,
        None if event.may_block => nest(rest, idle, event, told, change),
        None => Err(Again),
    }
}
