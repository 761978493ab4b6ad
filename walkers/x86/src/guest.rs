//! One trait for a processor that can run a guest, of either maker.
//!
//! ```text
//! loop { match processor.run(&mut registers) { Exit::Memory(fault) => …, Exit::Interrupt => …, … } }
//! ```
//! Implementations keep what only their maker's manual knows: control blocks, how an exit reads, which instruction
//! forgets translations.

use crate::svm::Svm;
use slat::{Access, Format, Gpa, Perms, Pfn};

/// General registers of a guest while it is out; the instruction and stack pointers stay with the processor's block.
/// The order is known to the assembly in `svm` and `vmx`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // each is named after its register
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

/// How a guest begins: in long mode, with flat segments (code 0x10, data 0x18), interrupts off.
#[derive(Clone, Copy, Debug)]
pub struct LongMode {
    /// Its own page tables, which it has in its memory.
    pub cr3: Gpa,
    /// Its descriptor table: 32 bytes, laid out as ours.
    pub gdt: Gpa,
    /// First instruction (a linear address, as is the stack's).
    pub rip: u64,
    /// End of its stack.
    pub rsp: u64,
}

/// Why the guest is out.
#[derive(Clone, Copy, Debug)]
pub enum Exit {
    /// It touched memory and the tables did not let it.
    Memory(MemoryFault),
    /// An interrupt of the machine is pending; asked for by [`Processor::exit_on_interrupt`]. It was not taken; the
    /// guest will, in its next run.
    Interrupt,
    /// It wrote to a port that was asked for by [`Processor::exit_on_port_write`]; the write has not been made, and the
    /// guest is past it.
    PortWrite {
        /// The port.
        port: u16,
        /// What it wrote, and whatever is above in the register.
        value: u32,
    },
    /// It wrote to a register of its hypervisor's (MSRs from [`HYPERVISOR_REGISTERS`] on), and is past that.
    RegisterWrite {
        /// The register.
        register: u32,
        /// What it wrote.
        value: u64,
    },
    /// Another processor has kicked this one; asked for by [`Processor::exit_on_kick`].
    Kick,
    /// HLT, already stepped over; this and the next two asked for by [`Processor::share`].
    Halt,
    /// PAUSE, already stepped over.
    Pause,
    /// CPUID, already stepped over: nothing has been answered. Also asked for by [`Processor::exit_on_identify`].
    Identify,
    /// A guest of the guest's is out: its block says why.
    Nested,
    /// VMMCALL or VMCALL, already stepped over.
    Call,
    /// Triple fault: how a PC is reset when nothing else works.
    Shutdown,
    /// Anything else, in the maker's numbers.
    Other {
        /// The exit's code.
        code: u64,
        /// What the code's description says of it.
        info: u64,
    },
}

/// An access that the tables did not let through, as the walker reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFault {
    /// Where.
    pub gpa: Gpa,
    /// What was tried.
    pub access: Access,
    /// A leaf was there, and did not allow it; else nothing was there.
    pub present: bool,
    /// An entry had reserved bits set, or made no sense.
    pub misconfigured: bool,
    /// The walker was reading or writing the guest's own page tables, on the way to something else.
    pub in_guest_tables: bool,
    /// What all entries on the way allow together, where the walker says so: EPT does.
    pub allowed: Option<Perms>,
    /// The walker's own word: EXITINFO1, or the exit qualification.
    pub raw: u64,
}

/// MSRs that no processor has, and KVM gives its guests: so many from the first.
pub const HYPERVISOR_REGISTERS: (u32, u32) = (0x4b56_4d00, 0x100);
/// Bytes of the instruction that writes an MSR.
pub const WRMSR_BYTES: u64 = 2;

/// A processor, and the guest that it runs.
pub trait Processor {
    /// What to call it in a report.
    const NAME: &'static str;

    /// Makes this processor able to run guests, and a guest of it that begins at `start`. Nothing is mapped until
    /// [`set_root`](Self::set_root).
    fn new(start: &LongMode) -> Self;

    /// From the next run on the guest's memory is what the tables at `root` say, in format `F`. Old translations are
    /// not forgotten by this.
    fn set_root<F: Format>(&mut self, root: Pfn);

    /// Runs the guest until it comes out. An event whose delivery was cut short is delivered by the next run.
    fn run(&mut self, registers: &mut Registers) -> Exit;

    /// Forgets every translation of the guest before its next instruction.
    fn flush(&mut self);

    /// Whether a pending interrupt of the machine brings the guest out, which takes it afterwards; interrupts that come
    /// before it is through with that one need not. Else it takes them all by itself.
    fn exit_on_interrupt(&mut self, on: bool);

    /// Writes to this port bring the guest out, too, where the processor can tell.
    fn exit_on_port_write(&mut self, port: u16) {
        let _ = port;
    }

    /// A guest that begins as a processor that STARTUP wakes: in real mode, with this page's first byte. None where a
    /// maker's guests do not begin so here.
    fn started(page: u8) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = page;
        None
    }

    /// A guest that begins as a Multiboot loader begins it: in protected mode, with flat segments. None where a maker's guests do not
    /// begin so here.
    fn entered(entry: u32) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = entry;
        None
    }

    /// From now on the instructions and MSRs of SVM bring the guest out, by [`Exit::Other`].
    fn exit_on_svm(&mut self) {}

    /// What AMD's processors have beside.
    fn svm(&mut self) -> Option<&mut Svm> {
        None
    }

    /// CPUID brings the guest out from now on, where the processor can tell.
    fn exit_on_identify(&mut self) {}

    /// NMIs bring the guest out from now on, and are kicks: the guest gets none. Where the processor can tell.
    fn exit_on_kick(&mut self) {}

    /// The guest shares the processor with others, of which it is this one. It gets no interrupt of the machine: each brings
    /// it out, and what it is to get is [offered](Self::offer). Halting, PAUSE and CPUID bring it out, too. False where a
    /// maker's guests cannot share here.
    fn share(&mut self, number: u32) -> bool {
        let _ = number;
        false
    }

    /// The guest is to take this interrupt as soon as it can; or none.
    fn offer(&mut self, vector: Option<u8>) {
        let _ = vector;
    }

    /// What was offered and has not been taken.
    fn offered(&self) -> Option<u8> {
        None
    }

    /// Whether the guest takes interrupts now, and its CR4.
    fn state(&self) -> (bool, u64) {
        (false, 0)
    }

    /// The guest's own page tables while it is in long mode: where they begin, and how many levels they have.
    fn tables(&self) -> (Gpa, u8);

    /// The guest's next instruction (a linear address).
    fn rip(&self) -> u64;

    /// Sends the guest elsewhere.
    fn set_rip(&mut self, rip: u64);
}
