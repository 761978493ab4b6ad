//! L1's EPT (Intel SDM volume 3, "The Extended Page Table Mechanism").
//!
//! ```text
//! leaf   51....12  10      9  8  7   6     5..3  2 1 0
//!        frame     user X  D  A  PS  IPAT  type  X W R
//! link   51....12  10         8  7..3: reserved  X W R
//! ```
//! An entry is present if any of R, W, X is set (or user X, with mode-based execution). In a present entry
//! **misconfiguration precedes rights**: W without R, X without R where that is not offered, type 2, 3 or 7, a reserved
//! bit. It is checked level by level; rights are compared once the leaf is known. If A and D are enabled, each access
//! by L2's own walk is a store to EPT.
//!
//! 4-level EPT translates 48 bits; higher addresses are not present. The ignored bits (57 to 63) belong to features
//! that are not offered: sub-page permissions, supervisor shadow stacks, #VE.

use super::format::{L1Access, L1Entry, L1Fault, L1Format, L1Rights, Refusal, bits, frame, x86_memory_type};
use crate::table::formats::ept::{ACCESSED, DIRTY, EXECUTE, IGNORE_PAT, READ, WRITE};
use crate::table::formats::x86::LARGE;
use crate::{Access, Gpa, Level, MemoryType, PAGE_SHIFT, Perms, Word};

const USER_EXECUTE: u64 = 1 << 10;

/// Features that L0 offers L1, or that L1 has chosen of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of a capability register")]
pub struct EptFeatures {
    /// Bits of an L1 physical address (MAXPHYADDR).
    pub physical_bits: u32,
    /// `IA32_VMX_EPT_VPID_CAP[0]`: entries may allow fetches alone.
    pub execute_only: bool,
    /// `IA32_VMX_EPT_VPID_CAP[7]`: a pointer may name five levels.
    pub five_levels: bool,
    /// `IA32_VMX_EPT_VPID_CAP[17]`: entries may map 1 GiB.
    pub large_1g: bool,
    /// `IA32_VMX_EPT_VPID_CAP[21]`: a pointer may enable A and D.
    pub accessed_dirty: bool,
    /// Mode-based execute control is on in the VMCS: bit 10 allows fetches by users, bit 2 fetches by supervisors.
    pub mode_based_execute: bool,
}

impl EptFeatures {
    /// Four levels and pages of 2 MiB only, for physical addresses of `physical_bits` bits.
    pub const fn of(physical_bits: u32) -> Self {
        let (execute_only, five_levels, large_1g, accessed_dirty) = (false, false, false, false);
        Self { physical_bits, execute_only, five_levels, large_1g, accessed_dirty, mode_based_execute: false }
    }
}

/// L1's EPT: see [`EptTable::new`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EptTable {
    root: Gpa,
    level: Level,
    accessed_dirty: bool,
    features: EptFeatures,
}

/// A VM exit of L2 that L1 sees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EptExit {
    /// Exit reason 48, with the exit qualification.
    Violation {
        /// The guest-physical address field.
        gpa: Gpa,
        /// The exit qualification.
        qualification: u64,
    },
    /// Exit reason 49.
    Misconfiguration {
        /// The guest-physical address field.
        gpa: Gpa,
    },
}

impl EptTable {
    /// Returns the table that an EPT pointer names; `None` if VM entry and INVEPT fail with it.
    pub fn new(pointer: u64, features: EptFeatures) -> Option<Self> {
        let level = Level::new((pointer >> 3 & 0b111) as u8 + 1)?;
        let has_level = level.number() == 4 || level.number() == 5 && features.five_levels;
        let accessed_dirty = pointer & 1 << 6 != 0;
        let is_type = matches!(pointer & 0b111, 0 | 6);
        let reserved = bits(7, PAGE_SHIFT) | bits(features.physical_bits, 64);
        let is_good = has_level && is_type && (!accessed_dirty || features.accessed_dirty);
        let root = frame(pointer).gpa();
        (is_good && pointer & reserved == 0).then_some(Self { root, level, accessed_dirty, features })
    }
}

impl L1Format for EptTable {
    type Injection = EptExit;

    const LEAF_FRAME: u64 = bits(PAGE_SHIFT, 52);

    fn root(&self) -> (Gpa, Level) {
        (self.root, self.level)
    }

    fn refuses(&self, gpa: Gpa) -> Option<Refusal> {
        (gpa.0 >> (self.level.up().shift() + PAGE_SHIFT) != 0).then_some(Refusal::NotPresent)
    }

    fn demands(&self, access: &L1Access) -> Perms {
        let stores = access.walk_for.is_some() && self.accessed_dirty;
        if stores { Perms::READ.with(Perms::WRITE) } else { Perms::to(access.access) }
    }

    fn entry(&self, Word(entry): Word, level: Level) -> Result<L1Entry, Refusal> {
        let has = |bit| entry & bit != 0;
        let (read, write, execute) = (has(READ), has(WRITE), has(EXECUTE));
        let user_execute = if self.features.mode_based_execute { has(USER_EXECUTE) } else { execute };
        if !(read || write || execute || user_execute) {
            return Err(Refusal::NotPresent);
        }
        let largest = if self.features.large_1g { Level::G1 } else { Level::M2 };
        let is_leaf = level == Level::K4 || has(LARGE) && level <= largest;
        let inside = if is_leaf { bits(PAGE_SHIFT, PAGE_SHIFT + level.shift()) } else { bits(3, 8) };
        let reserved = bits(self.features.physical_bits, 52) | inside;
        let memory = if is_leaf { x86_memory_type(entry >> 3 & 0b111) } else { Some(MemoryType::WriteBack) };
        let alone = !read && (write || !self.features.execute_only);
        let Some(memory) = memory.filter(|_| entry & reserved == 0 && !alone) else {
            return Err(Refusal::Reserved);
        };
        let is_device = is_leaf && memory == MemoryType::Uncached && has(IGNORE_PAT);
        let when = |bit| if self.accessed_dirty { bit } else { 0 };
        Ok(L1Entry {
            gfn: frame(entry),
            is_leaf,
            rights: L1Rights::with_user_execute(Perms::of(read, write, execute), user_execute),
            memory: if is_device { MemoryType::Device } else { memory },
            touch: when(ACCESSED),
            touch_store: if is_leaf { when(DIRTY) } else { 0 },
        })
    }

    fn injection(&self, fault: &L1Fault) -> EptExit {
        let L1Access { gpa, carried, walk_for, .. } = fault.access;
        if fault.why == Refusal::Reserved {
            return EptExit::Misconfiguration { gpa };
        }
        let found = if fault.why == Refusal::Rights { fault.rights } else { L1Rights::plain(Perms::NONE) };
        let by_user = u64::from(found.user.allows(Access::Fetch) && self.features.mode_based_execute) << 6;
        // Bit 7: there is a linear address. Bit 8: the access is to the translated address, not by the walk.
        let to_final = u64::from(carried & 1 << 7 != 0 && walk_for.is_none());
        let wanted = u64::from(self.demands(&fault.access).bits());
        let allowed = u64::from(found.perms.bits());
        let carried = carried & (1 << 7 | bits(9, 17));
        EptExit::Violation { gpa, qualification: wanted | allowed << 3 | by_user | to_final << 8 | carried }
    }
}
