//! A vCPU in software: an OS thread with a TLB and a paging-structure cache that really hold stale translations.
//!
//! ```text
//! enter ─▶ go? in ──▶ kicked? answer ─▶ one step of the program ─┐
//!      ▲                   ▲                                    │ TLB, else walk
//!      │                   └────────────── done ◀───────────────┤
//!      │                                                        │ fault
//!      └── Vcpu::fault ◀── leave the guest ◀────────────────────┘
//! ```
//! Between two answers the vCPU uses what its caches say, whatever the tables say by then. So an invalidation that takes a
//! page away without waiting for the answer is found out: the guest reads and writes memory that is no longer
//! its own ([`crate::oracle`]).
//!
//! | file | idea |
//! |---|---|
//! | `caches` | what a vCPU caches, under a tag for its guest and one for the guest of that |
//! | `core` | the vCPU as an instruction sees it |
//! | `nested` | the same vCPU, when it runs the guest of its guest |

mod caches;
mod core;
mod nested;

pub use caches::Caches;
pub use core::Core;
pub use nested::L2Exit;

use crate::processor::{Home, Processor, Tag};
use crate::window::Window;
use caches::Under;
use hdrhistogram::Histogram;
use slat::{Done, Fault, FaultError, Format, Go, Host, HostError, Idle, Ready, SpaceId, Token, Vcpu, Vm};
use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// One software vCPU, for the thread that runs it.
pub struct Cpu<'vm, F: Format, H: Host> {
    vcpu: Vcpu<'vm, F, H>,
    /// Taken while it runs.
    caches: Option<Box<Caches>>,
    /// Its VM, to processors that it shares with others.
    tag: u32,
    window: Window,
    timed: bool,
    exit: Duration,
    late: Option<Late>,
    /// Taken, and not told yet.
    ready: Vec<Token>,
    /// Time that each fault took, from leaving the guest until it may enter again, in nanoseconds.
    pub fault_ns: Histogram<u64>,
}

/// How late a kicked vCPU answers. Until it answers it may use what its caches hold.
#[derive(Debug)]
struct Late {
    random: fastrand::Rng,
    most: u64,
    /// Steps that it takes before the next answer.
    left: u64,
}

impl Late {
    /// Whether it answers now. If not, it takes another step, and lets other threads run.
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

/// What runs on a vCPU.
pub trait Program {
    /// One instruction: all of its accesses through `core`, or a fault and no effect; then it is run again.
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault>;

    /// The page of the last step's fault is on its way, under this token. Whether the program has another task to go on with,
    /// whose steps come next. A program of one task says no, and the vCPU leaves the guest.
    fn page_not_present(&mut self, token: Token) -> bool {
        let _ = token;
        false
    }

    /// The page is there: the task that waits for it can go on. Called for each token once, whatever the answer was.
    fn page_ready(&mut self, token: Token) {
        let _ = token;
    }
}

/// How an instruction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Go on.
    Next,
    /// The program is over, or wants to leave the guest.
    Stop,
}

/// How a stay in the guest ended.
enum Stayed {
    Fault(Fault),
    Stopped,
    StepsDone,
    /// Before the first step; or a token is ready.
    Kicked,
}

/// One stay in the guest, or in the guest of the guest.
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
        // No interrupt comes here: a kick is a word, which the guest looks at.
        let Go::In(mut guest, ()) = ready.go(|| ()) else { return Stayed::Kicked };
        while *left > 0 {
            *left -= 1;
            if guest.kicked() && late.as_mut().is_none_or(Late::answers) {
                guest.answer(home);
                if guest.has_ready() {
                    return Stayed::Kicked;
                }
            }
            // From here to the end of the step, what the caches hold may be used.
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

/// What an exit and an entry take.
fn spend(exit: Duration) {
    if exit.is_zero() {
        return;
    }
    let left = Instant::now();
    while left.elapsed() < exit {
        spin_loop();
    }
}

/// Why the guest was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The program stopped.
    Stopped,
    /// An access to no memory, or a store that is tracked: emulate it, or put memory there.
    Mmio(Fault),
    /// A store, and the vCPU's dirty ring is full: run it again when it has been harvested.
    RingFull,
    /// A fault that cannot be dealt with; or not now, where the error is [`HostError::Pending`] or [`HostError::NeedsPage`]: run
    /// it again when the page is there. A thread of this vCPU alone parks until [`Cpu::is_ready`].
    Failed(Fault, FaultError),
}

