//! A VM on its host, run by a plan, with the properties that must hold at every instant.
//!
//! Checked after each write to a table page, and after each change of a TLB, of the host's pages or of the memslots:
//!
//! * No vCPU in the guest can use a frame that its host does not map there, or store to a read-only page: by its TLB,
//!   by a walk from its root, or by a walk from a cached table.
//! * No vCPU can store to a frame whose stores are tracked.
//! * A held frame is used only while its host maps it for that access.
//! * No walk reads a freed table page.
//!
//! Checked just before the host changes pages:
//!
//! * A fault that read the lists of invalidations just before this one began can map none of these pages.
//!
//! Checked at each access and at the end:
//!
//! * A frame that a guest uses contains every store to its page.
//! * An access is emulated only where no memslot is.
//! * After the last harvest, the copies equal the stores of guests and devices.
//! * The tables map only what the host maps, every table page and leaf entry is accounted for, and all memory is
//!   returned.
//! * Every thread ends.
//!
//! | file | contents |
//! |---|---|
//! | `primary_mmu`, `table_memory` | the primary MMU; memory for tables |
//! | `vcpu`, `tlb` | a vCPU, and its processor's TLB |
//! | `slots` | the memslot in each window, also during transactions |
//! | `thread` | the threads of the host and of the VMM |
//! | `oracle` | the checks of all of the above |
//! | `observer` | the schedule, and the moments of the checks |
//! | `run` | runs a plan |

mod observer;
mod oracle;
mod primary_mmu;
mod run;
mod slots;
mod table_memory;
mod thread;
mod tlb;
mod vcpu;
mod windows;

pub use run::{Outcome, run};

use crate::plan::Plan;
use primary_mmu::{Handle, Primary};
use slat::{Access, Format, Gfn, Pfn, Span, Vm};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use windows::Windows;

/// A failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// Its kind.
    pub what: &'static str,
    /// Its place and details.
    pub how: String,
}

/// A guest could use, or has used, a frame that its host does not map there.
pub const STALE: &str = "a guest can use a frame that is not there, or not so";
/// An invalidation is active and has edited its range, and a fault that began before it can fill an entry there.
pub const HIDDEN: &str = "a fault can map a page that is about to change";
/// A guest could store, or has stored, before a listener was told.
pub const UNTOLD: &str = "a guest can store to a frame whose stores are tracked";
/// A walk read a word that only the engine writes, into pages that are in no table.
pub const STRAYED: &str = "a table page is used that was taken apart";
/// A store is missing from the frame.
pub const TORN: &str = "a frame lacks a store to its page";
/// An access to a memslot was reported as MMIO.
pub const EMULATED: &str = "an access to memory was emulated";
/// A store is missing from the copy.
pub const LOST: &str = "a store is missing from the copy";
/// A leaf entry is left over.
pub const LEFT: &str = "a frame is mapped in the end that is not there, or not so";
/// The counts do not add up.
pub const BOOKS: &str = "leaves or table pages were miscounted, or lost";
/// Memory for tables was not returned.
pub const LENT: &str = "memory for tables did not come back";
/// Too many steps.
pub const ENDLESS: &str = "it does not end";
/// No CPU can continue.
pub const STUCK: &str = "every CPU waits for another";
/// The engine or the world panicked.
pub const PANICKED: &str = "it panicked";

/// A world. All CPUs that share it run on one thread of this machine.
pub struct World<'p, F: Format> {
    /// The VM.
    pub vm: Vm<F, Handle>,
    /// The host under it.
    pub host: Arc<Primary>,
    plan: &'p Plan,
    /// The TLB of each vCPU.
    pub tlbs: Vec<RefCell<tlb::Tlb>>,
    /// The window of each memslot.
    pub windows: Windows,
    /// Frames whose stores are tracked, once per tracker.
    tracked: RefCell<Vec<Span<Gfn>>>,
    /// Frames that are held and used: the host frame and the access.
    kept: RefCell<Vec<(Gfn, Pfn, Access)>>,
    /// Stores to each host page at the time of its copy.
    copies: RefCell<BTreeMap<u64, u64>>,
    /// Accesses so far.
    steps: Cell<u64>,
    wrong: RefCell<Option<Wrong>>,
    /// The story of the run, if wanted.
    story: Option<RefCell<Vec<String>>>,
}

// SAFETY: all CPUs of a world are coroutines of one thread.
unsafe impl<F: Format> Sync for World<'_, F> {}

impl<F: Format> World<'_, F> {
    /// Accesses so far.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Records a failure. Only the first one is kept.
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

    /// Returns whether anything has failed.
    pub fn is_wrong(&self) -> bool {
        self.wrong.borrow().is_some()
    }

    /// Adds a line to the story of the running CPU.
    pub fn story(&self, what: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            let cpu = slat_machine::explore::cpu();
            let cpu = cpu.map_or_else(|| "world".to_owned(), |cpu| format!("CPU {cpu}"));
            story.borrow_mut().push(format!("{:>10} {cpu:>7} {}", self.steps(), what()));
        }
    }

    /// Copies a host page as it is now.
    pub fn copied(&self, page: u64) {
        self.copies.borrow_mut().insert(page, self.host.stores(page));
    }
}
