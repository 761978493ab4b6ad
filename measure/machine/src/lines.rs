//! Cache lines: who has each, what it takes to get it, and which are fought over.
//!
//! A line is with one CPU alone, which may write it, or with several, which may read it. Getting it takes the time of a
//! transfer, from this socket or from further away, and a line makes one journey at a time: who comes meanwhile waits. Of
//! reads the journeys overlap, but for a part: the CPU that has the line can answer the next while the last is on its way.
//! Caches here have no end: a line stays where it was used last. One that no CPU has used yet costs no journey.

use crate::prices::{Prices, Ps};
use crate::schedule::Access;
use core::panic::Location;

/// The part of a transfer for which a line that is only read is busy.
const READS_OVERLAP: Ps = 4;

/// One line. Small, and those of neighbours side by side, since this is looked at in each operation.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Its number, plus one, and below that who has it; 0 is no line.
    word: u64,
    /// When its last journey ends.
    free: Ps,
}

/// The holder of a line: the number of a CPU; with [`SHARED`], the number of a set of CPUs; or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holder(u64);

const HOLDER_BITS: u32 = 22;
const SHARED: u64 = 1 << (HOLDER_BITS - 1);
/// With one CPU alone, that got it from another: operations on it keep to their turns.
const TRAVELLED: u64 = 1 << (HOLDER_BITS - 2);
const NO_CPU: Holder = Holder((1 << HOLDER_BITS) - 1);
/// Places of the table at first, and for each line at least.
const SMALLEST: usize = 1 << 12;
const SPARSE: usize = 3;
/// Neighbours whose places are neighbours.
const GROUP: u64 = 4;

impl Holder {
    fn cpu(cpu: u32) -> Self {
        Self(u64::from(cpu))
    }

    /// The CPU that has it alone.
    fn alone(self) -> u32 {
        (self.0 & !TRAVELLED) as u32
    }

    fn is_shared(self) -> bool {
        self.0 & SHARED != 0 && self != NO_CPU
    }

    /// Where the set's bits begin, in so many words each.
    fn first(self, words: usize) -> usize {
        (self.0 & !SHARED) as usize * words
    }
}

impl Line {
    const EMPTY: Self = Self { word: 0, free: 0 };

    fn tag(line: u64) -> u64 {
        (line + 1) << HOLDER_BITS
    }

    fn holder(self) -> Holder {
        Holder(self.word & NO_CPU.0)
    }

    fn set_holder(&mut self, holder: Holder) {
        self.word = self.word & !NO_CPU.0 | holder.0;
    }

    /// The number of the line.
    fn line(self) -> u64 {
        (self.word >> HOLDER_BITS) - 1
    }

    fn is(self, line: u64) -> bool {
        self.word & !NO_CPU.0 == Self::tag(line)
    }
}

/// The statistics of a line that travels, or of a lock in it.
#[derive(Clone, Copy, Debug)]
pub struct Fought {
    /// The place in the program that waited longest for it.
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
    spare: Vec<Holder>,
    cpus_per_socket: u32,
    /// For each place of the table, the one in `fought`, plus one.
    notes: Vec<u32>,
    fought: Vec<Fought>,
}

impl Lines {
    pub fn new(cpus: u32, cpus_per_socket: u32) -> Self {
        Self {
            table: vec![Line::EMPTY; SMALLEST],
            used: 0,
            sharers: Vec::new(),
            words: cpus.div_ceil(64) as usize,
            spare: Vec::new(),
            cpus_per_socket,
            notes: vec![0; SMALLEST],
            fought: Vec::new(),
        }
    }

    /// A line's first place. The upper bits of the product depend on all bits of its number but the last.
    #[inline(always)]
    fn place(&self, line: u64) -> usize {
        let group = (line / GROUP).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (group * GROUP + line % GROUP) as usize & (self.table.len() - 1)
    }

    /// [`has`](Self::has), as far as can be seen at the line's first place.
    #[inline(always)]
    pub fn has_at_once(&self, line: u64, cpu: u32, access: Access) -> bool {
        let found = self.table[self.place(line)];
        found.word == Line::tag(line) | u64::from(cpu)
            || access == Access::Load && found.is(line) && self.shares(found.holder(), cpu)
    }

