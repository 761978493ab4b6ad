//! L1's stage 2 on Arm, 4 KiB granule (Arm ARM D8, "Stage 2 translation").
//!
//! ```text
//! leaf   54..53  51   47....12  10  7  6  5..2     1  0        bit 1: set at level 3, clear in a block of level 1 or 2
//!        XN      DBM  frame     AF  W  R  MemAttr     V
//! link                47....12                     1  1        all else is ignored
//! ```
//! Arm counts levels down to 3. `VTCR_EL2` gives the start level (SL0) and the number of translated bits (T0SZ). The
//! root is up to sixteen adjacent tables. **Faults have a level**, and an order: translation, address size, access
//! flag, permission. With `HA` hardware sets AF. With `HD` too, an entry with DBM may be written, and the store sets W,
//! which then means dirty. The contiguous hint is ignored: the entries themselves give the rights. Not supported: other
//! granules, 52 bits, big-endian tables.

use super::format::{L1Entry, L1Fault, L1Format, L1Rights, Refusal, bits, frame};
use crate::addr::INDEX_BITS;
use crate::table::formats::arm64::{ACCESSED, DBM, READ, STORE, TABLE, VALID};
use crate::{Access, Gpa, Level, MemoryType, PAGE_SHIFT, Perms, Word};

/// The only bit without `FEAT_XNX`; with it the upper of two bits.
const NO_EXECUTE: u64 = 1 << 54;
const OTHERWISE: u64 = 1 << 53;
const ADDRESS: u64 = bits(PAGE_SHIFT, 48);

/// Features that L0 offers L1, or that L1 has chosen of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Stage2Features {
    /// `FEAT_HAFDBS` is offered: `VTCR_EL2.HA` and `HD` take effect.
    pub hardware_ad: bool,
    /// `FEAT_XNX`: fetches at EL0 and EL1 have separate rights.
    pub xnx: bool,
    /// `HCR_EL2.FWB`: a leaf's memory type replaces that of stage 1, instead of combining with it.
    pub fwb: bool,
}

/// L1's stage 2: see [`Stage2Table::new`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stage2Table {
    root: Gpa,
    level: Level,
    input_bits: u32,
    output_bits: u32,
    sets_accessed: bool,
    sets_dirty: bool,
    features: Stage2Features,
}

/// An abort that is taken to L1 at EL2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stage2Abort {
    /// An instruction abort (EC 0x20); otherwise a data abort (EC 0x24).
    pub instruction: bool,
    /// `ISS.IFSC` or `DFSC`, with the level.
    pub status: u8,
    /// `ISS.S1PTW`: the access was by L2's own walk.
    pub s1ptw: bool,
    /// `ISS.WnR` of a data abort.
    pub write: bool,
    /// `HPFAR_EL2`: bits 51 to 12 of the address, in 43 to 4. Not valid for an external abort.
    pub hpfar: u64,
}

impl Stage2Table {
    /// Returns the table of `VTTBR_EL2` and `VTCR_EL2`. `None` if they are inconsistent, so that each access is a
    /// translation fault at level 0, or if they request an unsupported feature.
    pub fn new(vttbr: u64, vtcr: u64, features: Stage2Features) -> Option<Self> {
        let (start, input_bits) = (2 - (vtcr >> 6 & 0b11).min(3) as i32, 64 - (vtcr & 0b11_1111) as u32);
        let level = Level::new(u8::try_from(4 - start).ok()?).filter(|_| start >= 0)?;
        let output_bits = [32, 36, 40, 42, 44, 48].get((vtcr >> 16 & 0b111) as usize).copied()?;
        let is_4k = vtcr & 0b11 << 14 == 0;
        // At least one table, and at most sixteen.
        let index =
            input_bits.checked_sub(PAGE_SHIFT + level.shift()).filter(|index| (1..=13).contains(index))?;
        let sets_accessed = features.hardware_ad && vtcr & 1 << 21 != 0;
        let sets_dirty = sets_accessed && vtcr & 1 << 22 != 0;
        let root = Gpa(vttbr & ADDRESS & !bits(0, PAGE_SHIFT + index.saturating_sub(INDEX_BITS)));
        let table = Self { root, level, input_bits, output_bits, sets_accessed, sets_dirty, features };
        (is_4k && input_bits <= 48).then_some(table)
    }

