//! The negative control of the second answer: a difference between `AT` and an access must be found.
//!
//! Removes a leaf of hand-made tables while the TLB has it. The access still uses the leaf; `AT` walks and finds none.

use crate::console::println;
use crate::el1_machine::{El1, PATTERN, RAM};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::table::formats::Arm64L39;
use slat::table::{Format, Leaf, Word};
use slat::{Access, Gpa, Level, MemoryType, PAGE_SHIFT, Perms, Pfn};
use slat_judge::{Answer, Machine, Verdict};

/// A page of table.
#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

impl Table {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    fn pfn(&'static self) -> Pfn {
        Pfn((&raw const *self).expose_provenance() as u64 >> PAGE_SHIFT)
    }

    fn set(&self, index: usize, word: Word) {
        self.0[index].store(word.0, Relaxed);
    }
}

static ROOT: Table = Table::new();
static MIDDLE: Table = Table::new();
static LEAVES: Table = Table::new();

/// Checks that a machine with stage 2 for 39 bits finds the expected differences between the two answers, and no
/// others. Prints `CONTROL …`.
pub fn second_answer_can_differ(machine: &mut El1) -> Verdict {
    let leaf = |pfn, level| {
        let leaf = Leaf {
            pfn,
            perms: Perms::RWX,
            memory: MemoryType::WriteBack,
            host_writable: true,
            accessed: true,
            dirty: true,
        };
        Arm64L39::leaf(&leaf, level)
    };
    // The guest's own page, through the map of all RAM.
    ROOT.set(1, leaf(RAM.start, Level::G1));
    ROOT.set(0, Arm64L39::link(MIDDLE.pfn(), Level::G1));
    MIDDLE.set(0, Arm64L39::link(LEAVES.pfn(), Level::M2));
    LEAVES.set(0, leaf(PATTERN.start, Level::K4));
    let load = |machine: &mut El1| {
        let answer = machine.access(ROOT.pfn(), Gpa(0), Access::Read, 0);
        (matches!(answer, Answer::Through { .. }), machine.disagreements())
    };
    let mapped = load(machine);
    LEAVES.set(0, Word(0));
    let stale = load(machine);
    machine.flush();
    let flushed = load(machine);
    let noticed = (mapped, stale, flushed) == ((true, 0), (true, 1), (false, 0));
    let how = if noticed { "noticed" } else { "not noticed" };
    println!("CONTROL {}: AT and an access by a stale entry do not agree: {how}", Arm64L39::NAME);
    Verdict { lookups: 3, differences: u64::from(!noticed), ..Verdict::default() }
}