impl<'vm, F: Format, H: Host> Cpu<'vm, F, H> {
    /// A vCPU whose frames are seen through `window`.
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

    /// The same without a look at the clock for each fault, which takes longer than the fault.
    #[must_use]
    pub fn untimed(self) -> Self {
        Self { timed: false, ..self }
    }

    /// The same with exits as dear as on hardware: before each fault is dealt with, so much time is spent on leaving the
    /// guest and coming back. Here both are a few stores.
    #[must_use]
    pub fn with_exits_of(self, exit: Duration) -> Self {
        Self { exit, ..self }
    }

    /// The same with late answers: a kicked vCPU takes up to `steps` more steps before it answers, a number drawn from `seed`,
    /// and lets other threads run between them. Tests want this: an answer at once hides a missing wait.
    #[must_use]
    pub fn answering_late(self, seed: u64, steps: u64) -> Self {
        Self { late: Some(Late { random: fastrand::Rng::with_seed(seed), most: steps, left: 0 }), ..self }
    }

    /// The same as a vCPU of VM number `vm` to [processors](Processor) that it shares with vCPUs of other VMs; 0 unless said
    /// otherwise.
    #[must_use]
    pub fn tagged(self, vm: u32) -> Self {
        Self { tag: vm, ..self }
    }

    /// Runs `program` until it stops, touches no memory, has filled its dirty ring, or fails. On a processor of its own, whose
    /// caches go where the vCPU goes.
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

    /// The same for `steps` steps at most, on a processor that it shares: `None` where it has made them all. Waits while
    /// another vCPU is on that processor. It may be another processor each time.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # use slat_vcpu::{Cpu, Exit, Processor, cpu::Program};
    /// /// In turns of 100 steps on each of the processors.
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
            // Another vCPU may have the processor while this one's fault is dealt with.
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

    /// One stay in the guest.
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

    /// A fault, outside of the guest. `None`: the guest may go on.
    fn deal_with(&mut self, idle: &mut Idle, fault: Fault, program: &mut impl Program) -> Option<Exit> {
        spend(self.exit);
        let began = self.timed.then(Instant::now);
        match self.vcpu.fault(idle, fault) {
            Ok(Done::Mmio | Done::WriteTracked) => return Some(Exit::Mmio(fault)),
            Ok(Done::RingFull) => return Some(Exit::RingFull),
            Ok(Done::Pending) => {
                let goes_on = self.vcpu.pending_token().is_some_and(|token| program.page_not_present(token));
                return (!goes_on).then_some(Exit::Failed(fault, HostError::Pending.into()));
            }
            Ok(Done::NeedsPage) => return Some(Exit::Failed(fault, HostError::NeedsPage.into())),
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

    /// Whether a page that it has waited for is ready: out of the guest, after [`Exit::Failed`] by a page that is pending. The
    /// host's kick wakes the thread, which may sleep between two looks. The program is told by the next
    /// [`run`](Self::run).
    pub fn is_ready(&mut self) -> bool {
        self.ready.extend(self.vcpu.take_ready());
        !self.ready.is_empty()
    }

    /// Goes over to another address space of the VM, as on entry to system management mode; false if it has none.
    pub fn switch_to(&mut self, space: SpaceId) -> bool {
        self.vcpu.switch_to(space)
    }

    /// Hits and misses so far of its own TLB, that of [`run`](Self::run), under both tags.
    pub fn tlb_counts(&self) -> (u64, u64) {
        self.caches.as_ref().map_or((0, 0), |caches| caches.tlb_counts())
    }
}

impl<F: Format, H: Host> std::fmt::Debug for Cpu<'_, F, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu").field("vcpu", &self.vcpu).finish_non_exhaustive()
    }
}
