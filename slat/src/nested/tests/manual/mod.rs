//! The oracle of walks: a slow walker that takes its rules from the processors' manuals alone.
//!
//! | file | source |
//! |---|---|
//! | `x86` | Intel SDM volume 3A, "Paging": "32-bit paging", "PAE paging", "4-level paging and 5-level paging", "Access rights", "Page-fault exceptions", "Accessed and dirty flags"; AMD APM volume 2, "Page translation and protection", and "Nested paging" in "Secure virtual machine" |
//! | `ept` | Intel SDM volume 3C, "The extended page table mechanism": "EPT translation mechanism", "EPT misconfigurations", "EPT violations", "Accessed and dirty flags for EPT"; "Exit qualification for EPT violations" |
//! | `arm` | Arm ARM, "The `AArch64` virtual memory system architecture": "Translation table descriptor formats", "Memory access control", "Hardware management of the access flag and dirty state", "Memory region attributes", "MMU faults" |
//! | `riscv` | RISC-V privileged architecture, "Hypervisor extension": "Two-stage address translation"; "Supervisor-level ISA": "Virtual address translation process"; "Svpbmt", "Svnapot", "Svadu" |
//!
//! It shares no constant and no code with the formats that it judges. Each of the 64 bits of an entry has exactly one
//! [`Use`] at each level: the formats' `bit` functions are total. They depend on the parameters that a processor has:
//! physical bits, page sizes, no-execute, A and D.

#![expect(clippy::match_same_arms, reason = "each arm is a row of a manual's table")]

pub mod arm;
pub mod ept;
pub mod riscv;
pub mod x86;

use super::*;
use std::collections::BTreeMap;

/// L1's memory: words of eight bytes, by address. All others are zero.
pub type Words = BTreeMap<u64, u64>;

/// The named bits of entries. The numbered fields have their lowest bit first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flag {
    Present,
    Read,
    Write,
    Execute,
    /// Fetches by users: EPT bit 10.
    UserExecute,
    User,
    Accessed,
    Dirty,
    /// The entry maps a page though its level could link a table.
    Large,
    NoExecute,
    WriteThrough,
    CacheDisable,
    Pat,
    /// Memory type, in up to four bits.
    Memory(u8),
    IgnorePat,
    /// Arm: the entry is a table, or a page of the last level.
    Table,
    /// Arm: XN\[1:0\].
    Never(u8),
    /// Arm: the dirty bit modifier.
    Modifier,
}

/// The use that hardware makes of one bit of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Is(Flag),
    /// This bit of the physical address.
    Address(u32),
    Ignored,
    /// Must be 0 in a present entry.
    Reserved,
}

/// An entry, with the use of each bit.
pub struct Drawing {
    word: u64,
    flags: Vec<(Flag, u64)>,
    address: u64,
    reserved: u64,
}

impl Drawing {
    pub fn new(word: u64, use_of: impl Fn(u32) -> Use) -> Self {
        let mut drawing = Self { word, flags: Vec::with_capacity(24), address: 0, reserved: 0 };
        for nth in 0..64 {
            let bit = 1 << nth;
            match use_of(nth) {
                Use::Is(flag) => drawing.flags.push((flag, bit)),
                Use::Address(to) if word & bit != 0 => drawing.address |= 1 << to,
                Use::Reserved => drawing.reserved |= bit,
                Use::Address(_) | Use::Ignored => {}
            }
        }
        drawing
    }

    /// The bit of this flag; 0 if the entry has none.
    pub fn bit(&self, flag: Flag) -> u64 {
        self.flags.iter().find(|&&(found, _)| found == flag).map_or(0, |&(_, bit)| bit)
    }

    pub fn is(&self, flag: Flag) -> bool {
        self.word & self.bit(flag) != 0
    }

    /// The number in a field of several bits.
    pub fn number(&self, flag: fn(u8) -> Flag) -> u8 {
        (0..4).map(|nth| u8::from(self.is(flag(nth))) << nth).sum()
    }

    pub fn has_reserved(&self) -> bool {
        self.word & self.reserved != 0
    }

    pub fn address(&self) -> u64 {
        self.address
    }
}

/// The answer of an entry.
#[derive(Debug)]
pub struct Said {
    pub is_leaf: bool,
    pub address: u64,
    /// The format's own rights; those of a path are the conjunction.
    pub rights: [bool; 4],
    /// `None` if the manual leaves the type open.
    pub memory: Option<MemoryType>,
    /// The bits that hardware sets when it uses the entry, and for a store through a leaf.
    pub sets: u64,
    pub sets_for_stores: u64,
    /// Hardware refuses the leaf because A is clear, whatever its rights.
    pub not_accessed: bool,
}

/// The end of a walk that maps a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    pub frame: u64,
    pub level: u8,
    /// Loads, stores, fetches by supervisors, fetches by users.
    pub allowed: [bool; 4],
    pub rights: [bool; 4],
    pub memory: Option<MemoryType>,
    pub accessed: bool,
    pub dirty: bool,
    /// The frames of the tables.
    pub tables: Vec<u64>,
}

/// The end of a walk that L1's hardware refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused<R> {
    pub why: Refusal,
    pub level: u8,
    /// The report of the hardware; `None` where no manual speaks of it: for a table that is in no memory.
    pub report: Option<R>,
}

/// An access by a walk of L2's own tables counts as a store in some formats.
pub struct Wants {
    /// The index in the rights.
    pub right: usize,
    /// D is set.
    pub stores: bool,
}

/// A format, as its manual has it.
pub trait Manual: std::fmt::Debug {
    type Report: Clone + PartialEq + std::fmt::Debug;

    /// Whether a store to read-only memory by the walker is an error.
    const ROM_IS_AN_ERROR: bool;

