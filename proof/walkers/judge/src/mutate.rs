//! Checks that every bit that we write has an effect: flips each bit of a leaf of each size, and of a link, in turn.
//!
//! A flip is noticed if any of three accesses has another result than with the original entry, or other Accessed or
//! Dirty bits are set, or the memory has another type. Each flip is tried with both bits set, and with both clear.
//!
//! | bit | accesses |
//! |---|---|
//! | an address bit that leads to another part of the pattern | everything: the words say where they lie |
//! | any other address bit of a leaf | a load, which is harmless |
//! | any other address bit of a link | nothing, unless it leads beyond all memory: a walker could set Accessed in memory of another use |
//! | one that makes a link of a leaf of other memory than the pattern's | nothing, likewise |
//! | all others | everything |

use crate::bench::{self, Places};
use crate::judge::Flusher;
use crate::machine_trait::{Answer, CODE_OFFSET, Machine};
use crate::pattern::Pattern;
use crate::report::Verdict;
use crate::tables::{self, Step};
use core::fmt;
use slat::table::Word;
use slat::{Access, Fault, Format, Gfn, Gpa, Idle, Level, PAGE_SHIFT, Pfn};

/// First address bit beyond the memory of all emulated machines.
const BEYOND_MEMORY: u32 = 40;

const ACCESSES: [Access; 3] = [Access::Read, Access::Write, Access::Fetch];

/// The way in which a flip was noticed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Noticed {
    Not,
    LeftOut,
    MemoryType,
    AccessedDirty,
    Permission,
    Fault,
    Address,
}

impl fmt::Display for Noticed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Not => "not noticed",
            Self::LeftOut => "left out: it leads to memory of others",
            Self::MemoryType => "noticed by memory-type",
            Self::AccessedDirty => "noticed by accessed-dirty",
            Self::Permission => "noticed by permission",
            Self::Fault => "noticed by fault",
            Self::Address => "noticed by address",
        })
    }
}

/// Flips bits and prints `MUTATE …` for each. A bit that the format relies on and that no access notices is a
/// difference.
pub fn mutate<F: Format, M: Machine>(machine: &mut M, idle: &mut Idle) -> Verdict {
    let pattern = Pattern::fill(machine);
    let mut verdict = Verdict::default();
    machine.flush();
    let Some(places) = Places::find::<F, M>(machine) else { return failed(machine) };
    let Some(vm) = bench::build::<F, M>(machine, idle, (places, pattern)) else { return failed(machine) };
    let Some(mut vcpu) = bench::vcpu(machine, &vm, idle) else { return failed(machine) };
    for size in (1..=F::MAX_LEAF.number()).filter_map(Level::new) {
        // In a GiB, the pages of the pattern.
        let inside = if size == Level::G1 { vm.host().gib_page(pattern.frames().start) } else { 0 } + 32;
        let gfn = places.of(size) + inside;
        for access in [Access::Write, Access::Fetch] {
            if vcpu.fault(idle, Fault { gpa: gfn.gpa(), access }).is_err() {
                return failed(machine);
            }
        }
        let root = vcpu.enter(idle, &mut Flusher(machine)).root();
        // SAFETY: the engine is not called while the steps are used.
        let path = unsafe { tables::path::<F>(root, gfn) };
        let leaf = path[path.len() - 1];
        let address = pattern.frames().start.address()
            + match size {
                Level::M2 => Level::M2.bytes() + (32 << PAGE_SHIFT),
                _ => 32 << PAGE_SHIFT,
            };
        let mut bench = Bench { machine, pattern, root, gfn, address, verdict: &mut verdict };
        bench.flip_all::<F>(leaf, leaf.word, false);
        if size == Level::K4 {
            // Moves its leaf table into the pattern, so that flipped address bits lead to entries that are not present.
            let link = path[path.len() - 2];
            let table = pattern.frames().end.0 - 0x15;
            bench.copy_table(leaf.table, Pfn(table));
            bench.flip_all::<F>(link, F::link(Pfn(table), link.level), true);
        }
    }
    Pattern::fill(machine);
    machine.flush();
    let (format, name) = (F::NAME, machine.name());
    let Verdict { lookups, differences, .. } = verdict;
    machine.log(format_args!(
        "MUTATED {format} {name}: {lookups} look-ups, {differences} bits that went unnoticed and matter"
    ));
    verdict
}

