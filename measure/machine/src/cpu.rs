//! The clocks of the CPUs, and the choice of the CPU that runs next.
//!
//! One CPU runs at a time; the others wait in a queue ordered by their clocks. Before an operation that another CPU
//! can see, the running CPU waits until no clock is behind its own ([`Machine::in_turn`]). For a line that no other
//! CPU has used, or that this CPU may already read, the CPU may run a little [ahead](AHEAD)
//! ([`Machine::nearly_in_turn`]). Another CPU that reaches such a line earlier in virtual time may see a value from
//! up to that far in its future. This saves most switches between coroutines, and the limit is shorter than an
//! interrupt.

use crate::costs::Costs;
use crate::lines::Lines;
use crate::prices::{Prices, Ps};
use crate::schedule::Explorer;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use corosensei::Yielder;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// How far a CPU may run ahead of the others on lines that it owns.
pub const AHEAD: Ps = 500_000;

/// The state of a CPU, except the clock of the CPU that runs.
#[derive(Debug, Default)]
pub struct Cpu {
    pub clock: Cell<Ps>,
    /// The number of the valid queue entry. An interrupt adds an earlier entry, which makes the old one invalid.
    turn: Cell<u32>,
    /// The vCPU whose kicks this CPU takes.
    pub vcpu: Option<u32>,
    /// True while the CPU sleeps until its turn or a kick.
    pub interruptible: Cell<bool>,
    /// True after the lock was handed to this CPU.
    pub handed: Cell<bool>,
    /// The time that an interrupt adds before the guest continues.
    pub enters: Cell<Ps>,
    /// Time spent waiting for locks, and for lines in transfer to other CPUs.
    pub waiting: Cell<Ps>,
    /// Time asleep.
    pub asleep: Cell<Ps>,
    /// Lines transferred to this CPU.
    pub transfers: Cell<u64>,
    /// The suspender of this CPU's coroutine, set when the coroutine begins.
    yielder: Cell<Option<NonNull<Yielder<(), Paused>>>>,
}

/// Why a coroutine suspends itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paused {
    /// It waits until its turn at this time.
    Until(Ps),
    /// It waits until another CPU wakes it.
    Blocked,
}

/// A queue entry: time, CPU and turn number in one integer, time in the upper bits. The queue compares entries often,
/// and one integer compares fast.
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

/// A CPU that waits for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub cpu: u32,
    /// True for a writer.
    pub alone: bool,
    /// The time at which the waiter goes to sleep, if it does.
    pub parks: Ps,
    /// The time at which it first found the lock held. Others may have taken the lock since, before it was awake.
    pub since: Ps,
}

/// In order of arrival.
pub type Waiters = VecDeque<Waiter>;

/// The machine. The coroutines that share it take turns on one thread, so each field is a cell, and no borrow lasts
/// beyond a turn.
pub struct Machine {
    pub prices: Prices,
    pub cpus: Box<[Cpu]>,
    /// The running CPU and its clock.
    me: Cell<u32>,
    clock: Cell<Ps>,
    /// The running CPU need not look at the queue before this time.
    limit: Cell<Ps>,
    /// All other CPUs that can run.
    queue: RefCell<BinaryHeap<Reverse<Turn>>>,
    pub lines: RefCell<Lines>,
    /// Waiters, by the lock's address.
    pub waiters: RefCell<BTreeMap<usize, Waiters>>,
    /// The time at which the memory of each socket is free again.
    memory: Box<[Cell<Ps>]>,
    pub kicks: Cell<u64>,
    pub events: Cell<u64>,
    /// How far a CPU may run ahead: [`AHEAD`], or zero in a run that explores.
    ahead: Ps,
    /// The explorer that chooses the schedule.
    pub explorer: Option<&'static dyn Explorer>,
    /// True after the run was stopped.
    pub stopped: Cell<bool>,
}

thread_local! {
    /// The machine whose coroutine runs on this thread.
    static NOW: Cell<*const Machine> = const { Cell::new(core::ptr::null()) };
}

