//! Late pages: the host does not block a vCPU that needs one ([`HostError::Pending`](slat::HostError::Pending)).
//!
//! ```text
//! a fault ─▶ Machine::resolve: the page's contents are stored ─▶ asked for; Leave::Pending: the vCPU waits, the other one runs
//! the next tick ─▶ primary_mmu::deliver: the page has a frame again; Vm::ready ─▶ Vcpu::take_ready: the vCPU runs, and faults again
//! ```
//! Only if vCPUs share a processor (`share`). A taken page of zeroes comes at once. If its block is gathered meanwhile,
//! a page is present before it is due.

use crate::options::Mistake;
use alloc::collections::VecDeque;
use slat::{Hva, PAGE_SIZE};

/// Ticks of the machine's timer until a page is present.
const DELAY: u64 = 1;
/// Number of requests between two seeded mistakes.
const WRONG: u64 = 16;

/// State of late pages.
#[derive(Debug)]
pub struct Late {
    /// Whether pages come late.
    on: bool,
    mistake: Option<Mistake>,
    now: u64,
    requests: VecDeque<Request>,
    /// Number of needed stored pages.
    stored: u64,
    /// Number of these that were requested.
    pub asked: u64,
    /// Number of woken vCPUs.
    pub woken: u64,
}

/// A page that is due.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// The page.
    pub page: Hva,
    /// Whether it comes back now; and whether the engine is told.
    pub comes: bool,
    pub told: bool,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    page: Hva,
    due: u64,
    /// Whether the mistake is made with this request; and whether an early call was made.
    wrong: bool,
    told: bool,
}

impl Late {
    /// Makes the state without requests.
    pub fn new(on: bool, mistake: Option<Mistake>) -> Self {
        Self { on, mistake, now: 0, requests: VecDeque::new(), stored: 0, asked: 0, woken: 0 }
    }

    /// Returns whether the page comes late: every other one does. Requests it once, however often a vCPU needs it.
    pub fn ask(&mut self, hva: Hva) -> bool {
        let page = Hva(hva.0 & !(PAGE_SIZE - 1));
        if self.requests.iter().any(|request| request.page == page) {
            return true;
        }
        self.stored += 1;
        let is_late = self.on && self.stored.is_multiple_of(2);
        if is_late {
            self.asked += 1;
            let wrong = self.asked.is_multiple_of(WRONG);
            self.requests.push_back(Request { page, due: self.now + DELAY, wrong, told: false });
        }
        is_late
    }

    /// Begins the next tick.
    pub fn tick(&mut self) {
        self.now += 1;
    }

    /// Returns the next due page.
    pub fn due(&mut self) -> Option<Due> {
        let is_due = self.requests.front().is_some_and(|request| request.due <= self.now);
        let request = is_due.then(|| self.requests.pop_front()).flatten()?;
        let mut due = Due { page: request.page, comes: true, told: true };
        match self.mistake.filter(|_| request.wrong) {
            Some(Mistake::NeverReady) => due.told = false,
            Some(Mistake::EarlyReady) if request.told => due.told = false,
            Some(Mistake::EarlyReady) => {
                due.comes = false;
                // The vCPU runs before that.
                self.requests.push_back(Request { due: self.now + 2 * DELAY, told: true, ..request });
            }
            _ => {}
        }
        Some(due)
    }
}
