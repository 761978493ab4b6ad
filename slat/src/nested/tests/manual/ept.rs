//! EPT.

use super::*;

/// The parameters: the pointer's, the capabilities, and the execution control.
#[derive(Clone, Copy, Debug)]
pub struct Ept {
    pub pointer: u64,
    /// MAXPHYADDR.
    pub physical_bits: u32,
    pub execute_only: bool,
    pub large_1g: bool,
    pub mode_based_execute: bool,
}

/// `pointer` passes the checks of VM entry on "VM-execution control fields".
pub fn is_pointer(pointer: u64, features: &EptFeatures) -> bool {
    let bits = |low: u32, high: u32| pointer >> low & (u64::MAX >> (63 - (high - low)));
    let memory_type = matches!(bits(0, 2), 0 | 6);
    let length = bits(3, 5) == 3 || bits(3, 5) == 4 && features.five_levels;
    let flags = bits(6, 6) == 0 || features.accessed_dirty;
    memory_type && length && flags && bits(7, 11) == 0 && bits(features.physical_bits, 63) == 0
}

impl Ept {
    fn accessed_dirty(&self) -> bool {
        self.pointer >> 6 & 1 == 1
    }

    /// "Format of an EPT PML4 entry", and so on: the use of bit `nth` of an entry of `level`, which `maps` a page or not.
    fn bit(&self, level: u8, maps: bool, nth: u32) -> Use {
        use Flag::*;
        match nth {
            0 => Use::Is(Read),
            1 => Use::Is(Write),
            2 => Use::Is(Execute),
            3..=5 if maps => Use::Is(Memory(nth as u8 - 3)),
            6 if maps => Use::Is(IgnorePat),
            3..=6 => Use::Reserved,
            7 if level == 1 => Use::Ignored,
            7 if level == 2 || level == 3 && self.large_1g => Use::Is(Large),
            7 => Use::Reserved,
            8 if self.accessed_dirty() => Use::Is(Accessed),
            9 if maps && self.accessed_dirty() => Use::Is(Dirty),
            10 if self.mode_based_execute => Use::Is(UserExecute),
            8..=11 => Use::Ignored,
            12..52 if nth >= self.physical_bits => Use::Reserved,
            12..52 if nth < self.shift(level) && maps => Use::Reserved,
            12..52 => Use::Address(nth),
            // Among them: the verification of guest paging, paging-write, the supervisor shadow stack, sub-page
            // permissions, and the suppression of #VE. None of their controls is on.
            _ => Use::Ignored,
        }
    }
}

impl Manual for Ept {
    type Report = EptExit;
    const ROM_IS_AN_ERROR: bool = false;

    fn levels(&self) -> u8 {
        (self.pointer >> 3 & 7) as u8 + 1
    }

    fn input_bits(&self) -> u32 {
        if self.levels() == 5 { 57 } else { 48 }
    }

    fn root(&self) -> Result<(u64, u8), Refusal> {
        Ok((self.pointer & !0xfff, self.levels()))
    }

    fn entry(&self, word: u64, level: u8) -> Result<Said, Refusal> {
        use Flag::*;
        let as_link = Drawing::new(word, |nth| self.bit(level, false, nth));
        let maps = level == 1 || as_link.is(Large);
        let drawn = Drawing::new(word, |nth| self.bit(level, maps, nth));
        let rights @ [read, write, execute, user_execute] =
            [Read, Write, Execute, UserExecute].map(|flag| drawn.is(flag));
        if rights == [false; 4] {
            return Err(Refusal::NotPresent);
        }
        let memory = drawn.number(Memory);
        let misconfigured = !read && write
            || !read && (execute || user_execute) && !self.execute_only
            || drawn.has_reserved()
            || maps && matches!(memory, 2 | 3 | 7);
        if misconfigured {
            return Err(Refusal::Reserved);
        }
        let fetch_by_user = if self.mode_based_execute { user_execute } else { execute };
        let memory = match memory {
            6 => MemoryType::WriteBack,
            1 => MemoryType::WriteCombining,
            // Uncached; write-through and write-protected, which cache, but keep stores in order. Only without "ignore
            // PAT" L2 may combine stores.
            _ if drawn.is(IgnorePat) => MemoryType::Device,
            _ => MemoryType::Uncached,
        };
        Ok(Said {
            is_leaf: maps,
            address: drawn.address(),
            rights: [read, write, execute, fetch_by_user],
            memory: maps.then_some(memory),
            sets: drawn.bit(Accessed),
            sets_for_stores: drawn.bit(Dirty),
            not_accessed: false,
        })
    }

    fn wants(&self, access: &L1Access) -> Wants {
        let as_store = access.access == Access::Write || access.walk_for.is_some() && self.accessed_dirty();
        let right = match access.access {
            _ if as_store => 1,
            Access::Fetch if access.user => 3,
            Access::Fetch => 2,
            _ => 0,
        };
        Wants { right, stores: as_store }
    }

    fn report(&self, access: &L1Access, why: Refusal, _: u8, path: [bool; 4]) -> Option<EptExit> {
        let gpa = access.gpa;
        if why == Refusal::Reserved {
            return Some(EptExit::Misconfiguration { gpa });
        }
        let walks = access.walk_for.is_some();
        let both = walks && self.accessed_dirty();
        let of = |bit: u32, is: bool| u64::from(is) << bit;
        let kind = of(0, both || access.access == Access::Read)
            | of(1, both || access.access == Access::Write)
            | of(2, access.access == Access::Fetch);
        let rights = of(3, path[0]) | of(4, path[1]) | of(5, path[2]);
        let by_user = of(6, path[3] && self.mode_based_execute);
        let linear = access.carried >> 7 & 1 == 1;
        Some(EptExit::Violation {
            gpa,
            qualification: kind | rights | by_user | access.carried | of(8, linear && !walks),
        })
    }
}
