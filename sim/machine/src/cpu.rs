//! Clocks, and who goes on next.
//!
//! One CPU runs at a time; the others wait in a queue by their clocks. An operation that another CPU can see has to wait
//! until no CPU's clock is behind ([`Machine::in_turn`]). One on a line that no other CPU has used, or that this CPU may read
//! already, may run [ahead](AHEAD) a little ([`Machine::nearly_in_turn`]): who comes for that line first finds what was done
//! to it, which may be so much from his future. That spares most changes from coroutine to coroutine, and is less than an
//! interrupt takes.

use crate::costs::Costs;
use crate::explore::Explorer;
use crate::lines::Lines;
use core::cell::{Cell, RefCell};
use corosensei::Yielder;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Virtual time, in picoseconds: 213 days of them fit.
pub type Ps = u64;

/// How far a CPU may run ahead of the others while it uses lines that are its own.
pub const AHEAD: Ps = 500_000;

/// The price list in whole picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    pub load: Ps,
    pub store: Ps,
    pub rmw: Ps,
    pub fence: Ps,
    pub near: Ps,
    pub far: Ps,
    pub handoff: Ps,
    pub park_after: Ps,
    pub kick: Ps,
    pub kick_arrives: Ps,
    pub kick_taken: Ps,
    pub wake: Ps,
    pub wake_arrives: Ps,
    pub zero: Ps,
    pub read: Ps,
    pub word: Ps,
    pub copy: Ps,
    /// A page's share of its socket's bandwidth.
    pub page: Ps,
    pub barrier: Ps,
    pub clock: Ps,
    pub pause: Ps,
    pub cpus_per_socket: u32,
}

/// Nanoseconds as picoseconds.
pub fn ps(ns: f64) -> Ps {
    (ns * 1000.0).round() as Ps
}

impl Prices {
    fn new(costs: &Costs) -> Self {
        let operation = |ns: f64| ps(ns + costs.step);
        Self {
            load: operation(costs.load),
            store: operation(costs.store),
            rmw: operation(costs.rmw),
            fence: ps(costs.fence),
            near: ps(costs.near),
            far: ps(costs.far),
            handoff: ps(costs.handoff),
            park_after: ps(costs.park_after),
            kick: ps(costs.kick),
            kick_arrives: ps(costs.kick_arrives),
            kick_taken: ps(costs.kick_taken),
            wake: ps(costs.wake),
            wake_arrives: ps(costs.wake_arrives),
            zero: ps(costs.zero),
            read: ps(costs.read),
            word: ps(costs.word),
            copy: ps(costs.copy),
            page: ps(4096.0 / costs.bandwidth),
            barrier: ps(costs.barrier),
            clock: ps(costs.clock),
            pause: ps(costs.pause),
            cpus_per_socket: costs.cpus_per_socket.max(1),
        }
    }
}

/// What is kept of a CPU besides the clock of the one that runs.
#[derive(Debug)]
pub struct Cpu {
    pub clock: Cell<Ps>,
    /// Which of its entries in the queue counts: an interrupt makes one that is sooner.
    turn: Cell<u32>,
    /// The vCPU whose kicks it takes.
    pub vcpu: Option<u32>,
    /// It sleeps until its turn, or a kick.
    pub interruptible: Cell<bool>,
    /// The lock for which it waited is its own.
    pub handed: Cell<bool>,
    /// What it has yet to spend before its guest goes on.
    pub enters: Cell<Ps>,
    /// Waited for locks and for lines that others were getting.
    pub waiting: Cell<Ps>,
    /// Had nothing to do.
    pub asleep: Cell<Ps>,
    /// Lines that it got from other CPUs.
    pub transfers: Cell<u64>,
    /// Its coroutine's way out; set when that begins.
    yielder: Cell<*const Yielder<(), Paused>>,
}

/// Why a coroutine lets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paused {
    /// Until its turn, at this time.
    Until(Ps),
    /// Until another CPU wakes it.
    Blocked,
}

/// A place in the queue: when, who, and which of his turns, from the upper bits down. One number, since it is compared all
/// the while.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn(u128);