fn failed<M: Machine>(machine: &mut M) -> Verdict {
    machine.log(format_args!("DIFF no VM could be built to flip bits in"));
    Verdict { differences: 1, ..Verdict::default() }
}

/// A page that is repeatedly looked up through one entry.
struct Bench<'b, M> {
    machine: &'b mut M,
    pattern: Pattern,
    root: Pfn,
    gfn: Gfn,
    /// Physical address of the page.
    address: u64,
    verdict: &'b mut Verdict,
}

impl<M: Machine> Bench<'_, M> {
    fn copy_table(&self, from: Pfn, to: Pfn) {
        for index in 0..512 {
            // SAFETY: a table in use, of atomic words.
            let word = unsafe { Step { level: Level::K4, table: from, index, word: Word(0) }.entry() }.peek();
            self.pattern.store(to.address() + index as u64 * 8, word.0);
        }
    }

    /// Flips each bit of `word` at `step`, and restores the old word.
    fn flip_all<F: Format>(&mut self, step: Step, word: Word, link: bool) {
        let kind = match (link, step.level) {
            (true, _) => "link",
            (_, Level::K4) => "leaf-4K",
            (_, Level::M2) => "leaf-2M",
            _ => "leaf-1G",
        };
        let mut begun: Option<(u32, &'static str, Noticed)> = None;
        for bit in 0..=64 {
            let next = (bit < 64).then(|| {
                let noticed = self.flip::<F>(step, word, (bit, link));
                let (name, matters) = name::<F>(word, step.level, (bit, link));
                self.verdict.differences += u64::from(matters && noticed == Noticed::Not);
                (bit, name, noticed)
            });
            // Consecutive bits with the same result share a line.
            let alike =
                |(_, name, how): (_, &str, _), (_, other, other_how)| (name, how) == (other, other_how);
            if begun.zip(next).is_some_and(|(begun, next)| alike(begun, next)) {
                continue;
            }
            if let Some((first, name, noticed)) = begun {
                let (format, machine, last) = (F::NAME, self.machine.name(), bit - 1);
                if first == last {
                    self.machine
                        .log(format_args!("MUTATE {format} {machine} {kind} bit {first} {name}: {noticed}"));
                } else {
                    self.machine.log(format_args!(
                        "MUTATE {format} {machine} {kind} bits {first}-{last} {name}: {noticed}"
                    ));
                }
            }
            begun = next;
        }
        // SAFETY: as in `trial`; the word is the engine's own.
        unsafe { step.entry().store_raw(step.word) };
        self.machine.flush();
    }

    fn flip<F: Format>(&mut self, step: Step, word: Word, (bit, link): (u32, bool)) -> Noticed {
        let flip = 1 << bit;
        let mut accesses = &ACCESSES[..];
        if F::ADDRESS & flip != 0 {
            let there =
                if link { F::pfn(word).address() } else { self.address } ^ F::pfn(Word(flip)).address();
            let inside = self.pattern.load(there & !7).is_some();
            if !inside && !link {
                accesses = &ACCESSES[..1];
            } else if !inside && F::pfn(Word(flip)).address() >> BEYOND_MEMORY == 0 {
                return Noticed::LeftOut;
            }
        }
        let becomes_link = !link && F::is_table(Word(word.0 ^ flip), step.level);
        if becomes_link && !self.pattern.frames().contains(F::pfn(word)) {
            return Noticed::LeftOut;
        }
        let touched = F::ACCESSED | F::DIRTY;
        let states = if link || !F::HARDWARE_AD {
            &[word, word][..1]
        } else {
            &[Word(word.0 | touched), Word(word.0 & !touched)][..]
        };
        let mut most = Noticed::Not;
        for &state in states {
            let mut refused = 0;
            for &access in accesses {
                let (answer, set, memory) = self.trial(step, state, access);
                let (other, other_set, other_memory) = self.trial(step, Word(state.0 ^ flip), access);
                let how = match (answer, other) {
                    (Answer::Through { value }, Answer::Through { value: other }) if value != other => {
                        Noticed::Address
                    }
                    (Answer::Through { .. }, Answer::Through { .. }) if set != other_set => {
                        Noticed::AccessedDirty
                    }
                    (Answer::Through { .. }, Answer::Through { .. }) if memory != other_memory => {
                        Noticed::MemoryType
                    }
                    (Answer::Through { .. }, Answer::Fault { .. }) => {
                        refused += 1;
                        Noticed::Permission
                    }
                    (Answer::Fault { .. }, Answer::Through { .. }) => Noticed::Permission,
                    _ => Noticed::Not,
                };
                most = most.max(how);
            }
            if refused == accesses.len() {
                most = most.max(Noticed::Fault);
            }
        }
        most
    }

    /// Makes one access through `word` at `step`. Returns the answer, the bits that the walker set there, and the
    /// memory type.
    fn trial(&mut self, step: Step, word: Word, access: Access) -> (Answer, u64, Option<u64>) {
        // SAFETY: the engine is not called while steps are used, and finds its own words again.
        let entry = unsafe { step.entry() };
        // SAFETY: as above.
        unsafe { entry.store_raw(word) };
        self.machine.flush();
        self.verdict.lookups += 1;
        let offset = if access == Access::Fetch { CODE_OFFSET } else { 0x128 };
        let gpa = Gpa(self.gfn.gpa().0 + offset);
        let stored_at = Some(self.address + offset);
        let answer = bench::access(self.machine, self.pattern, self.root, (gpa, access), stored_at);
        let answer = match answer {
            Answer::Through { value } if access == Access::Fetch => Answer::Through { value: value & !0xfff },
            answer => answer,
        };
        let set = entry.peek().0 & !word.0;
        let loaded = access == Access::Read && matches!(answer, Answer::Through { .. });
        (answer, set, if loaded { self.machine.memory_type(self.root, gpa) } else { None })
    }
}

