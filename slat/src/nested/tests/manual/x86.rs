//! x86's own paging: a guest's tables, and AMD's nested paging, which has the same entries.

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// `pse`: `CR4.PSE`.
    Bits32 {
        pse: bool,
    },
    Pae,
    FourLevels,
    FiveLevels,
}

/// The rules of entries.
#[derive(Clone, Copy, Debug)]
pub struct Paging {
    pub mode: Mode,
    /// `EFER.NXE`.
    pub nxe: bool,
    /// MAXPHYADDR.
    pub physical_bits: u32,
    pub large_1g: bool,
    /// AMD: bit 8 of PML4Es and PML5Es must be zero. Intel ignores it.
    pub amd: bool,
    pub pat: u64,
}

impl Paging {
    /// "Format of a PDE that references a page table", and so on: the use of bit `nth`.
    fn bit(&self, level: u8, maps: bool, nth: u32) -> Use {
        use Flag::*;
        if self.mode == Mode::Pae && level == 3 {
            // PAE's page-directory-pointer-table entries have no rights, no A, and nothing ignored above.
            return match nth {
                0 => Use::Is(Present),
                3 => Use::Is(WriteThrough),
                4 => Use::Is(CacheDisable),
                9..=11 => Use::Ignored,
                12.. if nth < self.physical_bits => Use::Address(nth),
                _ => Use::Reserved,
            };
        }
        match nth {
            0 => Use::Is(Present),
            1 => Use::Is(Write),
            2 => Use::Is(User),
            3 => Use::Is(WriteThrough),
            4 => Use::Is(CacheDisable),
            5 => Use::Is(Accessed),
            6 if maps => Use::Is(Dirty),
            6 => Use::Ignored,
            7 if level == 1 => Use::Is(Pat),
            7 => match (self.mode, level) {
                (Mode::Bits32 { pse: false }, _) => Use::Ignored,
                (_, 2) => Use::Is(Large),
                (_, 3) if self.large_1g => Use::Is(Large),
                _ => Use::Reserved,
            },
            8 if level >= 4 && self.amd => Use::Reserved,
            // Global, in an entry that maps a page.
            8 => Use::Ignored,
            9..=11 => Use::Ignored,
            _ if matches!(self.mode, Mode::Bits32 { .. }) => self.high_bit_of_four_bytes(level, maps, nth),
            12 if maps && level > 1 => Use::Is(Pat),
            12..52 if nth >= self.physical_bits => Use::Reserved,
            12..52 if maps && nth < self.shift(level) => Use::Reserved,
            12..52 => Use::Address(nth),
            63 if self.nxe => Use::Is(NoExecute),
            63 => Use::Reserved,
            // Available to software; with PAE reserved.
            _ if self.mode == Mode::Pae => Use::Reserved,
            _ => Use::Ignored,
        }
    }

    fn high_bit_of_four_bytes(&self, level: u8, maps: bool, nth: u32) -> Use {
        let width = self.physical_bits.min(40);
        match nth {
            32.. => Use::Ignored,
            12 if maps && level == 2 => Use::Is(Flag::Pat),
            // Bits 32 and up of the frame of 4 MiB.
            13..=20 if maps && level == 2 && nth + 19 < width => Use::Address(nth + 19),
            13..=21 if maps && level == 2 => Use::Reserved,
            _ => Use::Address(nth),
        }
    }

    fn shift(&self, level: u8) -> u32 {
        match self.mode {
            Mode::Bits32 { .. } => 2 + 10 * u32::from(level),
            _ => 3 + 9 * u32::from(level),
        }
    }

    fn levels(&self) -> u8 {
        match self.mode {
            Mode::Bits32 { .. } => 2,
            Mode::Pae => 3,
            Mode::FourLevels => 4,
            Mode::FiveLevels => 5,
        }
    }