/// Calls `f` with the running machine. Returns `None` outside of a run, such as while a VM is built.
#[inline(always)]
pub fn with<T>(f: impl FnOnce(&Machine) -> T) -> Option<T> {
    // SAFETY: `Machine::let_run` sets the pointer only while it borrows the machine and lets coroutines run on this
    // thread.
    unsafe { NOW.get().as_ref() }.map(f)
}

impl Machine {
    pub fn new(costs: &Costs, vcpus: impl Iterator<Item = Option<u32>>) -> Self {
        let cpu = |vcpu| Cpu { vcpu, ..Cpu::default() };
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

    /// The running CPU.
    #[inline(always)]
    pub fn me(&self) -> u32 {
        self.me.get()
    }

    /// Its clock.
    #[inline(always)]
    pub fn clock(&self) -> Ps {
        self.clock.get()
    }

    /// Moves the running CPU's clock to `then`.
    #[inline(always)]
    pub fn set_clock(&self, then: Ps) {
        self.clock.set(then);
    }

    pub fn cpu(&self) -> &Cpu {
        &self.cpus[self.me() as usize]
    }

    /// Adds to the running CPU's clock.
    #[inline(always)]
    pub fn spend(&self, time: Ps) {
        self.clock.set(self.clock.get() + time);
    }

    /// Lets CPUs that are behind go first. Called before an operation that other CPUs can see.
    #[inline(never)]
    pub fn in_turn(&self) {
        // A CPU that is behind, or at the same time with a smaller number, goes first.
        let mine = Turn::new(self.clock(), self.me(), 0);
        if self.queue.borrow().peek().is_some_and(|&Reverse(first)| first < mine) {
            self.pause(Paused::Until(self.clock()));
        }
    }

    /// Lets CPUs that are far behind go first. Called before an operation that no other CPU can notice at once.
    #[inline(always)]
    pub fn nearly_in_turn(&self) {
        if self.clock.get() > self.limit.get() {
            self.in_turn();
        }
    }

    /// Returns whether no other CPU runs before this time.
    pub fn goes_on_until(&self, then: Ps) -> bool {
        then <= self.limit.get()
    }

    /// Suspends the running coroutine.
    pub fn pause(&self, paused: Paused) {
        let cpu = self.cpu();
        cpu.clock.set(self.clock());
        let yielder = cpu.yielder.get().expect("its coroutine has begun");
        // SAFETY: the running coroutine set this pointer to its own suspender, which it borrows while it runs.
        unsafe { yielder.as_ref() }.suspend(paused);
    }

    /// Registers the coroutine of the running CPU.
    pub fn begin(&self, yielder: &Yielder<(), Paused>) {
        self.cpu().yielder.set(Some(NonNull::from(yielder)));
    }

    /// Lets the blocked or sleeping `cpu` continue at `then`, or at its clock if that is later.
    pub fn wake(&self, cpu: u32, then: Ps) {
        let woken = &self.cpus[cpu as usize];
        let then = then.max(woken.clock.get());
        woken.turn.set(woken.turn.get() + 1);
        self.queue.borrow_mut().push(Reverse(Turn::new(then, cpu, woken.turn.get())));
        self.limit.set(self.limit.get().min(then + self.ahead));
    }

    /// Chooses the next CPU after the running one has suspended; `None` if no CPU can run.
    pub fn next(&self, paused: Option<Paused>) -> Option<u32> {
        let mut queue = self.queue.borrow_mut();
        let mut mine = match paused {
            Some(Paused::Until(then)) => Some(Reverse(Turn::new(then, self.me(), self.cpu().turn.get()))),
            Some(Paused::Blocked) | None => None,
        };
        loop {
            // Replacing the top of the heap takes one sift instead of two.
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

    /// Runs `f`; coroutines on this thread find this machine meanwhile.
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

    /// Charges the running CPU and its socket's memory for one page.
    pub fn use_memory(&self, alone: Ps) {
        self.nearly_in_turn();
        let memory = &self.memory[(self.me() / self.prices.cpus_per_socket) as usize];
        let began = memory.get().max(self.clock());
        memory.set(began + self.prices.page);
        self.set_clock((self.clock() + alone).max(began + self.prices.page));
    }
}
