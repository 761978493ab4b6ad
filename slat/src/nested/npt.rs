//! L1's nested page table on AMD: its own paging mode (AMD APM volume 2, "Nested Paging", "Page Translation and
//! Protection").
//!
//! Entries are those of [`super::x86_entry`], by AMD's rules. T has L1's mode at VMRUN: long mode with four or five
//! levels, or PAE, where bits 62 to 52 are reserved, too. A nested walk is a **user's** access: U must be set along the
//! path. Each access by L2's own walk is a **store**. NX is reserved if L1 has `EFER.NXE` clear. Hardware sets A in
//! every entry except a PDPTE, and D in the leaf.

use super::format::{L1Access, L1Entry, L1Fault, L1Format, L1Rights, Refusal, bits, frame};
use super::x86_entry::{ACCESSED, DIRTY, EntryRules, X86Entry, error_code, pdpte, tells_fetch};
use crate::{Access, Gpa, Level, MemoryType, PAGE_SHIFT, Perms, Word};

/// L1's mode when it ran L2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NptMode {
    /// Levels of its paging: 5 with `CR4.LA57`, 4 in long mode, 3 with PAE. Not supported: 2, 32-bit paging.
    pub levels: u8,
    /// `EFER.NXE`: entries may refuse fetches.
    pub nx: bool,
    /// `CR4.SMEP`: a refusal says whether the access is a fetch, as it does with `EFER.NXE`. It refuses nothing here.
    pub smep: bool,
    /// L1's own `PAT` register.
    pub pat: u64,
    /// Bits of an L1 physical address.
    pub physical_bits: u32,
    /// CPUID `8000_0001` EDX bit 26: entries may map 1 GiB.
    pub large_1g: bool,
}

/// Bits of `EXITINFO1`: the access was to the final address, or by the walk of L2's own tables.
const TO_FINAL: u64 = 1 << 32;
const BY_WALK: u64 = 1 << 33;

/// L1's nested page table: see [`NptTable::new`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NptTable {
    root: Gpa,
    level: Level,
    rules: EntryRules,
    tells_fetch: bool,
}

/// The report of `#VMEXIT(NPF)`, code 0x400, to L1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NestedPageFault {
    /// `EXITINFO1`.
    pub info1: u64,
    /// `EXITINFO2`: the guest-physical address.
    pub info2: Gpa,
}

impl NptTable {
    /// Returns the table at `nCR3`; `None` if VMRUN fails with it, or the mode is not supported.
    pub fn new(ncr3: u64, mode: NptMode) -> Option<Self> {
        let level = Level::new(mode.levels).filter(|level| (3..=5).contains(&level.number()))?;
        let root = if mode.levels == 3 { Gpa(ncr3 & bits(5, 32)) } else { frame(ncr3).gpa() };
        let NptMode { levels, nx, smep, pat, physical_bits, large_1g } = mode;
        let rules =
            EntryRules { physical_bits, nx, pat, large_1g, is_pae: levels == 3, reserves_global: true };
        let table = Self { root, level, rules, tells_fetch: tells_fetch(nx, smep) };
        (ncr3 & bits(physical_bits, 64) == 0).then_some(table)
    }
}

impl L1Format for NptTable {
    type Injection = NestedPageFault;

    const LEAF_FRAME: u64 = bits(PAGE_SHIFT, 52);

    fn root(&self) -> (Gpa, Level) {
        (self.root, self.level)
    }

    fn refuses(&self, gpa: Gpa) -> Option<Refusal> {
        let size = if self.rules.is_pae { 32 } else { self.level.up().shift() + PAGE_SHIFT };
        (gpa.0 >> size != 0).then_some(Refusal::NotPresent)
    }

    fn demands(&self, access: &L1Access) -> Perms {
        if access.walk_for.is_some() { Perms::WRITE } else { Perms::to(access.access) }
    }

    fn entry(&self, word: Word, level: Level) -> Result<L1Entry, Refusal> {
        if self.rules.is_pae && level == self.level {
            let (gfn, memory) = (pdpte(word.0, self.rules.physical_bits)?, MemoryType::WriteBack);
            return Ok(L1Entry {
                gfn,
                is_leaf: false,
                rights: L1Rights::ALL,
                memory,
                touch: 0,
                touch_store: 0,
            });
        }
        let X86Entry { gfn, is_leaf, memory, user, perms } = self.rules.entry(word.0, level)?;
        let perms = if user { perms } else { Perms::NONE };
        let (touch, touch_store) = (ACCESSED, if is_leaf { DIRTY } else { 0 });
        Ok(L1Entry { gfn, is_leaf, rights: L1Rights::plain(perms), memory, touch, touch_store })
    }

    fn injection(&self, fault: &L1Fault) -> NestedPageFault {
        let L1Access { gpa, access, walk_for, .. } = fault.access;
        let (access, stage) = if walk_for.is_some() { (Access::Write, BY_WALK) } else { (access, TO_FINAL) };
        let code = error_code(fault.why, access, true, self.tells_fetch);
        NestedPageFault { info1: u64::from(code) | stage, info2: gpa }
    }
}
