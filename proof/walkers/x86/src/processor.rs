//! One trait for the processors of both makers that can run a guest.
//!
//! ```text
//! loop { match processor.run(&mut registers) { Exit::Memory(fault) => …, Exit::Interrupt => …, … } }
//! ```
//! Implementations have the details of their maker's manual: control blocks, exit codes, flush instructions.

use slat::{Access, Format, Gpa, Perms, Pfn};

/// General registers of a guest while it is out; the instruction and stack pointers are in the processor's block. The
/// assembly in `svm` and `vmx` relies on the order.
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

/// Initial state of a guest in long mode, with flat segments (code 0x10, data 0x18), interrupts off.
#[derive(Clone, Copy, Debug)]
pub struct LongMode {
    /// Its own page tables in its memory.
    pub cr3: Gpa,
    /// Its descriptor table: 32 bytes, with our layout.
    pub gdt: Gpa,
    /// First instruction (a linear address, as is the stack's).
    pub rip: u64,
    /// End of its stack.
    pub rsp: u64,
}

/// Reason of an exit.
#[derive(Clone, Copy, Debug)]
pub enum Exit {
    /// The tables refused an access.
    Memory(MemoryFault),
    /// An interrupt of the machine is pending; enabled by [`Processor::exit_on_interrupt`]. The guest takes it in its
    /// next run.
    Interrupt,
    /// The guest wrote to a port of [`Processor::exit_on_port_write`]; the write has not been made, and the guest is
    /// past the instruction.
    PortWrite {
        /// The port.
        port: u16,
        /// The written value, and the upper bits of the register.
        value: u32,
    },
    /// The guest wrote to a register of its hypervisor's (MSRs from [`HYPERVISOR_REGISTERS`] on), and is past the
    /// instruction.
    RegisterWrite {
        /// The register.
        register: u32,
        /// The written value.
        value: u64,
    },
    /// Another processor has kicked this one; enabled by [`Processor::exit_on_kick`].
    Kick,
    /// HLT, already stepped over; this and the next two are enabled by [`Processor::share`].
    Halt,
    /// PAUSE, already stepped over.
    Pause,
    /// CPUID, already stepped over, without an answer. Also enabled by [`Processor::exit_on_identify`].
    Identify,
    /// The guest's guest is out: its block has the reason.
    Nested,
    /// VMMCALL or VMCALL, already stepped over.
    Call,
    /// Triple fault, the last way to reset a PC.
    Shutdown,
    /// Any other exit, in the maker's numbers.
    Other {
        /// The exit's code.
        code: u64,
        /// The exit's information word.
        info: u64,
    },
}

/// A refused access, as the walker reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFault {
    /// The address.
    pub gpa: Gpa,
    /// The access.
    pub access: Access,
    /// Whether a leaf refused it; otherwise there was no leaf.
    pub present: bool,
    /// Whether an entry was malformed.
    pub misconfigured: bool,
    /// Whether the walker was accessing the guest's own page tables.
    pub in_guest_tables: bool,
    /// The combined permissions of all entries on the path, if reported (EPT).
    pub allowed: Option<Perms>,
    /// The walker's own word: EXITINFO1, or the exit qualification.
    pub raw: u64,
}

/// MSRs that no processor has, and that KVM offers its guests: the first, and their number.
pub const HYPERVISOR_REGISTERS: (u32, u32) = (0x4b56_4d00, 0x100);
/// Bytes of the instruction that writes an MSR.
pub const WRMSR_BYTES: u64 = 2;

/// A processor, and the guest that it runs.
pub trait Processor: 'static {
    /// Name for reports.
    const NAME: &'static str;

    /// Enables this processor to run guests, and makes a guest that begins at `start`. Its memory is empty until
    /// [`set_root`](Self::set_root).
    fn new(start: &LongMode) -> Self;

    /// Sets the tables at `root`, in format `F`, for the next run. This does not flush old translations.
    fn set_root<F: Format>(&mut self, root: Pfn);

    /// Runs the guest until its next exit. The next run delivers an event whose delivery the exit cut short.
    fn run(&mut self, registers: &mut Registers) -> Exit;

    /// Forgets every translation of the guest before its next instruction.
    fn flush(&mut self);

    /// Sets whether a pending interrupt of the machine makes the guest exit before it takes the interrupt; later
    /// interrupts before the end of that one's handler need not. Otherwise the guest takes all interrupts itself.
    fn exit_on_interrupt(&mut self, on: bool);

    /// Makes writes to this port exit, if the processor supports it.
    fn exit_on_port_write(&mut self, port: u16) {
        let _ = port;
    }

    /// Makes a guest that begins like a processor after STARTUP: in real mode, at this page's first byte. `None` if not
    /// supported.
    fn started(page: u8) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = page;
        None
    }

    /// Makes a guest that begins as after a Multiboot loader: in protected mode, with flat segments. `None` if not
    /// supported.
    fn entered(entry: u32) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = entry;
        None
    }

    /// Makes the instructions and MSRs of SVM exit, as [`Exit::Other`].
    fn exit_on_svm(&mut self) {}

    /// Makes CPUID exit, if supported.
    fn exit_on_identify(&mut self) {}

    /// Makes NMIs exit as kicks, if supported: the guest gets none.
    fn exit_on_kick(&mut self) {}

    /// Makes the guest number `number` of several on this processor. It gets no interrupt of the machine: each one
    /// exits, and the guest gets interrupts by [`offer`](Self::offer). HLT, PAUSE and CPUID exit, too. Returns false if
    /// not supported.
    fn share(&mut self, number: u32) -> bool {
        let _ = number;
        false
    }

    /// Sets the interrupt that the guest must take as soon as it can; or none.
    fn offer(&mut self, vector: Option<u8>) {
        let _ = vector;
    }

    /// Returns the offered interrupt that has not been taken.
    fn offered(&self) -> Option<u8> {
        None
    }

    /// Returns whether the guest takes interrupts now, and its CR4.
    fn state(&self) -> (bool, u64) {
        (false, 0)
    }

    /// Returns the root of the guest's own page tables in long mode, and their number of levels.
    fn tables(&self) -> (Gpa, u8);

    /// Returns the guest's next instruction (a linear address).
    fn rip(&self) -> u64;

    /// Sets the guest's next instruction.
    fn set_rip(&mut self, rip: u64);
}
