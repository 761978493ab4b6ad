//! Who is told of changes: any number of secondary MMUs, each told of each change.
//!
//! ```text
//! first.around ─── begin
//!   second.around ── begin
//!     the change, once; what it tells page by page goes to both
//!   ◀─────────────── end
//! ◀──────────────── end
//! ```
//! The calls are nested, so whoever has begun ends, whatever those inside answer. A change that may not wait is called
//! off by the first who would have to ([`Again`]): those around it have begun for nothing, and end. A change that may wait
//! is made: one who refuses it all the same, against its contract, is passed over.
//!
//! **Coming and going** is possible at any time; it waits for changes in progress, since one who missed the beginning of
//! a change could copy what it is about to take away. Who goes is told [`Why::Exit`](slat::Why::Exit) over all addresses, which is the
//! last thing it hears. Inside [`around`](SecondaryMmu::around) nobody can come or go: the change holds the same lock.

use slat::notify::{Both, Nobody};
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

    /// Whether it was there. Those who were dropped go along.
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
        nest(&self.0, idle, event, &mut Nobody, change)
    }
}

/// `told` is those who were told before.
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
