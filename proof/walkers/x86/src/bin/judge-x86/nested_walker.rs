//! The judge's machine: a processor's nested walker, and the guest that makes accesses through it.

use alloc::boxed::Box;
use core::fmt::Arguments;
use core::marker::PhantomData;
use slat::table::formats::Pae;
use slat::{Access, Format, Gpa, Level, PAGE_SHIFT, Pfn, Span};
use slat_judge::{Answer, Difference, FaultWhy, Fixed, Machine, Quirk, Ram};
use slat_walker_x86::cpu::{self, Vendor};
use slat_walker_x86::processor::{Exit, MemoryFault, Processor, Registers};
use slat_walker_x86::serial;
use slat_walker_x86::window::{self, Guest};

/// 16 MiB above the program and its heap, within the 512 MiB of every machine here.
const PATTERN: u64 = 128 << 20;
const PATTERN_BYTES: u64 = 16 << 20;

/// The emulator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emulator {
    /// QEMU's TCG.
    Qemu,
    /// Bochs.
    Bochs,
}

/// The Accessed bit of AMD's formats.
const ACCESSED: u64 = 1 << 5;

/// The entries of a PAE root have no Accessed bit. QEMU 7.2 sets bit 5; Bochs does not.
const ACCESSED_IN_PDPTE: Quirk = Quirk {
    name: "Accessed set in a PDPTE",
    explains: |difference| is_accessed_in(difference, Pae::ROOT_LEVEL),
};

/// A leaf that refuses an access must not get Accessed. QEMU 7.2 sets Accessed in a leaf of 1 GiB before it checks the
/// permissions, in smaller ones afterwards.
const ACCESSED_IN_REFUSING: Quirk = Quirk {
    name: "Accessed set in a 1G leaf that refuses",
    explains: |difference| {
        let refused = matches!(difference.answer, Answer::Fault { why: FaultWhy::Permission, .. });
        refused && is_accessed_in(difference, Level::G1)
    },
};

/// Returns whether the difference is an extra Accessed bit at this level.
fn is_accessed_in(difference: &Difference, level: Level) -> bool {
    difference.bits.is_some_and(|bits| bits.level == level && bits.found == bits.expected | ACCESSED)
}

/// A processor that walks tables of format `F`.
pub struct Walker<P, F> {
    guest: Box<Guest>,
    fixed: [Fixed; 1],
    processor: P,
    emulator: Emulator,
    format: PhantomData<F>,
}

impl<P: Processor, F: Format> Walker<P, F> {
    /// Makes a walker with a guest that has not run yet.
    pub fn new(emulator: Emulator) -> Self {
        let guest = Guest::new();
        let (fixed, processor) = ([guest.fixed()], P::new(&guest.start()));
        Self { guest, fixed, processor, emulator, format: PhantomData }
    }

    /// Keeps processor and guest, for tables of another format.
    pub fn of<G: Format>(self) -> Walker<P, G> {
        let Self { guest, fixed, processor, emulator, .. } = self;
        Walker { guest, fixed, processor, emulator, format: PhantomData }
    }

    /// Returns the processor.
    pub fn processor(&self) -> &P {
        &self.processor
    }

    /// The host is not in long mode while the guest runs.
    const IS_PAE: bool = F::LEVELS == Pae::LEVELS;
}

// SAFETY: the memory above the image is in every machine that these programs are run in, and used by nothing else.
unsafe impl<P: Processor, F: Format> Machine for Walker<P, F> {
    /// An exit may forget everything, and does in emulators.
    const SHOWS_STALE: bool = false;

    fn name(&self) -> &'static str {
        match (self.emulator, cpu::vendor()) {
            (Emulator::Qemu, Vendor::Amd) => "QEMU TCG, AMD-V",
            (Emulator::Qemu, _) => "QEMU TCG, VT-x",
            (Emulator::Bochs, Vendor::Amd) => "Bochs, AMD-V",
            (Emulator::Bochs, _) => "Bochs, VT-x",
        }
    }

    /// The addresses that both the guest's own entries and the tables can express. QEMU's and Bochs's walkers ignore
    /// higher bits, and a hypervisor reports the limit to its guest (CPUID `0x8000_0008`).
    fn gpa_bits(&self) -> u32 {
        cpu::physical_bits().min(F::FRAME_BITS + PAGE_SHIFT)
    }

    fn ram(&self) -> Ram {
        let first = Pfn(PATTERN >> PAGE_SHIFT);
        Ram {
            pattern: Span::sized(first, PATTERN_BYTES >> PAGE_SHIFT),
            gib: Pfn(first.0 & !(Level::G1.pages() - 1)),
        }
    }

    fn fixed(&self) -> &[Fixed] {
        &self.fixed
    }

    fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer {
        let (rip, rbx) = self.guest.aim(gpa, access);
        let mut registers = Registers { rax: value, rbx, ..Registers::default() };
        self.processor.set_root::<F>(root);
        self.processor.set_rip(rip);
        match self.processor.run(&mut registers) {
            Exit::Call => Answer::Through { value: registers.rax },
            Exit::Memory(fault) => refused(&fault),
            // The guest has no handlers: its own fault ends it, and the next access restarts it.
            _ => Answer::Fault { why: FaultWhy::Unsaid, level: None, gpa: None, allowed: None },
        }
    }

    fn flush(&mut self) {
        self.processor.flush();
    }

    fn write_code(&self, pfn: Pfn) {
        window::write_code(pfn);
    }

    fn quirks(&self) -> &[Quirk] {
        match self.emulator {
            Emulator::Qemu if Self::IS_PAE => &[ACCESSED_IN_PDPTE],
            Emulator::Qemu => &[ACCESSED_IN_REFUSING],
            Emulator::Bochs => &[],
        }
    }

    fn log(&mut self, line: Arguments<'_>) {
        serial::print_line(line);
    }
}

fn refused(fault: &MemoryFault) -> Answer {
    let why = match (fault.misconfigured, fault.present) {
        (true, _) => FaultWhy::Misconfigured,
        (false, true) => FaultWhy::Permission,
        (false, false) => FaultWhy::Absent,
    };
    Answer::Fault { why, level: None, gpa: Some(fault.gpa), allowed: fault.allowed }
}
