//! What the judge needs of a machine: memory, and accesses of a guest through tables that it is given.
//!
//! One `Machine` is one walker: an emulated processor, or software. It knows nothing of the engine and decides nothing;
//! it makes the access and says what happened.

use core::fmt;
use slat::{Access, Gfn, Gpa, Level, MemoryType, Perms, Pfn, Span};

/// Where in each page of [`Ram::pattern`] the code for fetches may stand: its last 256 bytes.
pub const CODE_OFFSET: u64 = 0xf00;

/// Real memory that guest frames are mapped to.
///
/// The judge fills it: each 8-byte word holds its own physical address, but for the code of
/// [`Machine::write_code`] from [`CODE_OFFSET`] of each page on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ram {
    /// At least 16 MiB, aligned to 2 MiB. The judge reads and writes it at its physical addresses.
    pub pattern: Span<Pfn>,
    /// The frame, aligned to 1 GiB, of a GiB of physical addresses that `pattern` lies in: what leaves of 1 GiB map.
    /// The guest is sent to no part of it but the pattern.
    pub gib: Pfn,
}

/// Frames that the guest itself needs mapped at any time: its code, its own tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// The first guest frame.
    pub gfn: Gfn,
    /// How many.
    pub pages: u64,
    /// The frame behind the first; the others follow. Not in [`Ram::pattern`].
    pub pfn: Pfn,
}

/// What became of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The walker let it through.
    Through {
        /// The word that was loaded; for a store, the value stored; for a fetch, the physical address of the page
        /// whose code ran.
        value: u64,
    },
    /// The walker refused it.
    Fault {
        /// Why, as far as it says.
        why: FaultWhy,
        /// The level of the entry that it stopped at, if it says.
        level: Option<Level>,
        /// The guest-physical address that it says was accessed, to the byte or with the offset in its page clear.
        gpa: Option<Gpa>,
        /// What the entries on its way allow together, if it says (EPT does).
        allowed: Option<Perms>,
    },
}

/// Why a walker refused an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultWhy {
    /// Nothing is mapped.
    Absent,
    /// Something is, and does not allow this.
    Permission,
    /// An entry is malformed.
    Misconfigured,
    /// The entry wants its Accessed bit set by software (arm64 without hardware management).
    AccessFlag,
    /// The walker does not tell.
    Unsaid,
}

/// A walker and the machine around it.
///
/// # Safety
/// [`ram`](Self::ram) is real memory that the judge may read and write at its physical addresses while the machine lives,
/// and nothing else does, but for the guest through the tables that [`access`](Self::access) is given.
pub unsafe trait Machine {
    /// Whether an entry that was cached stays in use until [`flush`](Self::flush), so that a missing flush can be seen.
    const SHOWS_STALE: bool;

    /// Who judges, for the output: `QEMU TCG, AMD-V`.
    fn name(&self) -> &'static str;

    /// How many bits a guest-physical address can have that a guest here can form, whatever the tables could translate.
    fn gpa_bits(&self) -> u32 {
        64
    }

    /// Memory for the guest.
    fn ram(&self) -> Ram;

    /// What the guest itself needs mapped at any time, outside [`Ram::pattern`].
    fn fixed(&self) -> &[Fixed] {
        &[]
    }

    /// Makes one access of the guest through the tables at `root`, as they are now: loads 8 bytes, stores the 8 bytes
    /// `value`, or runs the code that stands at [`CODE_OFFSET`] of the page. `gpa` is a multiple of 8; for a fetch, its
    /// offset is [`CODE_OFFSET`].
    ///
    /// What a flush has not forgotten may be used, as a processor would.
    fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer;

    /// What else the walker tells of the memory behind `gpa`, which a load reaches: its type, as any number. `None` where
    /// it tells nothing.
    fn memory_type(&mut self, root: Pfn, gpa: Gpa) -> Option<u64> {
        let _ = (root, gpa);
        None
    }

    /// What [`memory_type`](Self::memory_type) has to tell of memory that a leaf of this type maps. `None` where it tells nothing.
    fn told_of(memory: MemoryType) -> Option<u64> {
        let _ = memory;
        None
    }

    /// Forgets every translation of the guest.
    fn flush(&mut self);

    /// Writes the code for fetches into the 256 bytes from [`CODE_OFFSET`] of the page `pfn` on: it makes the guest tell
    /// which page it ran in. Nothing where a fetch answers with the word at the address ([`Answer::Through`] then has
    /// that word, which is its address).
    fn write_code(&self, pfn: Pfn) {
        let _ = pfn;
    }

    /// Ways in which this emulator is known to differ from the manual.
    fn quirks(&self) -> &[Quirk] {
        &[]
    }

    /// Writes a line of output.
    fn log(&mut self, line: fmt::Arguments<'_>);
}

/// An emulator's own fault, by name. Differences that it explains are counted under its name, and are none of ours.
#[derive(Clone, Copy, Debug)]
pub struct Quirk {
    /// In a few words.
    pub name: &'static str,
    /// Whether it explains this difference. It should be as narrow as the fault is.
    pub explains: fn(&Difference) -> bool,
}

/// A look-up whose outcome is not what the manual says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Where.
    pub gpa: Gpa,
    /// The access.
    pub access: Access,
    /// What the manual says.
    pub expected: Answer,
    /// What the walker did.
    pub answer: Answer,
    /// Set where the answer is right and the Accessed or Dirty bits of an entry are not. Where that entry has nothing to do
    /// with the look-up, all else is of the last one before it was found.
    pub bits: Option<Bits>,
}

/// An entry that has other bits after a look-up than it should.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bits {
    /// Its level.
    pub level: Level,
    /// What it should be.
    pub expected: u64,
    /// What it is.
    pub found: u64,
}