    /// The rights are: all, stores, fetches, users.
    fn entry(&self, word: u64, level: u8) -> Result<Said, Refusal> {
        use Flag::*;
        let as_link = Drawing::new(word, |nth| self.bit(level, false, nth));
        let maps = level == 1 || as_link.is(Large);
        let drawn = Drawing::new(word, |nth| self.bit(level, maps, nth));
        if !drawn.is(Present) {
            return Err(Refusal::NotPresent);
        }
        if drawn.has_reserved() {
            return Err(Refusal::Reserved);
        }
        let in_registers = self.mode == Mode::Pae && level == 3;
        let nth = [WriteThrough, CacheDisable, Pat].map(|flag| u32::from(drawn.is(flag)));
        let memory = match self.pat >> (8 * (nth[0] + 2 * nth[1] + 4 * nth[2])) & 0xff {
            6 => Some(MemoryType::WriteBack),
            1 => Some(MemoryType::WriteCombining),
            0 => Some(MemoryType::Device),
            // UC-; write-through and write-protected, which are cached, but with stores in order.
            4 | 5 | 7 => Some(MemoryType::Uncached),
            _ => None,
        };
        Ok(Said {
            is_leaf: maps,
            address: drawn.address(),
            rights: [
                true,
                in_registers || drawn.is(Write),
                !drawn.is(NoExecute),
                in_registers || drawn.is(User),
            ],
            memory: if maps { memory } else { None },
            sets: drawn.bit(Accessed),
            sets_for_stores: drawn.bit(Dirty),
            not_accessed: false,
        })
    }

    fn place(&self, table: u64, level: u8, address: u64) -> (u64, u64) {
        let (bits, size) = match self.mode {
            Mode::Bits32 { .. } => (10, 4),
            Mode::Pae if level == 3 => (2, 8),
            _ => (9, 8),
        };
        (table + size * (address >> self.shift(level) & ((1 << bits) - 1)), size)
    }

    /// "Page-fault error code". A refusal of rights or of reserved bits is P.
    fn code(&self, smep: bool, why: Refusal, access: Access, user: bool) -> u32 {
        let of = |bit: u32, is: bool| u32::from(is) << bit;
        let tells_fetches = smep || self.nxe && !matches!(self.mode, Mode::Bits32 { .. });
        of(0, why != Refusal::NotPresent)
            | of(1, access == Access::Write)
            | of(2, user)
            | of(3, why == Refusal::Reserved)
            | of(4, access == Access::Fetch && tells_fetches)
    }
}

/// Nested paging of AMD.
#[derive(Clone, Copy, Debug)]
pub struct Npt {
    /// `N_CR3`.
    pub ncr3: u64,
    pub paging: Paging,
    /// L1's `CR4.SMEP` at VMRUN.
    pub smep: bool,
}

impl Manual for Npt {
    type Report = NestedPageFault;
    const ROM_IS_AN_ERROR: bool = false;

    fn levels(&self) -> u8 {
        self.paging.levels()
    }

    fn input_bits(&self) -> u32 {
        match self.paging.mode {
            Mode::FourLevels => 48,
            Mode::FiveLevels => 57,
            _ => 32,
        }
    }

    fn root(&self) -> Result<(u64, u8), Refusal> {
        let low = if self.paging.mode == Mode::Pae { 0x1f } else { 0xfff };
        let high = if self.paging.mode == Mode::Pae { 0xffff_ffff } else { !0 };
        Ok((self.ncr3 & high & !low, self.levels()))
    }

    fn place(&self, table: u64, level: u8, gpa: u64) -> (u64, u64) {
        self.paging.place(table, level, gpa)
    }

    fn shift(&self, level: u8) -> u32 {
        self.paging.shift(level)
    }

    fn entry(&self, word: u64, level: u8) -> Result<Said, Refusal> {
        self.paging.entry(word, level)
    }

    /// "Nested table walk": every access is one of a user.
    fn allowed(&self, [_, write, fetch, user]: [bool; 4]) -> [bool; 4] {
        [user, user && write, user && fetch, user && fetch]
    }

    /// A walk of the guest's tables stores.
    fn wants(&self, access: &L1Access) -> Wants {
        let stores = access.walk_for.is_some() || access.access == Access::Write;
        let right = match access.access {
            _ if stores => 1,
            Access::Fetch => 2,
            _ => 0,
        };
        Wants { right, stores }
    }

    fn report(&self, access: &L1Access, why: Refusal, _: u8, _: [bool; 4]) -> Option<NestedPageFault> {
        let walks = access.walk_for.is_some();
        let kind = if walks { Access::Write } else { access.access };
        let code = self.paging.code(self.smep, why, kind, true);
        let stage = if walks { 1 << 33 } else { 1 << 32 };
        Some(NestedPageFault { info1: u64::from(code) | stage, info2: access.gpa })
    }
}

/// A guest's own tables, for accesses by `privilege`.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    pub registers: GuestRegisters,
    pub paging: GuestPaging,
    pub privilege: Privilege,
}

fn has(register: u64, bit: u32) -> bool {
    register >> bit & 1 == 1
}