impl Turn {
    fn new(then: Ps, cpu: u32, turn: u32) -> Self {
        Self(u128::from(then) << 64 | u128::from(cpu) << 32 | u128::from(turn))
    }

    fn then(self) -> Ps {
        (self.0 >> 64) as Ps
    }

    fn cpu(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn turn(self) -> u32 {
        self.0 as u32
    }
}

/// Who waits for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub cpu: u32,
    /// For itself alone.
    pub alone: bool,
    /// When it goes to sleep, if it does.
    pub parks: Ps,
}

/// In order of arrival.
pub type Waiters = VecDeque<Waiter>;

/// All of it. Shared by coroutines that take turns, so everything in it is a cell, and no borrow outlives a turn.
pub struct Machine {
    pub prices: Prices,
    pub cpus: Box<[Cpu]>,
    /// The CPU that runs, and its clock.
    me: Cell<u32>,
    clock: Cell<Ps>,
    /// Until when it need not look at the queue.
    limit: Cell<Ps>,
    /// Every other CPU that could run.
    queue: RefCell<BinaryHeap<Reverse<Turn>>>,
    pub lines: RefCell<Lines>,
    /// By the lock's address.
    pub waiters: RefCell<BTreeMap<usize, Waiters>>,
    /// When each socket's memory is free again.
    memory: Box<[Cell<Ps>]>,
    pub kicks: Cell<u64>,
    pub events: Cell<u64>,
    /// How far a CPU may run ahead: see [`AHEAD`]; nowhere in a run that explores.
    ahead: Ps,
    /// Who chooses the schedule of a run that explores.
    pub explorer: Option<&'static dyn Explorer>,
    /// No CPU goes on any more.
    pub stopped: Cell<bool>,
}

thread_local! {
    /// The machine whose coroutine runs on this thread, if one does.
    static NOW: Cell<*const Machine> = const { Cell::new(core::ptr::null()) };
}

/// What `f` makes of the machine that runs; `None` where none does, as while a VM is built before its run.
#[inline(always)]
pub fn with<T>(f: impl FnOnce(&Machine) -> T) -> Option<T> {
    // SAFETY: set by `Machine::let_run` for just as long as that machine, borrowed, lets coroutines run on this thread.
    unsafe { NOW.get().as_ref() }.map(f)
}

impl Machine {
    pub fn new(costs: &Costs, vcpus: impl Iterator<Item = Option<u32>>) -> Self {
        let cpu = |vcpu| Cpu {
            clock: Cell::new(0),
            turn: Cell::new(0),
            vcpu,
            interruptible: Cell::new(false),
            handed: Cell::new(false),
            enters: Cell::new(0),
            waiting: Cell::new(0),
            asleep: Cell::new(0),
            transfers: Cell::new(0),
            yielder: Cell::new(core::ptr::null()),
        };
        let cpus: Box<[Cpu]> = vcpus.map(cpu).collect();
        let prices = Prices::new(costs);
        let sockets = (cpus.len() as u32).div_ceil(prices.cpus_per_socket);
        Self {
            prices,
            queue: RefCell::new((0..cpus.len() as u32).map(|cpu| Reverse(Turn::new(0, cpu, 0))).collect()),
            lines: RefCell::new(Lines::new(cpus.len() as u32, prices.cpus_per_socket)),
            cpus,
            me: Cell::new(0),
            clock: Cell::new(0),
            limit: Cell::new(0),
            waiters: RefCell::default(),
            memory: (0..sockets).map(|_| Cell::new(0)).collect(),
            kicks: Cell::new(0),
            events: Cell::new(0),
            ahead: AHEAD,
            explorer: None,
            stopped: Cell::new(false),
        }
    }

    /// The same machine with `explorer` to choose the schedule.
    pub fn explored_by(self, explorer: &'static dyn Explorer) -> Self {
        Self { ahead: 0, explorer: Some(explorer), ..self }
    }

    /// The CPU that runs.
    #[inline(always)]
    pub fn me(&self) -> u32 {
        self.me.get()
    }

    /// Its clock.
    #[inline(always)]
    pub fn clock(&self) -> Ps {
        self.clock.get()
    }

