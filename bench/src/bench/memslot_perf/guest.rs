//! The guests: they touch one word a page, and know what it has to be.
//!
//! | guest | what it does |
//! |---|---|
//! | [`Laps`] | goes through one half of its pages, meets the host, goes through the other half, … |
//! | [`Loop`] | goes round a few pages until it is stopped |
//!
//! A page that the host takes away comes back as its other frame ([`super::memory`]). So in [`Laps`] a page holds
//! what was written to it two laps of its half ago; anything else means that a vCPU used a frame that the host had
//! taken back, or that a fault found the wrong one. In [`Loop`] pages keep what was written last.

use slat::{Fault, Format, Gfn, Host, Span};
use slat_vcpu::cpu::{Core, Program, Step};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::{hint, thread};

/// What a guest has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Words read …
    pub words: u64,
    /// … that were not what they had to be.
    pub wrong: u64,
    /// Accesses to no memory …
    pub exits: u64,
    /// … where there had to be some.
    pub wrong_exits: u64,
}

/// Where host and guest wait for each other. Each counts what it has finished; one that has gone for good has
/// finished everything. The guest begins a lap when the host has finished one more than the guest: the host's first
/// is to have everything ready.
#[derive(Debug, Default)]
pub struct Meeting {
    pub host: Side,
    pub guest: Side,
}

/// A count on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Side(AtomicU64);

const GONE: u64 = u64::MAX;

/// Waits a little; gives the CPU away now and then, for machines with fewer CPUs than threads.
#[derive(Debug, Default)]
struct Spins(u32);

impl Spins {
    fn wait(&mut self) {
        const SPINS_BEFORE_YIELD: u32 = 1 << 10;
        self.0 += 1;
        if self.0.is_multiple_of(SPINS_BEFORE_YIELD) { thread::yield_now() } else { hint::spin_loop() }
    }
}

impl Side {
    /// Has finished `laps` laps.
    pub fn finish(&self, laps: u64) {
        // ORDER(lap): Release: what was done in the lap, before it counts as finished; pairs with `finished`.
        self.0.store(laps, Release);
    }

    /// Has finished for good.
    pub fn leave(&self) {
        self.finish(GONE);
    }

    fn finished(&self) -> u64 {
        // ORDER(lap): Acquire; pairs with `finish`.
        self.0.load(Acquire)
    }

    /// Waits until so many laps are finished.
    pub fn wait_for(&self, laps: u64) {
        let mut spins = Spins::default();
        while self.finished() < laps {
            spins.wait();
        }
    }
}

/// See the module's header. Stops when the host has left, after a look at the half that it wrote last.
#[derive(Debug)]
pub struct Laps<'m> {
    meeting: &'m Meeting,
    halves: [Span<Gfn>; 2],
    lap: u64,
    /// The next page; past the half's last one while it waits for the host.
    at: Gfn,
    over: bool,
    spins: Spins,
    pub seen: Seen,
}

impl<'m> Laps<'m> {
    /// Pages of both halves, none of them empty.
    pub fn new(meeting: &'m Meeting, halves: [Span<Gfn>; 2]) -> Self {
        let (spins, seen) = (Spins::default(), Seen::default());
        Self { meeting, halves, lap: 0, at: halves[0].start, over: false, spins, seen }
    }

    fn half(&self) -> Span<Gfn> {
        self.halves[(self.lap % 2) as usize]
    }

    /// What a page is given in its half's lap `nth`, from 0; before that it was zero.
    fn word(gfn: Gfn, nth: Option<u64>) -> u64 {
        nth.map_or(0, |nth| gfn.0 << 32 | nth + 1)
    }

    /// At a half's end: the host may still be busy with the other half.
    fn wait(&mut self) -> Step {
        match self.meeting.host.finished() {
            GONE if self.over => return Step::Stop,
            GONE => self.over = true,
            host if host > self.lap + 1 => self.lap += 1,
            _ => {
                self.spins.wait();
                return Step::Next;
            }
        }
        self.at = self.half().start;
        Step::Next
    }
}

impl Program for Laps<'_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if !self.half().contains(self.at) {
            return Ok(self.wait());
        }
        let gpa = self.at.gpa();
        let nth = self.lap / 2;
        let mut word = [0; 8];
        core.load(gpa, &mut word)?;
        let expected = if self.over {
            Self::word(self.at, Some(nth))
        } else {
            core.store(gpa, &Self::word(self.at, Some(nth)).to_le_bytes())?;
            Self::word(self.at, nth.checked_sub(2))
        };
        self.seen.words += 1;
        self.seen.wrong += u64::from(u64::from_le_bytes(word) != expected);
        self.at = self.at + 1;
        if !self.half().contains(self.at) && !self.over {
            self.meeting.guest.finish(self.lap + 1);
        }
        Ok(Step::Next)
    }
}

/// See the module's header. Stops when the host has left and all pages have been looked at once more.
#[derive(Debug)]
pub struct Loop<'m> {
    meeting: &'m Meeting,
    pages: Span<Gfn>,
    /// What each page was given last.
    written: Vec<u64>,
    at: usize,
    rounds: u64,
    /// Pages looked at since the host left.
    checked: Option<usize>,
    pub seen: Seen,
}

impl<'m> Loop<'m> {
    /// Over `pages`. With none of them it waits for the host to leave, in guest mode.
    pub fn new(meeting: &'m Meeting, pages: Span<Gfn>) -> Self {
        let written = vec![0; pages.len() as usize];
        Self { meeting, pages, written, at: 0, rounds: 0, checked: None, seen: Seen::default() }
    }

    /// Goes past an access that found no memory. In `allowed` that is in order while the host is about.
    pub fn skip(&mut self, gfn: Gfn, allowed: Span<Gfn>) {
        self.seen.exits += 1;
        self.seen.wrong_exits += u64::from(!allowed.contains(gfn) || self.checked.is_some());
        self.next();
    }

    fn next(&mut self) {
        self.at += 1;
        if self.at >= self.written.len() {
            (self.at, self.rounds) = (0, self.rounds + 1);
            self.meeting.guest.finish(self.rounds);
        }
        self.checked = self.checked.map(|checked| checked + 1);
    }
}

impl Program for Loop<'_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.checked.is_none() && self.meeting.host.finished() == GONE {
            self.checked = Some(0);
        }
        if self.checked.is_some_and(|checked| checked >= self.written.len()) {
            return Ok(Step::Stop);
        }
        let Some(last) = self.written.get(self.at).copied() else {
            self.next();
            hint::spin_loop();
            return Ok(Step::Next);
        };
        let gpa = (self.pages.start + self.at as u64).gpa();
        let mut word = [0; 8];
        core.load(gpa, &mut word)?;
        let new = last + 1;
        core.store(gpa, &new.to_le_bytes())?;
        self.seen.words += 1;
        self.seen.wrong += u64::from(u64::from_le_bytes(word) != last);
        self.written[self.at] = new;
        self.next();
        Ok(Step::Next)
    }
}
