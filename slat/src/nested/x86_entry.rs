//! Entries of x86's own paging, for a guest's table or for AMD's second stage (AMD APM volume 2, "Page Translation and
//! Protection"; Intel SDM volume 3, "Paging").
//!
//! ```text
//! leaf    63  51....12  8  7   6  5  4    3    2  1  0     PAT: bit 7 of 4 KiB, bit 12 of larger pages
//!         NX  frame     G  PS  D  A  PCD  PWT  U  W  P     PAE: 62 to 52 are reserved
//! link    NX  51....12     0      A            U  W  P     AMD: bit 8 is reserved in PML4Es and PML5Es
//! PDPTE       51....12            PCD  PWT           P     PAE: all else is reserved
//!
//! four    31.....12  8  7    6  5  4    3    2  1  0       of 4 MiB: the frame's bits 31 to 22 in place, 32 and up from bit 13 on
//!         frame      G  PAT  D  A  PCD  PWT  U  W  P       (PSE-36); 12 is PAT
//! ```

use super::format::{Refusal, bits, frame, x86_memory_type};
pub(super) use crate::table::formats::x86::{ACCESSED, DIRTY};
use crate::table::formats::x86::{LARGE, NO_EXECUTE, PCD, PRESENT, PWT, USER, WRITE};
use crate::{Access, Gfn, Level, MemoryType, PAGE_SHIFT, Perms};

const GLOBAL: u64 = 1 << 8;

/// Rules for entries that come from registers and CPUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of a register")]
pub(super) struct EntryRules {
    pub(super) physical_bits: u32,
    /// Whether NX takes effect; otherwise it is reserved.
    pub(super) nx: bool,
    pub(super) pat: u64,
    pub(super) large_1g: bool,
    pub(super) is_pae: bool,
    /// Bit 8 of links above those that may map 1 GiB is reserved.
    pub(super) reserves_global: bool,
}

/// A decoded entry.
pub(super) struct X86Entry {
    pub(super) gfn: Gfn,
    pub(super) is_leaf: bool,
    pub(super) memory: MemoryType,
    /// U: whether users may access.
    pub(super) user: bool,
    /// Rights of users and supervisors alike: loads, W, not NX.
    pub(super) perms: Perms,
}

impl EntryRules {
    /// Decodes an entry of eight bytes.
    pub(super) fn entry(&self, entry: u64, level: Level) -> Result<X86Entry, Refusal> {
        let has = |bit| entry & bit != 0;
        if !has(PRESENT) {
            return Err(Refusal::NotPresent);
        }
        let largest = if self.large_1g && !self.is_pae { Level::G1 } else { Level::M2 };
        let is_leaf = level == Level::K4 || has(LARGE) && level <= largest;
        let inside = match level {
            Level::K4 => 0,
            _ if is_leaf => bits(PAGE_SHIFT + 1, PAGE_SHIFT + level.shift()),
            Level::M2 | Level::G1 => LARGE,
            _ => LARGE | if self.reserves_global { GLOBAL } else { 0 },
        };
        let high = if self.is_pae { bits(52, 63) } else { 0 };
        let beyond = bits(self.physical_bits, 52) | if self.nx { 0 } else { NO_EXECUTE };
        if entry & (beyond | inside | high) != 0 {
            return Err(Refusal::Reserved);
        }
        let pat = if level == Level::K4 { LARGE } else { 1 << PAGE_SHIFT };
        Ok(X86Entry {
            gfn: frame(entry).base(if is_leaf { level } else { Level::K4 }),
            is_leaf,
            memory: if is_leaf { self.memory(entry, pat) } else { MemoryType::WriteBack },
            user: has(USER),
            perms: Perms::of(true, has(WRITE), !has(NO_EXECUTE)),
        })
    }

    /// Decodes an entry of four bytes; with pages of 4 MiB (`CR4.PSE`), at the level of 2 MiB.
    pub(super) fn short(&self, entry: u64, level: Level, has_large: bool) -> Result<X86Entry, Refusal> {
        let has = |bit| entry & bit != 0;
        if !has(PRESENT) {
            return Err(Refusal::NotPresent);
        }
        let is_large = level > Level::K4 && has_large && has(LARGE);
        // End of the field with bits 32 and up of the frame's address.
        let end = 13 + self.physical_bits.clamp(32, 40) - 32;
        if is_large && entry & bits(end, 22) != 0 {
            return Err(Refusal::Reserved);
        }
        let large = entry & bits(22, 32) | (entry & bits(13, end)) >> 13 << 32;
        let is_leaf = is_large || level == Level::K4;
        let pat = if is_large { 1 << PAGE_SHIFT } else { LARGE };
        Ok(X86Entry {
            gfn: frame(if is_large { large } else { entry & bits(PAGE_SHIFT, 32) }),
            is_leaf,
            memory: if is_leaf { self.memory(entry, pat) } else { MemoryType::WriteBack },
            user: has(USER),
            perms: Perms::of(true, has(WRITE), true),
        })
    }

    /// Returns the memory type of a leaf, by the PAT.
    fn memory(&self, entry: u64, pat: u64) -> MemoryType {
        let bit = |bit: u64, value: u32| if entry & bit != 0 { value } else { 0 };
        match self.pat >> (8 * (bit(PWT, 1) + bit(PCD, 2) + bit(pat, 4))) & 0b111 {
            0 => MemoryType::Device,
            number => x86_memory_type(number).unwrap_or(MemoryType::Uncached),
        }
    }
}

/// Returns the error code of a page fault, or of AMD's nested page fault: P, W, U, RSVD, I in bits 0 to 4.
/// [`tells_fetch`] says whether I is reported.
pub(super) fn error_code(why: Refusal, access: Access, is_user: bool, tells_fetch: bool) -> u32 {
    let when = |on: bool, bit: u32| u32::from(on) << bit;
    when(matches!(why, Refusal::Rights | Refusal::Reserved), 0)
        | when(access == Access::Write, 1)
        | when(is_user, 2)
        | when(why == Refusal::Reserved, 3)
        | when(access == Access::Fetch && tells_fetch, 4)
}

/// Whether error codes report fetches: if entries may refuse them by NX, or `CR4.SMEP` may.
pub(super) const fn tells_fetch(nx: bool, smep: bool) -> bool {
    nx || smep
}

/// Returns the table that one of PAE's four root entries links.
pub(super) fn pdpte(entry: u64, physical_bits: u32) -> Result<Gfn, Refusal> {
    let reserved = bits(physical_bits, 64) | bits(52, 64) | bits(5, 9) | USER | WRITE;
    match entry & PRESENT {
        0 => Err(Refusal::NotPresent),
        _ if entry & reserved != 0 => Err(Refusal::Reserved),
        _ => Ok(frame(entry)),
    }
}