/// Returns the format's name of a bit, and whether the format relies on the bit's effect.
fn name<F: Format>(word: Word, level: Level, (bit, link): (u32, bool)) -> (&'static str, bool) {
    let is = |bits: u64| bits & 1 << bit != 0;
    if is(F::ADDRESS) {
        let offset = !link && F::pfn(Word(1 << bit)).address() < level.bytes();
        return if offset { ("address-below-page", false) } else { ("address", true) };
    }
    if is(F::PRESENT) {
        // A walker for which links allow everything, as in our formats, checks one of these bits there.
        return ("present", !link || is(F::TABLE_BITS));
    }
    // A flip that turns a link into a leaf, or a leaf into a link.
    if F::is_table(Word(word.0 ^ 1 << bit), level) != link {
        return ("link-or-leaf", true);
    }
    if link {
        return if is(F::touch_link(level)) { ("accessed", true) } else { attribute(is(word.0)) };
    }
    if is(F::WRITE) {
        ("write", true)
    } else if is(F::ACCESSED) {
        ("accessed", true)
    } else if is(F::DIRTY) {
        // A bit that the walker does not set belongs to software.
        ("dirty", is(F::touch(Access::Write)))
    } else if is(F::HOST_WRITE) {
        ("host-writable", false)
    } else {
        attribute(is(word.0))
    }
}

fn attribute(set: bool) -> (&'static str, bool) {
    (if set { "attribute" } else { "other" }, false)
}
