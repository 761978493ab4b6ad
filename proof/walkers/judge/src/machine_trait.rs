//! The judge's interface to a machine: memory, and accesses of a guest through given tables.
//!
//! One `Machine` is one walker: an emulated processor, or software. It does not know the engine, and judges nothing: it
//! makes the access and reports the result.

use core::fmt;
use slat::{Access, Gfn, Gpa, Level, MemoryType, Perms, Pfn, Span};

/// Offset of the code for fetches in each page of [`Ram::pattern`]: its last 256 bytes.
pub const CODE_OFFSET: u64 = 0xf00;

/// Real memory for guest frames.
///
/// The judge fills it: each 8-byte word has its own physical address, except the code of [`Machine::write_code`] from
/// [`CODE_OFFSET`] of each page on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ram {
    /// At least 16 MiB, aligned to 2 MiB. The judge reads and writes it at its physical addresses.
    pub pattern: Span<Pfn>,
    /// The frame, aligned to 1 GiB, of the GiB of physical addresses around `pattern`, for leaves of 1 GiB. The guest
    /// accesses only the pattern in it.
    pub gib: Pfn,
}

/// Frames that must always be mapped for the guest itself: its code, its own tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// The first guest frame.
    pub gfn: Gfn,
    /// Number of pages.
    pub pages: u64,
    /// The frame behind the first; the others follow. Not in [`Ram::pattern`].
    pub pfn: Pfn,
}

/// Result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The access succeeded.
    Through {
        /// The loaded word; for a store, the stored value; for a fetch, the physical address of the page whose code
        /// ran.
        value: u64,
    },
    /// The walker refused it.
    Fault {
        /// The reason, if reported.
        why: FaultWhy,
        /// The level of the entry at which the walk stopped, if reported.
        level: Option<Level>,
        /// The reported guest-physical address, to the byte or with a cleared page offset.
        gpa: Option<Gpa>,
        /// The combined permissions of the entries on the path, if reported (EPT).
        allowed: Option<Perms>,
    },
}

/// Why a walker refused an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultWhy {
    /// Nothing is mapped.
    Absent,
    /// The page is mapped without this permission.
    Permission,
    /// An entry is malformed.
    Misconfigured,
    /// Software must set the entry's Accessed bit (arm64 without hardware management).
    AccessFlag,
    /// The walker does not report the reason.
    Unsaid,
}

/// A walker and the machine around it.
///
/// # Safety
/// [`ram`](Self::ram) is real memory that the judge may read and write at its physical addresses while the machine
/// lives. Only the guest also uses it, through the tables that [`access`](Self::access) gets.
pub unsafe trait Machine {
    /// Whether cached entries stay in use until [`flush`](Self::flush), so that a missing flush is visible.
    const SHOWS_STALE: bool;

    /// Returns the walker's name for the output: `QEMU TCG, AMD-V`.
    fn name(&self) -> &'static str;

    /// Returns the number of bits of the guest-physical addresses that a guest can form here, whatever the tables could
    /// translate.
    fn gpa_bits(&self) -> u32 {
        64
    }

    /// Returns the guest's memory.
    fn ram(&self) -> Ram;

    /// Returns the frames that must always be mapped for the guest itself, outside [`Ram::pattern`].
    fn fixed(&self) -> &[Fixed] {
        &[]
    }

    /// Makes one access of the guest through the current tables at `root`: loads 8 bytes, stores the 8 bytes `value`,
    /// or runs the code at [`CODE_OFFSET`] of the page. `gpa` is a multiple of 8; for a fetch, its offset is
    /// [`CODE_OFFSET`].
    ///
    /// It may use cached translations that no flush has removed, as a processor would.
    fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer;

    /// Returns the type of the memory behind `gpa`, which a load reaches, as any number. `None` if the walker does not
    /// report it.
    fn memory_type(&mut self, root: Pfn, gpa: Gpa) -> Option<u64> {
        let _ = (root, gpa);
        None
    }

    /// Returns the result of [`memory_type`](Self::memory_type) for a leaf of this type. `None` if the walker does not
    /// report it.
    fn told_of(memory: MemoryType) -> Option<u64> {
        let _ = memory;
        None
    }

    /// Forgets every translation of the guest.
    fn flush(&mut self);

    /// Writes the code for fetches into the 256 bytes from [`CODE_OFFSET`] of the page `pfn` on: it makes the guest
    /// report the page in which it ran. Does nothing if a fetch returns the word at the address ([`Answer::Through`]
    /// then has that word, which is its address).
    fn write_code(&self, pfn: Pfn) {
        let _ = pfn;
    }

    /// Returns the known differences between this emulator and the manual.
    fn quirks(&self) -> &[Quirk] {
        &[]
    }

    /// Writes a line of output.
    fn log(&mut self, line: fmt::Arguments<'_>);
}

/// A fault of an emulator, with a name. Differences that it explains are counted under its name, not as failures.
#[derive(Clone, Copy, Debug)]
pub struct Quirk {
    /// A short name.
    pub name: &'static str,
    /// Whether it explains this difference. Keep it as narrow as the fault.
    pub explains: fn(&Difference) -> bool,
}

/// A look-up whose result differs from the manual.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The address.
    pub gpa: Gpa,
    /// The access.
    pub access: Access,
    /// The manual's result.
    pub expected: Answer,
    /// The walker's result.
    pub answer: Answer,
    /// Set if the answer is right and the Accessed or Dirty bits of an entry are wrong. If that entry is not on the
    /// path, the other fields are those of the last look-up before.
    pub bits: Option<Bits>,
}

/// An entry with wrong bits after a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bits {
    /// Its level.
    pub level: Level,
    /// The expected word.
    pub expected: u64,
    /// The found word.
    pub found: u64,
}
