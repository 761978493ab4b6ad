//! Pages that come late: the host does not make a vCPU wait that needs one ([`HostError::Pending`](slat::HostError::Pending)).
//!
//! ```text
//! a fault ─▶ Machine::resolve: the page's contents are stored ─▶ asked for; Done::Pending: the vCPU waits, the other one runs
//! the next tick ─▶ deliver: the page has a frame again; Vm::ready ─▶ Vcpu::take_ready: the vCPU runs, and faults again
//! ```
//! So it is where vCPUs share a processor (`share`). A page that was taken and held zeroes only comes at once. Where a block is
//! gathered meanwhile, its pages are there before they are due.

use crate::Error;
use crate::memory::Machine;
use crate::options::Mistake;
use alloc::collections::VecDeque;
use alloc::format;
use slat::{Format, Host as _, Hva, PAGE_SIZE, Vm};

/// So many ticks of the machine's timer later a page is there.
const DELAY: u64 = 1;
/// So many requests pass between two that a mistake on purpose is made with.
const WRONG: u64 = 16;

/// See the module's header.
#[derive(Debug)]
pub struct Late {
    /// Pages come late.
    on: bool,
    mistake: Option<Mistake>,
    now: u64,
    requests: VecDeque<Request>,
    /// Stored pages that were needed.
    stored: u64,
    /// Those of them that were asked for.
    pub asked: u64,
    /// vCPUs that were woken.
    pub woken: u64,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    page: Hva,
    due: u64,
    /// The mistake is made with it; and has been, where the engine is told early.
    wrong: bool,
    told: bool,
}

impl Late {
    /// No page is asked for.
    pub fn new(on: bool, mistake: Option<Mistake>) -> Self {
        Self { on, mistake, now: 0, requests: VecDeque::new(), stored: 0, asked: 0, woken: 0 }
    }

    /// Whether the page comes late: every other one does. It is asked for once, however often a vCPU needs it meanwhile.
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

    /// A request that is due.
    fn due(&mut self) -> Option<Request> {
        let is_due = self.requests.front().is_some_and(|request| request.due <= self.now);
        is_due.then(|| self.requests.pop_front()).flatten()
    }
}

/// A tick has passed: pages that are due are put behind their addresses, and then the engine is told of each.
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
                // The vCPU finds out before.
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