    /// Where the line is, which is there from now on.
    pub fn find(&mut self, line: u64) -> usize {
        let mut at = self.place(line);
        while self.table[at].word != 0 {
            if self.table[at].is(line) {
                return at;
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        self.add(line, at)
    }

    #[cold]
    fn add(&mut self, line: u64, at: usize) -> usize {
        self.table[at].word = Line::tag(line) | NO_CPU.0;
        self.used += 1;
        if self.used * SPARSE <= self.table.len() {
            return at;
        }
        let larger = self.table.len() * 4;
        let lines = core::mem::replace(&mut self.table, vec![Line::EMPTY; larger]);
        let notes = core::mem::replace(&mut self.notes, vec![0; larger]);
        self.used = 0;
        for (line, note) in lines.into_iter().zip(notes).filter(|(line, _)| line.word != 0) {
            let at = self.find(line.line());
            (self.table[at], self.notes[at]) = (line, note);
        }
        self.find(line)
    }

    /// Whether `cpu` has it, and needs no other CPU's leave for the access.
    fn has(&self, holder: Holder, cpu: u32, access: Access) -> bool {
        if holder.is_shared() {
            access == Access::Load && self.shares(holder, cpu)
        } else {
            holder != NO_CPU && holder.alone() == cpu
        }
    }

    #[inline(always)]
    fn shares(&self, holder: Holder, cpu: u32) -> bool {
        holder.is_shared() && self.sharers[holder.first(self.words) + word(cpu)] & bit(cpu) != 0
    }

    /// Whether a CPU of this one's socket has it, and whether one of another socket has.
    fn neighbours(&self, holder: Holder, cpu: u32) -> (bool, bool) {
        let near = |other: u32| other / self.cpus_per_socket == cpu / self.cpus_per_socket;
        if !holder.is_shared() {
            let near = near(holder.alone());
            return (near, !near);
        }
        let words = &self.sharers[holder.first(self.words)..][..self.words];
        (0..)
            .zip(words)
            .flat_map(|(at, &word)| bits_of(word).map(move |bit| at * 64 + bit))
            .filter(|&other| other != cpu)
            .fold((false, false), |found, other| (found.0 || near(other), found.1 || !near(other)))
    }

    /// `cpu` reads what `holder` had.
    fn share(&mut self, holder: Holder, cpu: u32) -> Holder {
        let mut shared = holder;
        if !holder.is_shared() {
            shared = self.spare.pop().unwrap_or_else(|| {
                let place = self.sharers.len() / self.words;
                self.sharers.resize(self.sharers.len() + self.words, 0);
                Holder(place as u64 | SHARED)
            });
            self.sharers[shared.first(self.words) + word(holder.alone())] |= bit(holder.alone());
        }
        self.sharers[shared.first(self.words) + word(cpu)] |= bit(cpu);
        shared
    }

    /// No CPU shares it any more.
    fn take(&mut self, holder: Holder) {
        if holder.is_shared() {
            self.sharers[holder.first(self.words)..][..self.words].fill(0);
            self.spare.push(holder);
        }
    }

    /// A line that `cpu` has not, or not alone, comes to it: when it is there, how long it waited for others' journeys.
    pub fn journey(&mut self, at: usize, (cpu, now): (u32, Ps), access: Access, prices: &Prices) -> (Ps, Ps) {
        let (holder, free) = (self.table[at].holder(), self.table[at].free);
        if holder == NO_CPU {
            self.table[at].set_holder(Holder::cpu(cpu));
            return (now, 0);
        }
        let reads = access == Access::Load;
        let (near, far) = self.neighbours(holder, cpu);
        // A read is answered by the nearest; a write has to reach every CPU.
        let is_near = if reads { near } else { !far };
        let time = if is_near { prices.near } else { prices.far };
        let began = now.max(free);
        let holder = if reads {
            self.share(holder, cpu)
        } else {
            self.take(holder);
            Holder(u64::from(cpu) | TRAVELLED)
        };
        self.table[at].set_holder(holder);
        self.table[at].free = began + if reads { time / READS_OVERLAP } else { time };
        (began + time, began - now)
    }

    /// The line at a place has travelled so often, and was waited for.
    pub fn note(&mut self, at: usize, site: &'static Location<'static>, transfers: u64, waited: Ps) {
        if self.notes[at] == 0 {
            self.fought.push(Fought { site, longest: 0, transfers: 0, waited: 0 });
            self.notes[at] = self.fought.len() as u32;
        }
        let fought = &mut self.fought[self.notes[at] as usize - 1];
        fought.transfers += transfers;
        fought.waited += waited;
        if waited > fought.longest {
            (fought.site, fought.longest) = (site, waited);
        }
    }

    /// Whether the line at a place is with `cpu` as the access needs it, and whether it never travelled to one CPU alone.
    pub fn is_here(&self, at: usize, cpu: u32, access: Access) -> (bool, bool) {
        let holder = self.table[at].holder();
        (self.has(holder, cpu, access), holder.is_shared() || holder.0 & TRAVELLED == 0)
    }

    /// No CPU has used the line.
    pub fn forget(&mut self, line: u64) {
        let at = self.find(line);
        let holder = self.table[at].holder();
        self.take(holder);
        self.table[at].set_holder(NO_CPU);
        self.table[at].free = 0;
        self.notes[at] = 0;
    }

    /// The statistics of each line that travelled.
    pub fn fought(&self) -> &[Fought] {
        &self.fought
    }
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

/// The number of the line at an address.
pub fn line_of(address: usize) -> u64 {
    address as u64 >> 6
}
