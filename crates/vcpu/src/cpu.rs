//! A vCPU in software: an OS thread with a TLB and a paging-structure cache that keep stale translations.
//!
//! ```text
//! enter ─▶ go? in ──▶ kicked? answer ─▶ one step of the program ─┐
//!      ▲                   ▲                                    │ TLB, else walk
//!      │                   └────────────── done ◀───────────────┤
//!      │                                                        │ fault
//!      └── Vcpu::fault ◀── leave the guest ◀────────────────────┘
//! ```
//! Between two answers the vCPU uses its caches, whatever the tables say. So an invalidation that takes a page
//! away without waiting for the answer is detected: the guest accesses memory that is no longer its own
//! ([`crate::oracle`]).
//!
//! | file | contents |
//! |---|---|
//! | `core` | the vCPU as an instruction sees it |
//! | `nested` | the vCPU while it runs the nested guest |

mod core;
mod nested;

pub use core::Core;
pub use nested::L2Exit;

use crate::caches::{Caches, Under};
use crate::processor::{Home, Processor, Tag};
use crate::window::Window;
use hdrhistogram::Histogram;
use slat::entry::{Go, Ready};
use slat::{Fault, FaultError, Format, Host, HostError, Idle, Leave, Next, SpaceId, Token, Vcpu, Vm};
use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// One software vCPU, for the thread that runs it.
pub struct Cpu<'vm, F: Format, H: Host> {
    vcpu: Vcpu<'vm, F, H>,
    /// `None` while it runs.
    caches: Option<Box<Caches>>,
    /// Number of its VM, on processors that it shares.
    tag: u32,
    window: Window,
    timed: bool,
    exit: Duration,
    late: Option<Late>,
    /// Tokens taken and not yet passed to the program.
    ready: Vec<Token>,
    /// Time of each fault, from leaving the guest until it may enter again, in nanoseconds.
    pub fault_ns: Histogram<u64>,
}

/// Delays the answer of a kicked vCPU. Until it answers it may use its caches.
#[derive(Debug)]
struct Late {
    random: fastrand::Rng,
    most: u64,
    /// Steps until the next answer.
    left: u64,
}

impl Late {
    /// Whether the vCPU answers now. If not, it takes another step, and lets other threads run.
    fn answers(&mut self) -> bool {
        let now = self.left == 0;
        if now {
            self.left = self.random.u64(..=self.most);
        } else {
            self.left -= 1;
            yield_now();
        }
        now
    }
}

/// A program that runs on a vCPU.
pub trait Program {
    /// Executes one instruction. It makes all its accesses through `core`, or faults without effect and is
    /// executed again.
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault>;

    /// The page of the last step's fault is pending, with this token. Returns whether the program continues
    /// with another task. With a single task it returns false, and the vCPU leaves the guest.
    fn page_not_present(&mut self, token: Token) -> bool {
        let _ = token;
        false
    }

    /// The page is there, so the waiting task can continue. Called once for each token, whatever
    /// `page_not_present` returned.
    fn page_ready(&mut self, token: Token) {
        let _ = token;
    }
}

/// The end of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Continue.
    Next,
    /// The program has ended, or leaves the guest.
    Stop,
}

/// The end of a stay in the guest.
enum Stayed {
    Fault(Fault),
    Stopped,
    StepsDone,
    /// Before the first step, or since a token is ready.
    Kicked,
}

/// A stay in the guest, or in the nested guest.
struct Stay<'s, F: Format, H: Host> {
    vm: &'s Vm<F, H>,
    window: Window,
    late: &'s mut Option<Late>,
    under: Under,
}

