//! L1's G-stage on RISC-V: `Sv39x4`, `Sv48x4`, `Sv57x4` (RISC-V privileged manual, "Hypervisor extension", "Two-stage translation").
//!
//! ```text
//! leaf   63  62..61  60..54  53....10  9..8  7  6  5  4  3  2  1  0
//!        N   PBMT    -       frame     -     D  A  G  U  X  W  R  V
//! link   0   0       0       frame     -     0  0  -  0  0  0  0  V
//! ```
//! All refusals of an entry are one guest-page fault: not present; reserved bits (60 to 54; N without `Svnapot`, PBMT
//! without `Svpbmt`); W without R; a misaligned superpage; D, A or U in a link. Each access is a user's: U must be set.
//! With `Svadu` hardware sets A and D in the leaf. Without it (`Svade`), a leaf with A clear faults, and a store with D
//! clear. An entry in no memory is an access fault, reported for the access that the walk is for.

use super::format::{L1Entry, L1Fault, L1Format, L1Rights, Refusal, bits};
use crate::table::formats::riscv::{ACCESSED, DIRTY, EXECUTE, READ, USER, VALID, WRITE};
use crate::{Access, Gfn, Gpa, Level, MemoryType, PAGE_SHIFT, Perms, Word};

const MEMORY: u64 = bits(61, 63);
const RESERVED: u64 = bits(54, 61) | 1 << 63;

/// Features that L0 offers L1, or that L1 has chosen of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GStageFeatures {
    /// `menvcfg.ADUE`: hardware sets A and D (`Svadu`).
    pub adue: bool,
    /// `menvcfg.PBMTE`: leaves have memory types (`Svpbmt`).
    pub pbmte: bool,
    /// L1's `sstatus.MXR`: executable pages are readable.
    pub mxr: bool,
}

/// L1's G-stage: see [`GStageTable::new`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GStageTable {
    root: Gpa,
    level: Level,
    features: GStageFeatures,
}

/// A trap that is taken to L1 in HS-mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GuestPageFault {
    /// `scause`: 20, 21 or 23 for a fetch, load or store; 1, 5 or 7, an access fault, for an entry in no memory.
    pub cause: u64,
    /// `htval`: the guest-physical address, shifted right by two; 0 for an access fault.
    pub htval: u64,
    /// `htinst` of an access by L2's own walk: a load, or a store of A and D. Otherwise 0.
    pub htinst: u64,
}

impl GStageTable {
    /// Returns the table of `hgatp`; `None` for mode Bare, and for reserved modes.
    pub fn new(hgatp: u64, features: GStageFeatures) -> Option<Self> {
        let level = match hgatp >> 60 {
            mode @ 8..=10 => Level::new(mode as u8 - 5)?,
            _ => return None,
        };
        // Four pages: the lowest two bits of the frame read as zero.
        Some(Self { root: Gfn(hgatp & bits(2, 44)).gpa(), level, features })
    }
}

impl L1Format for GStageTable {
    type Injection = GuestPageFault;

    const ROM_IS_AN_ERROR: bool = true;
    const LEAF_FRAME: u64 = bits(10, 54);

    fn root(&self) -> (Gpa, Level) {
        (self.root, self.level)
    }

    fn refuses(&self, gpa: Gpa) -> Option<Refusal> {
        (gpa.0 >> (self.level.up().shift() + 2 + PAGE_SHIFT) != 0).then_some(Refusal::NotPresent)
    }

    fn entry(&self, Word(entry): Word, level: Level) -> Result<L1Entry, Refusal> {
        let has = |bit| entry & bit != 0;
        if !has(VALID) {
            return Err(Refusal::NotPresent);
        }
        let is_leaf = has(READ | WRITE | EXECUTE);
        let gfn = Gfn((entry & bits(10, 54)) >> 10);
        let memory = match (entry & MEMORY) >> 61 {
            0 => Some(MemoryType::WriteBack),
            1 if self.features.pbmte => Some(MemoryType::WriteCombining),
            2 if self.features.pbmte => Some(MemoryType::Device),
            _ => None,
        };
        let of_leaf = has(WRITE) && !has(READ) || gfn.base(level) != gfn;
        let of_link = level == Level::K4 || has(USER | ACCESSED | DIRTY | MEMORY);
        let is_reserved = has(RESERVED) || if is_leaf { of_leaf } else { of_link };
        let Some(memory) = memory.filter(|_| !is_reserved) else { return Err(Refusal::Reserved) };
        let hardware = self.features.adue;
        if is_leaf && !hardware && !has(ACCESSED) {
            return Err(Refusal::NotAccessed);
        }
        let read = has(READ) || self.features.mxr && has(EXECUTE);
        let write = has(WRITE) && (hardware || has(DIRTY));
        let perms = if has(USER) { Perms::of(read, write, has(EXECUTE)) } else { Perms::NONE };
        Ok(L1Entry {
            gfn,
            is_leaf,
            rights: if is_leaf { L1Rights::plain(perms) } else { L1Rights::ALL },
            memory,
            touch: if is_leaf && hardware { ACCESSED } else { 0 },
            touch_store: if is_leaf && hardware { DIRTY } else { 0 },
        })
    }

    fn injection(&self, fault: &L1Fault) -> GuestPageFault {
        let access = fault.access;
        let by_kind = |causes: [u64; 3]| match access.purpose() {
            Access::Fetch => causes[0],
            Access::Read => causes[1],
            Access::Write => causes[2],
        };
        if fault.why == Refusal::NoMemory {
            return GuestPageFault { cause: by_kind([1, 5, 7]), htval: 0, htinst: 0 };
        }
        let by_walk = if access.access == Access::Write { 0x3020 } else { 0x3000 };
        let htinst = if access.walk_for.is_some() { by_walk } else { 0 };
        GuestPageFault { cause: by_kind([20, 21, 23]), htval: access.gpa.0 >> 2, htinst }
    }
}
