//! A VM on its host, run by a plan, and what must be true of both at any instant.
//!
//! Looked at after each write to a table page, after each change of a TLB, of the host's pages, or of the memslots:
//!
//! * No vCPU that is in the guest could use a frame that its host does not have there, nor store where it may not: neither
//!   by its TLB, nor by a walk from its root, nor by a walk from a table that it remembers.
//! * Nor could it store to a frame whose stores are tracked.
//! * A frame that is held is used only while its host has it there, for that access.
//! * No walk looks at a table page that was taken apart.
//!
//! And in each access, and in the end:
//!
//! * A frame that a guest uses holds every store to its page.
//! * An access is emulated only where no memslot is.
//! * What guests and devices have stored is what was copied, when the last harvest has been.
//! * The tables map nothing that the host has not, every table page and every leaf is accounted for, and all memory goes back.
//! * Every thread ends.
//!
//! | file | idea |
//! |---|---|
//! | `host`, `memory` | the primary MMU; memory for tables |
//! | `guest`, `tlb` | a vCPU, and what its processor remembers |
//! | `slots` | which memslot is where, while transactions are under way |
//! | `thread` | what threads do that are no vCPU |
//! | `look` | the oracle |
//! | `watch` | the schedule, and the moments at which the oracle looks |
//! | `run` | a plan, run |

mod guest;
mod host;
mod look;
mod memory;
mod run;
mod slots;
mod thread;
mod tlb;
mod watch;

pub use run::{Outcome, run};

use crate::plan::Plan;
use host::{Handle, Primary};
use slat::{Access, Format, Gfn, Pfn, Span, Vm};
use slots::Windows;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// Of which sort.
    pub what: &'static str,
    /// Where, and how.
    pub how: String,
}

/// A guest could use, or has used, a frame that its host does not have there.
pub const STALE: &str = "a guest can use a frame that is not there, or not so";
/// A guest could store, or has stored, where a listener is to be told first.
pub const UNTOLD: &str = "a guest can store to a frame whose stores are tracked";
/// A page of words that only the engine writes, into pages that are in no table, was read.
pub const STRAYED: &str = "a table page is used that was taken apart";
/// A store is missing from the frame.
pub const TORN: &str = "a frame lacks a store to its page";
/// An access to a memslot was said to go to none.
pub const EMULATED: &str = "an access to memory was emulated";
/// A store is missing from the copy.
pub const LOST: &str = "a store is missing from the copy";
/// A leaf is left over.
pub const LEFT: &str = "a frame is mapped in the end that is not there, or not so";
/// The books do not balance.
pub const BOOKS: &str = "leaves or table pages were miscounted, or lost";
/// Memory for tables did not come back.
pub const LENT: &str = "memory for tables did not come back";
/// Too many steps.
pub const ENDLESS: &str = "it does not end";
/// No CPU can go on.
pub const STUCK: &str = "every CPU waits for another";
/// The engine, or the world, panicked.
pub const PANICKED: &str = "it panicked";

/// See the module's header. All CPUs that share it are one thread of this machine.
pub struct World<'p, F: Format> {
    /// The VM.
    pub vm: Vm<F, Handle>,
    /// The host under it.
    pub host: Arc<Primary>,
    plan: &'p Plan,
    /// The TLB of each vCPU.
    pub tlbs: Vec<RefCell<tlb::Tlb>>,
    /// Which memslot is where.
    pub windows: Windows,
    /// Frames whose stores are tracked, once for each tracker.
    tracked: RefCell<Vec<Span<Gfn>>>,
    /// Frames that are held and used: by which frame of the host, for which access.
    kept: RefCell<Vec<(Gfn, Pfn, Access)>>,
    /// Stores to each page of the host when it was copied.
    copies: RefCell<BTreeMap<u64, u64>>,
    /// Accesses so far.
    steps: Cell<u64>,
    wrong: RefCell<Option<Wrong>>,
    /// What happened, if that is asked for.
    story: Option<RefCell<Vec<String>>>,
}

// SAFETY: all CPUs of a world are coroutines of one thread.
unsafe impl<F: Format> Sync for World<'_, F> {}

impl<F: Format> World<'_, F> {
    /// Accesses so far.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// The first thing that goes wrong is what is told.
    pub fn wrong(&self, what: &'static str, how: impl FnOnce() -> String) {
        let mut wrong = self.wrong.borrow_mut();
        if wrong.is_none() {
            let how = how();
            if let Some(story) = &self.story {
                story.borrow_mut().push(format!("{:>10} {what}: {how}", self.steps()));
            }
            *wrong = Some(Wrong { what, how });
        }
    }

    /// Whether anything has gone wrong.
    pub fn is_wrong(&self) -> bool {
        self.wrong.borrow().is_some()
    }

    /// Something has happened on the CPU that runs.
    pub fn story(&self, what: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            let cpu = slat_machine::explore::cpu();
            let cpu = cpu.map_or_else(|| "world".to_owned(), |cpu| format!("CPU {cpu}"));
            story.borrow_mut().push(format!("{:>10} {cpu:>7} {}", self.steps(), what()));
        }
    }

    /// A page of the host is copied as it is.
    pub fn copied(&self, page: u64) {
        self.copies.borrow_mut().insert(page, self.host.stores(page));
    }
}