impl Guest {
    fn entries(&self) -> Paging {
        let GuestRegisters { cr4, efer, pat, .. } = self.registers;
        let mode = match (has(cr4, 5), has(efer, 10), has(cr4, 12)) {
            (false, ..) => Mode::Bits32 { pse: has(cr4, 4) },
            (true, false, _) => Mode::Pae,
            (true, true, false) => Mode::FourLevels,
            (true, true, true) => Mode::FiveLevels,
        };
        Paging {
            mode,
            nxe: has(efer, 11),
            physical_bits: self.paging.physical_bits,
            large_1g: self.paging.large_1g,
            amd: self.paging.reserves_global,
            pat,
        }
    }

    pub fn levels(&self) -> u8 {
        self.entries().levels()
    }

    /// Whether the processor takes these registers: the write to CR3 of a root or of PDPTEs with reserved bits is
    /// refused by #GP.
    pub fn loads(&self) -> bool {
        let entries = self.entries();
        match entries.mode {
            Mode::Bits32 { .. } => true,
            Mode::Pae => self
                .registers
                .pdptes
                .iter()
                .all(|&entry| entries.entry(entry, 3).err() != Some(Refusal::Reserved)),
            _ => self.registers.cr3 >> self.paging.physical_bits == 0,
        }
    }

    /// Walks, as [`walk`]. The error of a refusal is the page fault's code.
    pub fn walk(
        &self,
        words: &mut Words,
        address: u64,
        access: Access,
        marked: &mut Vec<u64>,
    ) -> Result<Page, u32> {
        let access =
            L1Access { user: self.privilege == Privilege::User, ..L1Access::new(Gpa(address), access) };
        walk(&Directed { guest: self, address }, words, &access, marked).map_err(|refused| {
            // Of a table that is in no memory: the engine's choice is a reserved bit.
            refused.report.unwrap_or_else(|| {
                self.entries().code(
                    has(self.registers.cr4, 20),
                    Refusal::Reserved,
                    access.access,
                    access.user,
                )
            })
        })
    }
}

/// A guest's walk for one address. PAE's root entries are in registers.
#[derive(Debug)]
struct Directed<'a> {
    guest: &'a Guest,
    address: u64,
}

impl Directed<'_> {
    fn pdpte(&self) -> u64 {
        self.guest.registers.pdptes[(self.address >> 30 & 3) as usize]
    }
}

impl Manual for Directed<'_> {
    type Report = u32;
    const ROM_IS_AN_ERROR: bool = false;

    fn levels(&self) -> u8 {
        self.guest.entries().levels()
    }

    fn input_bits(&self) -> u32 {
        // An address that is not canonical never reaches a table.
        64
    }

    fn root(&self) -> Result<(u64, u8), Refusal> {
        let entries = self.guest.entries();
        match entries.mode {
            Mode::Bits32 { .. } => Ok((self.guest.registers.cr3 & 0xffff_f000, 2)),
            Mode::Pae => entries.entry(self.pdpte(), 3).map(|said| (said.address, 2)),
            _ => {
                let width = (1_u64 << entries.physical_bits) - 1;
                Ok((self.guest.registers.cr3 & width & !0xfff, entries.levels()))
            }
        }
    }

    fn place(&self, table: u64, level: u8, address: u64) -> (u64, u64) {
        self.guest.entries().place(table, level, address)
    }

    fn shift(&self, level: u8) -> u32 {
        self.guest.entries().shift(level)
    }

    fn entry(&self, word: u64, level: u8) -> Result<Said, Refusal> {
        self.guest.entries().entry(word, level)
    }

    /// "Access rights".
    fn allowed(&self, [_, write, fetch, user]: [bool; 4]) -> [bool; 4] {
        let GuestRegisters { cr0, cr4, .. } = self.guest.registers;
        let (wp, smep, smap) = (has(cr0, 16), has(cr4, 20), has(cr4, 21));
        let [read, write, fetch] = match self.guest.privilege {
            Privilege::User => [user, user && write, user && fetch],
            supervisor => {
                let data = !user || !smap || supervisor == Privilege::SupervisorWithAc;
                [data, data && (write || !wp), fetch && !(user && smep)]
            }
        };
        [read, write, fetch, fetch]
    }

    fn report(&self, access: &L1Access, why: Refusal, _: u8, _: [bool; 4]) -> Option<u32> {
        let smep = has(self.guest.registers.cr4, 20);
        Some(self.guest.entries().code(smep, why, access.access, access.user))
    }
}