    /// It has been busy until `then`.
    #[inline(always)]
    pub fn set_clock(&self, then: Ps) {
        self.clock.set(then);
    }

    pub fn cpu(&self) -> &Cpu {
        &self.cpus[self.me() as usize]
    }

    /// It has been busy for so long.
    #[inline(always)]
    pub fn spend(&self, time: Ps) {
        self.clock.set(self.clock.get() + time);
    }

    /// Before an operation that others can see: a CPU that is behind goes first.
    #[inline(never)]
    pub fn in_turn(&self) {
        // Anything of a CPU that is behind, or as far and before this one in the order of numbers.
        let mine = Turn::new(self.clock(), self.me(), 0);
        if self.queue.borrow().peek().is_some_and(|&Reverse(first)| first < mine) {
            self.pause(Paused::Until(self.clock()));
        }
    }

    /// Before one that no other CPU can notice at once.
    #[inline(always)]
    pub fn nearly_in_turn(&self) {
        if self.clock.get() > self.limit.get() {
            self.in_turn();
        }
    }

    /// Whether no CPU has to go on before then.
    pub fn goes_on_until(&self, then: Ps) -> bool {
        then <= self.limit.get()
    }

    /// Lets others go on.
    pub fn pause(&self, paused: Paused) {
        let cpu = self.cpu();
        cpu.clock.set(self.clock());
        // SAFETY: the coroutine that runs set it to its own, which is borrowed for as long as it runs.
        unsafe { &*cpu.yielder.get() }.suspend(paused);
    }

    /// A coroutine begins on the CPU that runs.
    pub fn begin(&self, yielder: &Yielder<(), Paused>) {
        self.cpu().yielder.set(yielder);
    }

    /// `cpu`, which is blocked or sleeps, goes on at `then`, or when its clock says if that is later.
    pub fn wake(&self, cpu: u32, then: Ps) {
        let woken = &self.cpus[cpu as usize];
        let then = then.max(woken.clock.get());
        woken.turn.set(woken.turn.get() + 1);
        self.queue.borrow_mut().push(Reverse(Turn::new(then, cpu, woken.turn.get())));
        self.limit.set(self.limit.get().min(then + self.ahead));
    }

    /// The CPU that goes on now, after the one that ran has let go; `None` when none can.
    pub fn next(&self, paused: Option<Paused>) -> Option<u32> {
        let mut queue = self.queue.borrow_mut();
        let mut mine = match paused {
            Some(Paused::Until(then)) => Some(Reverse(Turn::new(then, self.me(), self.cpu().turn.get()))),
            Some(Paused::Blocked) | None => None,
        };
        loop {
            // One sift instead of two where the one that ran goes back.
            let next = match mine.take() {
                None => queue.pop()?,
                Some(mine) => match queue.peek_mut() {
                    Some(mut first) if *first > mine => core::mem::replace(&mut *first, mine),
                    _ => mine,
                },
            };
            let Reverse(next) = next;
            if self.cpus[next.cpu() as usize].turn.get() == next.turn() {
                self.me.set(next.cpu());
                self.clock.set(next.then());
                self.limit.set(queue.peek().map_or(Ps::MAX, |Reverse(next)| next.then() + self.ahead));
                return Some(next.cpu());
            }
        }
    }

    /// `f`, during which coroutines on this thread find this machine.
    pub fn let_run<T>(&self, f: impl FnOnce() -> T) -> T {
        struct Before(*const Machine);
        impl Drop for Before {
            fn drop(&mut self) {
                NOW.set(self.0);
            }
        }
        let _before = Before(NOW.replace(self));
        f()
    }

    /// Memory of this CPU's socket is busy with a page, and this CPU with what that takes alone.
    pub fn use_memory(&self, alone: Ps) {
        self.nearly_in_turn();
        let memory = &self.memory[(self.me() / self.prices.cpus_per_socket) as usize];
        let began = memory.get().max(self.clock());
        memory.set(began + self.prices.page);
        self.set_clock((self.clock() + alone).max(began + self.prices.page));
    }
}
