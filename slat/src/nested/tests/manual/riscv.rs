//! RISC-V's G-stage: Sv39x4, Sv48x4, Sv57x4.

use super::*;

#[derive(Clone, Copy, Debug)]
pub struct GStage {
    pub hgatp: u64,
    pub features: GStageFeatures,
}

impl GStage {
    /// "Sv39 page table entry", and so on.
    fn bit(&self, maps: bool, nth: u32) -> Use {
        use Flag::*;
        match nth {
            0 => Use::Is(Present),
            1 => Use::Is(Read),
            2 => Use::Is(Write),
            3 => Use::Is(Execute),
            // U, A and D of a pointer to a table are reserved for future use.
            4 if maps => Use::Is(User),
            6 if maps => Use::Is(Accessed),
            7 if maps => Use::Is(Dirty),
            4 | 6 | 7 => Use::Reserved,
            // G: ignored in each G-stage entry. RSW.
            5 | 8 | 9 => Use::Ignored,
            10..=53 => Use::Address(nth + 2),
            // Svpbmt: of leaves only.
            61 | 62 if maps && self.features.pbmte => Use::Is(Memory(nth as u8 - 61)),
            // Among them N, of Svnapot.
            _ => Use::Reserved,
        }
    }
}

impl Manual for GStage {
    type Report = GuestPageFault;
    const ROM_IS_AN_ERROR: bool = true;

    fn levels(&self) -> u8 {
        (self.hgatp >> 60) as u8 - 5
    }

    fn input_bits(&self) -> u32 {
        match self.levels() {
            3 => 41,
            4 => 50,
            _ => 59,
        }
    }

    fn root(&self) -> Result<(u64, u8), Refusal> {
        // 16 KiB; the two lowest bits of the number read as zero.
        Ok(((self.hgatp & 0xfff_ffff_ffff & !3) << 12, self.levels()))
    }

    fn entry(&self, word: u64, level: u8) -> Result<Said, Refusal> {
        use Flag::*;
        let maps = word >> 1 & 7 != 0;
        let drawn = Drawing::new(word, |nth| self.bit(maps, nth));
        let memory = drawn.number(Memory);
        match () {
            () if !drawn.is(Present) => return Err(Refusal::NotPresent),
            () if drawn.has_reserved() || memory == 3 => return Err(Refusal::Reserved),
            () if !drawn.is(Read) && drawn.is(Write) => return Err(Refusal::Reserved),
            // A pointer in the last level.
            () if !maps && level == 1 => return Err(Refusal::Reserved),
            () if maps && drawn.address() & ((1 << self.shift(level)) - 1) != 0 => {
                return Err(Refusal::Reserved);
            }
            () => {}
        }
        let user = |is: bool| is && (!maps || drawn.is(User));
        let fetch = user(!maps || drawn.is(Execute));
        let read = user(!maps || drawn.is(Read) || self.features.mxr && drawn.is(Execute));
        let memory = match memory {
            0 => MemoryType::WriteBack,
            1 => MemoryType::WriteCombining,
            _ => MemoryType::Device,
        };
        // Without Svadu a store needs D.
        let write = !maps || drawn.is(Write) && (self.features.adue || drawn.is(Dirty));
        Ok(Said {
            is_leaf: maps,
            address: drawn.address(),
            rights: [read, user(write), fetch, fetch],
            memory: maps.then_some(memory),
            sets: if self.features.adue { drawn.bit(Accessed) } else { 0 },
            sets_for_stores: if self.features.adue { drawn.bit(Dirty) } else { 0 },
            // The same page fault as one of rights: the order does not show.
            not_accessed: maps && !self.features.adue && !drawn.is(Accessed),
        })
    }

    fn report(&self, access: &L1Access, _: Refusal, _: u8, _: [bool; 4]) -> Option<GuestPageFault> {
        let cause = match access.walk_for.unwrap_or(access.access) {
            Access::Fetch => 20,
            Access::Read => 21,
            Access::Write => 23,
        };
        // The pseudoinstructions of 64-bit accesses by the walk of the first stage.
        let htinst = match (access.walk_for, access.access) {
            (None, _) => 0,
            (Some(_), Access::Write) => 0x3020,
            (Some(_), _) => 0x3000,
        };
        Some(GuestPageFault { cause, htval: access.gpa.0 >> 2, htinst })
    }
}
