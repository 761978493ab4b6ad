//! Cache lines: who has each, what it takes to get it, and which are fought over.
//!
//! A line is with one CPU alone, which may write it, or with several, which may read it. Getting it takes the time of a
//! transfer, from this socket or from further away, and a line makes one journey at a time: who comes meanwhile waits. Of
//! reads the journeys overlap, but for a part: whoever has the line can answer the next while the last is on its way.
//! Caches here have no end: a line stays where it was used last. One that nobody has used yet costs no journey.

use crate::cpu::{Machine, Prices, Ps};
use core::panic::Location;

/// What an operation does to a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Load,
    Store,
    Rmw,
}

/// The part of a transfer for which a line that is only read is busy.
const READS_OVERLAP: Ps = 4;

/// Nobody has had it.
const NOBODY: u32 = u32::MAX;
/// With a number of a [`Sharers`] below it: several CPUs have it.
const SHARED: u32 = 1 << 31;

/// One line, as far as each access looks at it.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Its address in lines, plus one; 0 is no line.
    tag: u64,
    /// The CPU that has it alone, or who share it.
    holder: u32,
    /// Its place in [`Lines::fought`], plus one.
    fought: u32,
    /// When its last journey ends.
    free: Ps,
}

const EMPTY: Line = Line { tag: 0, holder: NOBODY, fought: 0, free: 0 };

/// What has been told of a line that travels, or of a lock in it.
#[derive(Clone, Copy, Debug)]
pub struct Fought {
    /// Who waited longest for it.
    pub site: &'static Location<'static>,
    longest: Ps,
    pub transfers: u64,
    pub waited: Ps,
}

/// All lines: a table with open addresses, by the line's own, and who shares those that are shared.
#[derive(Debug)]
pub struct Lines {
    table: Vec<Line>,
    used: usize,
    /// A bit for each CPU, in so many `words` for each line that is shared.
    sharers: Vec<u64>,
    words: usize,
    /// Places in `sharers` that are free again.
    spare: Vec<u32>,
    cpus_per_socket: u32,
    fought: Vec<Fought>,
}

impl Lines {
    pub fn new(cpus: u32, cpus_per_socket: u32) -> Self {
        let words = cpus.div_ceil(64) as usize;
        Self {
            table: vec![EMPTY; 1 << 12],
            used: 0,
            sharers: Vec::new(),
            words,
            spare: Vec::new(),
            cpus_per_socket,
            fought: Vec::new(),
        }
    }