    fn levels(&self) -> u8;

    /// Bits of an address that it translates.
    fn input_bits(&self) -> u32;

    /// The address of the first table of the walk, and its level; or the refusal.
    fn root(&self) -> Result<(u64, u8), Refusal>;

    /// The place of the entry, and its bytes.
    fn place(&self, table: u64, level: u8, gpa: u64) -> (u64, u64) {
        let bits = if level == self.levels() { self.input_bits() - 3 - 9 * u32::from(level) } else { 9 };
        let index = gpa >> (3 + 9 * u32::from(level)) & ((1 << bits) - 1);
        (table + 8 * index, 8)
    }

    /// Bits of the address below an entry of this level.
    fn shift(&self, level: u8) -> u32 {
        3 + 9 * u32::from(level)
    }

    fn entry(&self, word: u64, level: u8) -> Result<Said, Refusal>;

    /// Loads, stores, fetches by supervisors, fetches by users: of the conjunction along the path.
    fn allowed(&self, path: [bool; 4]) -> [bool; 4] {
        path
    }

    fn wants(&self, access: &L1Access) -> Wants {
        let right = match access.access {
            Access::Read => 0,
            Access::Write => 1,
            Access::Fetch if access.user => 3,
            Access::Fetch => 2,
        };
        Wants { right, stores: access.access == Access::Write }
    }

    /// The report of a refusal. `path` is the conjunction along the whole path; all false if the path has no end.
    fn report(&self, access: &L1Access, why: Refusal, level: u8, path: [bool; 4]) -> Option<Self::Report>;
}

/// The place in memory, if there is any: the second address of the first frames is theirs.
fn real(place: u64) -> Option<u64> {
    let (frame, offset) = (place >> 12, place & 0xfff);
    match frame {
        frame if frame < NOWHERE => Some(place),
        frame if (ALIAS.0..ALIAS.0 + ALIASES).contains(&frame) => Some((frame - ALIAS.0) << 12 | offset),
        _ => None,
    }
}

fn is_rom(place: u64) -> bool {
    (READ_ONLY..NOWHERE).contains(&(place >> 12))
}

/// Reads an entry of `size` bytes.
pub fn load(words: &Words, place: u64, size: u64) -> u64 {
    let word = words.get(&(place & !7)).copied().unwrap_or(0);
    word >> (8 * (place & 7)) & (u64::MAX >> (64 - 8 * size))
}

/// Writes an entry of `size` bytes.
pub fn store(words: &mut Words, place: u64, size: u64, entry: u64) {
    let (shift, mask) = (8 * (place & 7), u64::MAX >> (64 - 8 * size));
    let word = words.entry(place & !7).or_default();
    *word = *word & !(mask << shift) | entry << shift;
}

/// Walks `manual`'s table for an access. Sets A and D in `words`; adds the frames of the tables that it changes to
/// `marked`, by the address that leads there. A refused access changes nothing.
pub fn walk<M: Manual>(
    manual: &M,
    words: &mut Words,
    access: &L1Access,
    marked: &mut Vec<u64>,
) -> Result<Page, Refused<M::Report>> {
    const NONE: [bool; 4] = [false; 4];
    let gpa = access.gpa.0;
    let refuse = |why, level, path| Refused { why, level, report: manual.report(access, why, level, path) };
    let nowhere = |level| Refused { why: Refusal::NoMemory, level, report: None };
    if gpa.checked_shr(manual.input_bits()).is_some_and(|above| above != 0) {
        return Err(refuse(Refusal::NotPresent, manual.levels(), NONE));
    }
    let (mut table, mut level) = manual.root().map_err(|why| refuse(why, manual.levels(), NONE))?;
    let (mut path, mut tables, mut used) = ([true; 4], Vec::new(), Vec::new());
    let last = loop {
        let (place, size) = manual.place(table, level, gpa);
        let at = real(place).ok_or_else(|| nowhere(level))?;
        let word = load(words, at, size);
        let said = manual.entry(word, level).map_err(|why| refuse(why, level, NONE))?;
        path = std::array::from_fn(|nth| path[nth] && said.rights[nth]);
        tables.push(place >> 12);
        used.push((place, at, size, word, said.sets));
        if said.is_leaf {
            break said;
        }
        (table, level) = (said.address, level - 1);
    };
    let wants = manual.wants(access);
    let allowed = manual.allowed(path);
    if last.not_accessed {
        return Err(refuse(Refusal::NotAccessed, level, path));
    }
    if !allowed[wants.right] {
        return Err(refuse(Refusal::Rights, level, path));
    }
    if wants.stores {
        used.last_mut().unwrap().4 |= last.sets_for_stores;
    }
    if M::ROM_IS_AN_ERROR && used.iter().any(|&(_, at, _, word, sets)| is_rom(at) && word & sets != sets) {
        return Err(nowhere(level));
    }
    let (mut accessed, mut dirty) = (true, true);
    for (nth, &(place, at, size, word, sets)) in used.iter().enumerate() {
        if word & sets != sets && !is_rom(at) {
            // One page may hold several entries of a path: each is read again.
            let now = load(words, at, size);
            store(words, at, size, now | sets);
            marked.push(place >> 12);
        }
        let now = load(words, at, size);
        let own = if nth + 1 == used.len() { last.sets } else { sets };
        accessed &= now & own == own;
        dirty = now & last.sets_for_stores == last.sets_for_stores;
    }
    let mut rights = allowed;
    rights[1] &= dirty || wants.stores;
    let offset = gpa & ((1 << manual.shift(level)) - 1);
    Ok(Page {
        frame: (last.address + offset) >> 12,
        level,
        allowed,
        rights,
        memory: last.memory,
        accessed,
        dirty,
        tables,
    })
}
