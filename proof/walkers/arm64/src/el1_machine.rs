//! The judge's machine: a guest at EL1 under stage 2, on QEMU's `virt` board.
//!
//! The guest's own access decides, because it uses the TLB as every guest does. If no stale translation can interfere,
//! the processor is also asked by `AT`. The two must agree, the word that the guest read or wrote must be where `AT`
//! says, and the memory there must be ordinary memory.

use crate::console;
use crate::guest_access::{self, Exit};
use crate::stage2::{self, Stage2, Translation};
use core::fmt;
use slat::{Access, Gfn, Gpa, MemoryType, Pfn, Span};
use slat_judge::{Answer, FaultWhy, Fixed, Machine, Ram};

/// RAM: 1 GiB at 1 GiB (`-m 1G`). Its first 64 MiB are the program and its heap (`link.ld`).
pub const RAM: Span<Pfn> = Span { start: Pfn(0x4_0000), end: Pfn(0x8_0000) };
/// The guest's memory: 32 MiB, behind the heap.
pub const PATTERN: Span<Pfn> = Span { start: Pfn(0x4_4000), end: Pfn(0x4_6000) };

/// The machine.
pub struct El1 {
    fixed: [Fixed; 1],
    asks_twice: bool,
    /// Number of differences between the two answers, and the first such pair.
    disagreements: u64,
    first: Option<(Gpa, Access, Answer, Translation)>,
}

impl El1 {
    /// Makes a machine with this stage 2. `asks_twice`: also asks `AT`; not for checks of stale translations, since
    /// `AT` always walks.
    pub fn new(stage2: Stage2, asks_twice: bool) -> Self {
        guest_access::prepare();
        stage2.begin();
        let page = guest_access::own_page();
        let fixed = [Fixed { gfn: Gfn(page.0), pages: 1, pfn: page }];
        Self { fixed, asks_twice, disagreements: 0, first: None }
    }

    /// Returns the number of differences since the last call.
    pub fn disagreements(&mut self) -> u64 {
        core::mem::take(&mut self.disagreements)
    }

    /// The same for a run without expected differences: prints the first pair.
    pub fn tell_disagreements(&mut self) -> u64 {
        if let Some((gpa, access, answer, second)) = self.first.take() {
            console::println!("DIFF {access:?} at {gpa}: the access says {answer:x?}, AT {second:x?}");
        }
        self.disagreements()
    }

    /// Asks the processor again, and compares.
    fn compare(&mut self, gpa: Gpa, access: Access, answer: Answer) {
        // QEMU 10 stops at an assertion when `AT` meets a refused permission.
        if matches!(answer, Answer::Fault { why: FaultWhy::Permission | FaultWhy::Unsaid, .. }) {
            return;
        }
        let Some(second) = stage2::translate(gpa, access) else { return };
        let agree = match (answer, second) {
            (Answer::Through { value }, Translation::Memory(pfn, _)) => {
                RAM.contains(pfn) && word(pfn, gpa.offset()) == value
            }
            (Answer::Fault { why, level, .. }, Translation::Fault(second_why, second_level)) => {
                (why, level) == (second_why, second_level)
            }
            _ => false,
        };
        if !agree {
            self.disagreements += 1;
            self.first.get_or_insert((gpa, access, answer, second));
        }
    }
}

/// A word of the guest's memory.
fn word(pfn: Pfn, offset: u64) -> u64 {
    let word: *const u64 = core::ptr::with_exposed_provenance((pfn.address() + offset) as usize);
    // SAFETY: inside RAM, identity mapped, aligned; volatile, since the guest writes it by instructions of its own.
    unsafe { word.read_volatile() }
}

// SAFETY: the pattern lies behind the program and its heap (link.ld), in RAM that nothing else uses.
unsafe impl Machine for El1 {
    const SHOWS_STALE: bool = true;

    fn name(&self) -> &'static str {
        "QEMU TCG, arm64"
    }

    fn ram(&self) -> Ram {
        Ram { pattern: PATTERN, gib: RAM.start }
    }

    fn fixed(&self) -> &[Fixed] {
        &self.fixed
    }

    fn gpa_bits(&self) -> u32 {
        stage2::physical_bits()
    }

    fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer {
        stage2::load(root);
        let answer = match guest_access::touch(gpa, access, value) {
            Exit::Through { x0, x1 } => {
                Answer::Through { value: if access == Access::Fetch { x0 } else { x1 } }
            }
            Exit::Refused(abort) => {
                Answer::Fault { why: abort.why, level: abort.level, gpa: Some(abort.gpa), allowed: None }
            }
            Exit::Own => Answer::Fault { why: FaultWhy::Unsaid, level: None, gpa: None, allowed: None },
        };
        if self.asks_twice {
            self.compare(gpa, access, answer);
        }
        answer
    }

    fn memory_type(&mut self, root: Pfn, gpa: Gpa) -> Option<u64> {
        stage2::load(root);
        match stage2::translate(gpa, Access::Read)? {
            Translation::Memory(_, told) => Some(told),
            Translation::Fault(..) => None,
        }
    }

    fn told_of(memory: MemoryType) -> Option<u64> {
        Some(stage2::told_of(memory))
    }

    fn flush(&mut self) {
        stage2::flush();
    }

    fn write_code(&self, pfn: Pfn) {
        guest_access::write_code(pfn);
    }

    fn log(&mut self, line: fmt::Arguments<'_>) {
        console::line(line);
    }
}