    /// Where the line is, which is there from now on.
    #[inline(always)]
    fn find(&mut self, line: u64) -> usize {
        let mask = self.table.len() - 1;
        let mut at = (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize & mask;
        loop {
            let tag = self.table[at].tag;
            if tag == line + 1 {
                return at;
            }
            if tag == 0 {
                return self.add(line, at);
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn add(&mut self, line: u64, at: usize) -> usize {
        self.table[at].tag = line + 1;
        self.used += 1;
        if self.used * 2 <= self.table.len() {
            return at;
        }
        let larger = vec![EMPTY; self.table.len() * 4];
        self.used = 0;
        for line in core::mem::replace(&mut self.table, larger).into_iter().filter(|line| line.tag != 0) {
            let at = self.find(line.tag - 1);
            self.table[at] = line;
        }
        self.find(line)
    }

    /// Whether `cpu` has it, and needs nobody's leave for the access.
    #[inline(always)]
    fn has(&self, holder: u32, cpu: u32, access: Access) -> bool {
        holder == cpu
            || is_shared(holder) && access == Access::Load && self.bits(holder)[word(cpu)] & bit(cpu) != 0
    }

    fn bits(&self, holder: u32) -> &[u64] {
        let first = (holder & !SHARED) as usize * self.words;
        &self.sharers[first..first + self.words]
    }

    /// Whether a CPU of this one's socket has it, and whether one of another socket has.
    fn neighbours(&self, holder: u32, cpu: u32) -> (bool, bool) {
        let near = |other: u32| other / self.cpus_per_socket == cpu / self.cpus_per_socket;
        if !is_shared(holder) {
            return (near(holder), !near(holder));
        }
        let all =
            (0..).zip(self.bits(holder)).flat_map(|(at, &word)| bits_of(word).map(move |bit| at * 64 + bit));
        all.filter(|&other| other != cpu)
            .fold((false, false), |found, other| (found.0 || near(other), found.1 || !near(other)))
    }

    /// `cpu` reads what `holder` had.
    fn share(&mut self, holder: u32, cpu: u32) -> u32 {
        let shared = if is_shared(holder) {
            holder
        } else {
            let place = self.spare.pop().unwrap_or_else(|| {
                self.sharers.resize(self.sharers.len() + self.words, 0);
                (self.sharers.len() / self.words - 1) as u32
            });
            self.sharers[place as usize * self.words + word(holder)] |= bit(holder);
            place | SHARED
        };
        self.sharers[(shared & !SHARED) as usize * self.words + word(cpu)] |= bit(cpu);
        shared
    }

    /// Nobody shares it any more.
    fn take(&mut self, holder: u32) {
        if is_shared(holder) {
            let first = (holder & !SHARED) as usize * self.words;
            self.sharers[first..first + self.words].fill(0);
            self.spare.push(holder & !SHARED);
        }
    }

    /// A line that `cpu` has not, or not alone, comes to it: when it is there, how long it waited for others' journeys.
    fn journey(&mut self, at: usize, (cpu, now): (u32, Ps), access: Access, prices: &Prices) -> (Ps, Ps) {
        let Line { holder, free, .. } = self.table[at];
        if holder == NOBODY {
            self.table[at].holder = cpu;
            return (now, 0);
        }
        let (near, far) = self.neighbours(holder, cpu);
        let reads = access == Access::Load;
        // A read is answered by the nearest; a write has to reach everybody.
        let time = if if reads { near } else { !far } { prices.near } else { prices.far };
        let began = now.max(free);
        self.table[at].free = began + if reads { time / READS_OVERLAP } else { time };
        self.table[at].holder = if reads {
            self.share(holder, cpu)
        } else {
            self.take(holder);
            cpu
        };
        (began + time, began - now)
    }

    /// It has travelled so often, and was waited for.
    fn note(&mut self, at: usize, site: &'static Location<'static>, transfers: u64, waited: Ps) {
        if self.table[at].fought == 0 {
            self.fought.push(Fought { site, longest: 0, transfers: 0, waited: 0 });
            self.table[at].fought = self.fought.len() as u32;
        }
        let fought = &mut self.fought[self.table[at].fought as usize - 1];
        fought.transfers += transfers;
        fought.waited += waited;
        if waited > fought.longest {
            (fought.site, fought.longest) = (site, waited);
        }
    }

    /// What has been told of each line that travelled.
    pub fn fought(&self) -> &[Fought] {
        &self.fought
    }
}

fn is_shared(holder: u32) -> bool {
    holder & SHARED != 0 && holder != NOBODY
}

fn word(cpu: u32) -> usize {
    cpu as usize / 64
}

fn bit(cpu: u32) -> u64 {
    1 << (cpu % 64)
}

/// The numbers of the bits that are set.
fn bits_of(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

impl Machine {
    /// The CPU that runs accesses a line, which costs what the access does, and the journey if the line is elsewhere.
    #[inline]
    pub fn access(&self, address: usize, access: Access, site: &'static Location<'static>) {
        self.events.set(self.events.get() + 1);
        self.nearly_in_turn();
        let line = address as u64 >> 6;
        let mut lines = self.lines.borrow_mut();
        let at = lines.find(line);
        if !lines.has(lines.table[at].holder, self.me(), access) {
            drop(lines);
            self.get(line, access, site);
        }
        self.spend(match access {
            Access::Load => self.prices.load,
            Access::Store => self.prices.store,
            Access::Rmw => self.prices.rmw,
        });
    }

    #[cold]
    fn get(&self, line: u64, access: Access, site: &'static Location<'static>) {
        self.in_turn();
        let mut lines = self.lines.borrow_mut();
        let at = lines.find(line);
        // Others may have gone first, and left it as it is wanted.
        if lines.has(lines.table[at].holder, self.me(), access) {
            return;
        }
        let (there, waited) = lines.journey(at, (self.me(), self.clock()), access, &self.prices);
        if there > self.clock() {
            lines.note(at, site, 1, waited);
            self.cpu().waiting.set(self.cpu().waiting.get() + waited);
            self.set_clock(there);
        }
    }

    /// The CPU that runs has waited for the lock at `address` since `began`.
    pub fn waited(&self, address: usize, began: Ps, site: &'static Location<'static>) {
        let waited = self.clock() - began;
        self.cpu().waiting.set(self.cpu().waiting.get() + waited);
        let mut lines = self.lines.borrow_mut();
        let at = lines.find(address as u64 >> 6);
        lines.note(at, site, 0, waited);
    }
}
