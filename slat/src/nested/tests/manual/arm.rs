//! Arm stage 2 of `AArch64`, with granules of 4 KiB, 48 bits of address.

use super::*;

#[derive(Clone, Copy, Debug)]
pub struct Stage2 {
    pub vttbr: u64,
    pub vtcr: u64,
    pub features: Stage2Features,
}

impl Stage2 {
    /// The level of the architecture: 0 to 3.
    fn start(&self) -> u8 {
        match self.vtcr >> 6 & 3 {
            0 => 2,
            1 => 1,
            2 => 0,
            _ => 3,
        }
    }

    /// "Implemented and effective output address size".
    fn output_bits(&self) -> u32 {
        match self.vtcr >> 16 & 7 {
            0 => 32,
            1 => 36,
            2 => 40,
            3 => 42,
            4 => 44,
            // 52 bits take another granule or format.
            _ => 48,
        }
    }

    /// Whether the input size fits the first level: up to 16 tables side by side.
    pub fn is_consistent(&self) -> bool {
        let below = 12 + 9 * (3 - u32::from(self.start()));
        (below + 1..=below + 9 + 4).contains(&self.input_bits())
    }

    fn sets_accessed(&self) -> bool {
        self.features.hardware_ad && self.vtcr >> 21 & 1 == 1
    }

    fn sets_dirty(&self) -> bool {
        self.sets_accessed() && self.vtcr >> 22 & 1 == 1
    }

    /// "VMSAv8-64 table descriptor", "block", "page": the use of bit `nth`. `level` is the engine's: 1 is level 3.
    fn bit(&self, level: u8, maps: bool, nth: u32) -> Use {
        use Flag::*;
        match nth {
            0 => Use::Is(Present),
            1 => Use::Is(Table),
            2..=11 | 51..=63 if !maps => Use::Ignored,
            2..=5 => Use::Is(Memory(nth as u8 - 2)),
            6 => Use::Is(Read),
            7 => Use::Is(Write),
            10 => Use::Is(Accessed),
            51 => Use::Is(Modifier),
            53 if self.features.xnx => Use::Is(Never(0)),
            54 => Use::Is(Never(1)),
            // Of a block: RES0, and nT, which needs FEAT_BBM.
            12..48 if maps && nth < self.shift(level) => Use::Ignored,
            12..48 => Use::Address(nth),
            // SH, bit 11, RES0 above, contiguous, and the bits of software.
            _ => Use::Ignored,
        }
    }
}

impl Manual for Stage2 {
    type Report = Stage2Abort;
    const ROM_IS_AN_ERROR: bool = <Stage2Table as L1Format>::ROM_IS_AN_ERROR;

    fn levels(&self) -> u8 {
        4 - self.start()
    }

    fn input_bits(&self) -> u32 {
        64 - (self.vtcr & 0x3f) as u32
    }

    fn root(&self) -> Result<(u64, u8), Refusal> {
        // The tables are aligned to their size together.
        let index = self.input_bits() - (12 + 9 * (3 - u32::from(self.start())));
        let base = self.vttbr & 0xffff_ffff_ffff & !((8 << index) - 1);
        if base >> self.output_bits() == 0 {
            Ok((base & !0xfff, self.levels()))
        } else {
            Err(Refusal::AddressSize)
        }
    }

    fn entry(&self, word: u64, level: u8) -> Result<Said, Refusal> {
        use Flag::*;
        let kind = Drawing::new(word, |nth| self.bit(level, false, nth));
        let maps = match (kind.is(Present), kind.is(Table), level) {
            (false, ..) => return Err(Refusal::NotPresent),
            // A block at level 0, or at level 3: not valid.
            (true, false, 1 | 4) => return Err(Refusal::NotPresent),
            (true, false, _) => true,
            (true, true, level) => level == 1,
        };
        let drawn = Drawing::new(word, |nth| self.bit(level, maps, nth));
        let address = drawn.address();
        if address >> self.output_bits() != 0 {
            return Err(Refusal::AddressSize);
        }
        if !maps {
            return Ok(Said {
                is_leaf: false,
                address,
                rights: [true; 4],
                memory: None,
                sets: 0,
                sets_for_stores: 0,
                not_accessed: false,
            });
        }
        let clean = self.sets_dirty() && drawn.is(Modifier);
        let [fetch, fetch_by_user] = match drawn.number(Never) {
            0b00 => [true, true],
            0b01 => [false, true],
            0b10 => [false, false],
            _ if self.features.xnx => [true, false],
            _ => unreachable!("without FEAT_XNX bit 53 is ignored"),
        };
        let memory = drawn.number(Memory);
        let memory = match (self.features.fwb, memory >> 2, memory & 3) {
            (true, 0 | 2, _) => Some(MemoryType::Device),
            (true, 1, 1) => Some(MemoryType::WriteCombining),
            (true, 1, 2 | 3) => Some(MemoryType::WriteBack),
            // Reserved; or bits that only a further extension defines.
            (true, ..) => None,
            (false, 0, _) => Some(MemoryType::Device),
            (false, _, 0) => None,
            (false, 3, 3) => Some(MemoryType::WriteBack),
            // Not cached, or write-through, in one of both domains at least.
            (false, ..) => Some(MemoryType::WriteCombining),
        };
        // The access flag fault ranks above the permission fault.
        Ok(Said {
            is_leaf: true,
            address,
            rights: [drawn.is(Read), drawn.is(Write) || clean, fetch, fetch_by_user],
            memory,
            sets: if self.sets_accessed() { drawn.bit(Accessed) } else { 0 },
            sets_for_stores: if clean { drawn.bit(Write) } else { 0 },
            not_accessed: !drawn.is(Accessed) && !self.sets_accessed(),
        })
    }

    fn report(&self, access: &L1Access, why: Refusal, level: u8, _: [bool; 4]) -> Option<Stage2Abort> {
        let kind = match why {
            Refusal::AddressSize => 0b0000,
            Refusal::NotPresent => 0b0001,
            Refusal::NotAccessed => 0b0010,
            Refusal::Rights => 0b0011,
            Refusal::Reserved | Refusal::NoMemory => return None,
        };
        // An address, or a root, that is out of range: level 0.
        let before = access.gpa.0 >> self.input_bits() != 0 || self.root().is_err();
        let level = if before { 0 } else { 4 - level };
        let walks = access.walk_for.is_some();
        let instruction = access.walk_for.unwrap_or(access.access) == Access::Fetch;
        Some(Stage2Abort {
            instruction,
            status: kind << 2 | level,
            s1ptw: walks,
            write: !instruction && access.access == Access::Write,
            hpfar: (access.gpa.0 >> 12 & 0xff_ffff_ffff) << 4,
        })
    }
}