    fn memory(&self, entry: u64) -> MemoryType {
        // With FEAT_S2FWB the highest bit is ignored.
        match (entry >> 2 & if self.features.fwb { 0b0111 } else { 0b1111 }, self.features.fwb) {
            (0b1111, false) | (0b0110 | 0b0111, true) => MemoryType::WriteBack,
            (0b0000..=0b0011, _) => MemoryType::Device,
            _ => MemoryType::WriteCombining,
        }
    }
}

impl L1Format for Stage2Table {
    type Injection = Stage2Abort;

    const ROM_IS_AN_ERROR: bool = true;
    const LEAF_FRAME: u64 = ADDRESS;

    fn root(&self) -> (Gpa, Level) {
        (self.root, self.level)
    }

    fn refuses(&self, gpa: Gpa) -> Option<Refusal> {
        let (input, root) = (gpa.0 >> self.input_bits, self.root.0 >> self.output_bits);
        if root != 0 { Some(Refusal::AddressSize) } else { (input != 0).then_some(Refusal::NotPresent) }
    }

    fn entry(&self, Word(entry): Word, level: Level) -> Result<L1Entry, Refusal> {
        let has = |bit| entry & bit != 0;
        let is_leaf = level == Level::K4 || !has(TABLE);
        let is_reserved = if level == Level::K4 { !has(TABLE) } else { is_leaf && level > Level::G1 };
        if !has(VALID) || is_reserved {
            return Err(Refusal::NotPresent);
        }
        let address = entry & ADDRESS & !bits(0, if is_leaf { PAGE_SHIFT + level.shift() } else { 0 });
        if address >> self.output_bits != 0 {
            return Err(Refusal::AddressSize);
        }
        if is_leaf && !has(ACCESSED) && !self.sets_accessed {
            return Err(Refusal::NotAccessed);
        }
        let by_dirt = self.sets_dirty && has(DBM);
        let (off, other) = (has(NO_EXECUTE), self.features.xnx && has(OTHERWISE));
        let perms = Perms::of(has(READ), has(STORE) || by_dirt, off == other);
        let rights = L1Rights::with_user_execute(perms, !off);
        Ok(L1Entry {
            gfn: frame(address),
            is_leaf,
            rights: if is_leaf { rights } else { L1Rights::ALL },
            memory: if is_leaf { self.memory(entry) } else { MemoryType::WriteBack },
            touch: if is_leaf && self.sets_accessed { ACCESSED } else { 0 },
            touch_store: if is_leaf && by_dirt { STORE } else { 0 },
        })
    }

    fn injection(&self, fault: &L1Fault) -> Stage2Abort {
        let kind = match fault.why {
            Refusal::AddressSize => 0b00_0000,
            Refusal::NotPresent | Refusal::Reserved => 0b00_0100,
            Refusal::NotAccessed => 0b00_1000,
            Refusal::Rights => 0b00_1100,
            Refusal::NoMemory => 0b01_0100,
        };
        // A refusal before any entry was read has level 0.
        let level = fault.table.map_or(0, |_| 4 - fault.level.number());
        let access = fault.access;
        let instruction = access.purpose() == Access::Fetch;
        Stage2Abort {
            instruction,
            status: kind + level,
            s1ptw: access.walk_for.is_some(),
            write: !instruction && access.access == Access::Write,
            hpfar: (access.gpa.0 & bits(PAGE_SHIFT, 52)) >> 8,
        }
    }
}
