//! L1's nested page table on AMD: its own paging mode (AMD APM volume 2, "Nested Paging", "Page Translation and Protection").
//!
//! ```text
//! leaf    63  51....12  7   6  5  4    3    2  1  0        PAT: bit 7 of 4 KiB, bit 12 of larger pages
//!         NX  frame     PS  D  A  PCD  PWT  U  W  P
//! link    NX  51....12         A            U  W  P        bits 8 and 7 are reserved from 512 GiB on, bit 8 for 1 GiB
//! PDPTE       51....12            PCD  PWT        P        PAE: all else is reserved
//! ```
//! T has the mode that L1 was in at VMRUN: long mode with four or five levels, or PAE, where 62 to 52 are reserved, too. A nested
//! walk is a **user's** access: U has to be set along the path. Each access by L2's own walk is a **store**. NX is reserved where L1
//! has `EFER.NXE` clear. A is set in every entry but a PDPTE, and D in the leaf.

use super::format::{L1Access, L1Entry, L1Fault, L1Format, L1Rights, Refusal, bits, frame, x86_memory_type};
use crate::addr::{Gpa, Level, PAGE_SHIFT};
use crate::table::entry::Word;
use crate::table::format::{Access, MemoryType, Perms};

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const PWT: u64 = 1 << 3;
const PCD: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;

/// What L1 was in when it ran L2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NptMode {
    /// Levels of its paging: 5 with `CR4.LA57`, 4 in long mode, 3 with PAE. Two, 32-bit paging without PAE, are not read yet.
    pub levels: u8,
    /// `EFER.NXE`: entries may refuse fetches.
    pub nx: bool,
    /// L1's own `PAT` register.
    pub pat: u64,
    /// Bits of a physical address of L1's.
    pub physical_bits: u32,
    /// CPUID `8000_0001` EDX bit 26: entries may map 1 GiB.
    pub large_1g: bool,
}

/// L1's nested page table: see [`NptTable::new`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NptTable {
    root: Gpa,
    level: Level,
    mode: NptMode,
}

/// What `#VMEXIT(NPF)`, code 0x400, tells L1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NestedPageFault {
    /// `EXITINFO1`.
    pub info1: u64,
    /// `EXITINFO2`: the guest-physical address.
    pub info2: Gpa,
}

impl NptTable {
    /// The table at `nCR3`; `None` where VMRUN fails with it, or the mode is not read yet.
    pub fn new(ncr3: u64, mode: NptMode) -> Option<Self> {
        let level = Level::new(mode.levels).filter(|level| (3..=5).contains(&level.number()))?;
        let root = if mode.levels == 3 { Gpa(ncr3 & bits(5, 32)) } else { frame(ncr3).gpa() };
        (ncr3 & bits(mode.physical_bits, 64) == 0).then_some(Self { root, level, mode })
    }

    fn is_pae(&self) -> bool {
        self.mode.levels == 3
    }

    /// The memory type of a leaf, by L1's PAT.
    fn memory(&self, entry: u64, level: Level) -> MemoryType {
        let pat = if level == Level::K4 { LARGE } else { 1 << PAGE_SHIFT };
        let bit = |bit: u64, value: u32| if entry & bit != 0 { value } else { 0 };
        let number = self.mode.pat >> (8 * (bit(PWT, 1) + bit(PCD, 2) + bit(pat, 4))) & 0b111;
        match number {
            0 => MemoryType::Device,
            number => x86_memory_type(number).unwrap_or(MemoryType::Uncached),
        }
    }
}

impl L1Format for NptTable {
    type Injection = NestedPageFault;

    const ROM_IS_AN_ERROR: bool = false;
    const LEAF_FRAME: u64 = bits(PAGE_SHIFT, 52);

    fn root(&self) -> (Gpa, Level) {
        (self.root, self.level)
    }

    fn refuses(&self, gpa: Gpa) -> Option<Refusal> {
        let size = if self.is_pae() { 32 } else { self.level.up().shift() + PAGE_SHIFT };
        (gpa.0 >> size != 0).then_some(Refusal::NotPresent)
    }

    fn demands(&self, access: &L1Access) -> Perms {
        match access.access {
            _ if access.walk_for.is_some() => Perms::WRITE,
            Access::Read => Perms::READ,
            Access::Write => Perms::WRITE,
            Access::Fetch => Perms::EXECUTE,
        }
    }

    fn entry(&self, Word(entry): Word, level: Level) -> Result<L1Entry, Refusal> {
        let has = |bit| entry & bit != 0;
        if !has(PRESENT) {
            return Err(Refusal::NotPresent);
        }
        let beyond = bits(self.mode.physical_bits, 52) | if self.mode.nx { 0 } else { NO_EXECUTE };
        if self.is_pae() && level == self.level {
            let reserved = beyond | NO_EXECUTE | bits(52, 63) | bits(5, 9) | USER | WRITE;
            let (rights, memory) = (L1Rights::ALL, MemoryType::WriteBack);
            let link =
                L1Entry { gfn: frame(entry), is_leaf: false, rights, memory, touch: 0, touch_store: 0 };
            return if entry & reserved == 0 { Ok(link) } else { Err(Refusal::Reserved) };
        }
        let largest = if self.mode.large_1g && !self.is_pae() { Level::G1 } else { Level::M2 };
        let is_leaf = level == Level::K4 || has(LARGE) && level <= largest;
        let inside = match level {
            Level::K4 => 0,
            _ if is_leaf => bits(PAGE_SHIFT + 1, PAGE_SHIFT + level.shift()),
            Level::M2 => LARGE,
            _ => LARGE | GLOBAL,
        };
        let high = if self.is_pae() { bits(52, 63) } else { 0 };
        if entry & (beyond | inside | high) != 0 {
            return Err(Refusal::Reserved);
        }
        let perms = if has(USER) { Perms::of(true, has(WRITE), !has(NO_EXECUTE)) } else { Perms::NONE };
        Ok(L1Entry {
            gfn: frame(entry).base(if is_leaf { level } else { Level::K4 }),
            is_leaf,
            rights: L1Rights::plain(perms),
            memory: if is_leaf { self.memory(entry, level) } else { MemoryType::WriteBack },
            touch: ACCESSED,
            touch_store: if is_leaf { DIRTY } else { 0 },
        })
    }

    fn injection(&self, fault: &L1Fault) -> NestedPageFault {
        let when = |on: bool, bit: u32| u64::from(on) << bit;
        let is_walk = fault.access.walk_for.is_some();
        let info1 = when(matches!(fault.why, Refusal::Rights | Refusal::Reserved), 0)
            | when(is_walk || fault.access.access == Access::Write, 1)
            | 1 << 2
            | when(fault.why == Refusal::Reserved, 3)
            | when(!is_walk && fault.access.access == Access::Fetch && self.mode.nx, 4)
            | when(!is_walk, 32)
            | when(is_walk, 33);
        NestedPageFault { info1, info2: fault.access.gpa }
    }
}