impl<F: Format, H: Host> Stay<'_, F, H> {
    fn run(
        self,
        ready: Ready<'_>,
        home: &mut impl Home,
        program: &mut impl Program,
        left: &mut u64,
    ) -> Stayed {
        let Self { vm, window, late, under } = self;
        // There are no interrupts: a kick sets a word that the guest polls.
        let Go::In(mut guest, ()) = ready.go(|| ()) else { return Stayed::Kicked };
        while *left > 0 {
            *left -= 1;
            if guest.kicked() && late.as_mut().is_none_or(Late::answers) {
                guest.answer(home);
                if guest.has_ready() {
                    return Stayed::Kicked;
                }
            }
            // From here to the end of the step, cached translations may be used.
            let mut caches = home.caches();
            let mut core = Core::new(vm, caches.under(under), window, guest.root());
            match program.step(&mut core) {
                Ok(Step::Next) => {}
                Ok(Step::Stop) => return Stayed::Stopped,
                Err(fault) => return Stayed::Fault(fault),
            }
        }
        Stayed::StepsDone
    }
}

/// Spends the time of an exit and an entry.
fn spend(exit: Duration) {
    if exit.is_zero() {
        return;
    }
    let left = Instant::now();
    while left.elapsed() < exit {
        spin_loop();
    }
}

/// Why the vCPU has left the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The program stopped.
    Stopped,
    /// An access without a memslot, or a tracked store: emulate it, or add memory.
    Mmio(Fault),
    /// A store with a full dirty ring: run again after a harvest.
    RingFull,
    /// A fault that failed. With [`HostError::Pending`] or [`HostError::NeedsPage`], run again when the page is
    /// there: a thread that runs only this vCPU parks until [`Cpu::is_ready`].
    Failed(Fault, FaultError),
}

impl<'vm, F: Format, H: Host> Cpu<'vm, F, H> {
    /// Creates a vCPU that accesses frames through `window`.
    ///
    /// # Panics
    /// Never: the histogram's bounds are constants.
    pub fn new(vcpu: Vcpu<'vm, F, H>, window: Window) -> Self {
        let fault_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds are in order");
        Self {
            vcpu,
            caches: Some(Box::default()),
            tag: 0,
            window,
            timed: true,
            exit: Duration::ZERO,
            late: None,
            ready: Vec::new(),
            fault_ns,
        }
    }

    /// Does not measure fault times: reading the clock takes longer than the fault.
    #[must_use]
    pub fn untimed(self) -> Self {
        Self { timed: false, ..self }
    }

    /// Makes exits as expensive as on hardware: before each fault is handled, spends this much time for leaving
    /// the guest and coming back. Otherwise both are a few stores.
    #[must_use]
    pub fn with_exits_of(self, exit: Duration) -> Self {
        Self { exit, ..self }
    }

    /// Delays answers: a kicked vCPU takes up to `steps` more steps before it answers, a number drawn from
    /// `seed`, and lets other threads run in between. For tests: an immediate answer hides a missing wait.
    #[must_use]
    pub fn answering_late(self, seed: u64, steps: u64) -> Self {
        Self { late: Some(Late { random: fastrand::Rng::with_seed(seed), most: steps, left: 0 }), ..self }
    }

    /// Sets the VM number on [processors](Processor) that it shares with vCPUs of other VMs; 0 by default.
    #[must_use]
    pub fn tagged(self, vm: u32) -> Self {
        Self { tag: vm, ..self }
    }

    /// Runs `program` until it stops, accesses no memory, fills its dirty ring, or fails. The vCPU has a
    /// processor of its own, and its caches move with it.
    pub fn run(&mut self, idle: &mut Idle, program: &mut impl Program) -> Exit {
        let mut caches = self.caches.take().unwrap_or_default();
        let exit = loop {
            self.tell(program);
            let mut left = u64::MAX;
            let exit = match self.stay_in(idle, &mut *caches, program, &mut left) {
                Stayed::Fault(fault) => self.deal_with(idle, fault, program),
                Stayed::Stopped => Some(Exit::Stopped),
                Stayed::StepsDone | Stayed::Kicked => None,
            };
            if let Some(exit) = exit {
                break exit;
            }
        };
        self.caches = Some(caches);
        exit
    }

