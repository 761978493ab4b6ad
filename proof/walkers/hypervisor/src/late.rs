//! Late pages: the host does not block a vCPU that needs one ([`HostError::Pending`](slat::HostError::Pending)).
//!
//! ```text
//! a fault ─▶ Machine::resolve: the page's contents are stored ─▶ asked for; Leave::Pending: the vCPU waits, the other one runs
//! the next tick ─▶ deliver: the page has a frame again; Vm::ready ─▶ Vcpu::take_ready: the vCPU runs, and faults again
//! ```
//! Only if vCPUs share a processor (`share`). A taken page of zeroes comes at once. If its block is gathered meanwhile,
//! a page is present before it is due.

use crate::Error;
use crate::options::Mistake;
use crate::primary_mmu::Machine;
use alloc::collections::VecDeque;
use alloc::format;
use slat::{Format, Host as _, Hva, PAGE_SIZE, Vm};

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

    /// Returns a due request.
    fn due(&mut self) -> Option<Request> {
        let is_due = self.requests.front().is_some_and(|request| request.due <= self.now);
        is_due.then(|| self.requests.pop_front()).flatten()
    }
}

/// Handles a tick: brings back due pages, and then reports each one to the engine.
pub fn deliver<F: Format>(vm: &Vm<F, Machine>) -> Result<(), Error> {
    let host = vm.host();
    host.frames.lock().late.now += 1;
    loop {
        let mut frames = host.frames.lock();
        let Some(request) = frames.late.due() else { return Ok(()) };
        let (page, mistake) = (request.page, frames.late.mistake.filter(|_| request.wrong));
        let (mut is_there, mut is_told) = (true, true);
        match mistake {
            Some(Mistake::NeverReady) => is_told = false,
            Some(Mistake::EarlyReady) if request.told => is_told = false,
            Some(Mistake::EarlyReady) => {
                is_there = false;
                // The vCPU runs before that.
                let due = frames.late.now + 2 * DELAY;
                frames.late.requests.push_back(Request { due, told: true, ..request });
            }
            _ => {}
        }
        if is_there {
            let brought = host.bring(&mut frames, page);
            brought.map_err(|error| format!("a page cannot come back: {page:x?}: {error}"))?;
        }
        drop(frames);
        if is_told {
            let woken = vm.ready(host.token(page)) as u64;
            host.frames.lock().late.woken += woken;
        }
    }
}
