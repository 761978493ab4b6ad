//! The listeners: any number of secondary MMUs, each notified of every change.
//!
//! ```text
//! first.around ─── begin
//!   second.around ── begin
//!     the change, once; page-by-page notifications go to both
//!   ◀─────────────── end
//! ◀──────────────── end
//! ```
//! The calls are nested, so each listener that has begun also ends, whatever the inner listeners return. A
//! change that may not wait is called off by the first listener that would have to wait ([`Again`]); the
//! listeners around it end. A change that may wait is always made: a listener that refuses it, against its
//! contract, is skipped.
//!
//! **Registering and unregistering** is possible at any time. Both wait for changes in progress. A listener
//! that missed the beginning of a change could otherwise copy a page that the change is about to take away. A
//! listener that is unregistered gets [`Reason::Exit`](slat::Reason::Exit) over all addresses, and no call after
//! that. Inside [`around`](SecondaryMmu::around) no listener can be registered or unregistered: the change
//! holds the same lock.

use slat::notify::{Both, NoPages};
use slat::{Again, Event, Hva, Idle, Pages, SecondaryMmu, Span, Young};
use std::sync::{Arc, Weak};

/// The registered secondary MMUs.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Weak<dyn SecondaryMmu>>);

impl Listeners {
    pub(crate) fn add(&mut self, mmu: Weak<dyn SecondaryMmu>) {
        self.remove(&mmu);
        self.0.push(mmu);
    }

    /// Removes a listener, and those that were dropped. Returns whether it was registered.
    pub(crate) fn remove(&mut self, mmu: &Weak<dyn SecondaryMmu>) -> bool {
        let is_it = |other: &Weak<dyn SecondaryMmu>| std::ptr::addr_eq(other.as_ptr(), mmu.as_ptr());
        let known = self.0.iter().any(is_it);
        self.0.retain(|other| !is_it(other) && other.strong_count() > 0);
        known
    }

    /// Returns the listeners that still exist.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<dyn SecondaryMmu>> + '_ {
        self.0.iter().filter_map(Weak::upgrade)
    }

    /// Whether all of them accept changes page by page.
    pub(crate) fn heed_pages(&self) -> bool {
        self.each().all(|mmu| mmu.heeds_pages())
    }

    /// Whether any page of the range was accessed through a listener. `Young::Test` stops at the first yes;
    /// other kinds ask all.
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

    /// Calls `around` of all listeners, nested, and runs `change` in the innermost.
    pub(crate) fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        nest(&self.0, idle, event, &mut NoPages, change)
    }
}

/// `told` passes each change on to the listeners that have begun.
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