    /// Runs at most `steps` steps on a shared processor. Returns `None` after all of them. Waits while another
    /// vCPU is on that processor. Each call may use another processor.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # use slat_vcpu::{Cpu, Exit, Processor, cpu::Program};
    /// /// Runs in turns of 100 steps on each of the processors.
    /// fn in_turns(cpu: &mut Cpu<'_, Npt4, impl Host>, on: &[Processor], program: &mut impl Program) -> Exit {
    ///     let mut idle = Idle::take().unwrap();
    ///     let mut turns = on.iter().cycle();
    ///     turns.find_map(|processor| cpu.run_on(&mut idle, processor, program, 100)).unwrap()
    /// }
    /// ```
    pub fn run_on(
        &mut self,
        idle: &mut Idle,
        processor: &Processor,
        program: &mut impl Program,
        steps: u64,
    ) -> Option<Exit> {
        let mut left = steps;
        while left > 0 {
            self.tell(program);
            // Other vCPUs may use the processor while this one's fault is handled.
            let mut stay = processor.stay(Tag { vm: self.tag, space: self.vcpu.space() });
            let fault = match self.stay_in(idle, &mut stay, program, &mut left) {
                Stayed::Fault(fault) => fault,
                Stayed::Stopped => return Some(Exit::Stopped),
                Stayed::StepsDone => return None,
                Stayed::Kicked => continue,
            };
            drop(stay);
            if let Some(exit) = self.deal_with(idle, fault, program) {
                return Some(exit);
            }
        }
        None
    }

    /// Makes one stay in the guest.
    fn stay_in(
        &mut self,
        idle: &mut Idle,
        home: &mut impl Home,
        program: &mut impl Program,
        left: &mut u64,
    ) -> Stayed {
        let vm = self.vcpu.vm();
        let ready = self.vcpu.enter(idle, home);
        Stay { vm, window: self.window, late: &mut self.late, under: Under::L1 }
            .run(ready, home, program, left)
    }

    /// Handles a fault, outside of the guest. `None` if the guest may continue.
    fn deal_with(&mut self, idle: &mut Idle, fault: Fault, program: &mut impl Program) -> Option<Exit> {
        spend(self.exit);
        let began = self.timed.then(Instant::now);
        match self.vcpu.fault(idle, fault) {
            Ok(Next::Emulate(_)) => return Some(Exit::Mmio(fault)),
            Ok(Next::Leave(Leave::RingFull)) => return Some(Exit::RingFull),
            Ok(Next::Leave(Leave::Pending(token))) => {
                let goes_on = program.page_not_present(token);
                return (!goes_on).then_some(Exit::Failed(fault, HostError::Pending.into()));
            }
            Ok(Next::Leave(Leave::NeedsPage)) => {
                return Some(Exit::Failed(fault, HostError::NeedsPage.into()));
            }
            Ok(_) => {
                if let Some(began) = began {
                    self.fault_ns.saturating_record(began.elapsed().as_nanos() as u64);
                }
            }
            Err(error) => return Some(Exit::Failed(fault, error)),
        }
        None
    }

    /// Tells the program which pages are ready.
    fn tell(&mut self, program: &mut impl Program) {
        for token in std::mem::take(&mut self.ready) {
            program.page_ready(token);
        }
        while let Some(token) = self.vcpu.take_ready() {
            program.page_ready(token);
        }
    }

    /// Whether a page that it waits for is ready. Called out of the guest, after [`Exit::Failed`] with a
    /// pending page. The host's kick wakes the thread, which may sleep between two calls. The next
    /// [`run`](Self::run) tells the program.
    pub fn is_ready(&mut self) -> bool {
        self.ready.extend(self.vcpu.take_ready());
        !self.ready.is_empty()
    }

    /// Switches to another address space of the VM, as on entry to system management mode; returns false if it
    /// does not exist.
    pub fn switch_to(&mut self, space: SpaceId) -> bool {
        self.vcpu.switch_to(space)
    }

    /// Returns hits and misses of its own TLB, used by [`run`](Self::run), under both tags.
    pub fn tlb_counts(&self) -> (u64, u64) {
        self.caches.as_ref().map_or((0, 0), |caches| caches.tlb_counts())
    }
}

impl<F: Format, H: Host> std::fmt::Debug for Cpu<'_, F, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu").field("vcpu", &self.vcpu).finish_non_exhaustive()
    }
}
