//! T: nested page tables of AMD's, made, changed and walked.
//!
//! ```text
//! L2 address        mapping
//! this program      4 KiB pages of the guest's code and tables, one to one: never changed but by `Trial::walk`
//! 40 MiB            4 KiB pages
//! 42 MiB            4 KiB pages, or one of 2 MiB
//! 1 GiB             the same two, in tables of each T's own
//! 510 GiB, 517 GiB  4 KiB pages, under links of their own
//! 2 GiB, 600 GiB    nothing
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;
use slat::{Access, PAGE_SHIFT, PAGE_SIZE};
use slat_judge::Random;
use slat_walker_x86::cpu::physical_bits;

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
pub const ACCESSED: u64 = 1 << 5;
pub const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
/// Present, with all permissions.
const OPEN: u64 = PRESENT | WRITE | USER;
const FRAME: u64 = (1 << 52) - PAGE_SIZE;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes of a page of 2 MiB.
pub const BLOCK: u64 = 2 * MIB;

/// L1's memory for L2's test pages: whole blocks.
pub const FRAMES: core::ops::Range<u64> = 32 * MIB..40 * MIB;

#[repr(C, align(4096))]
struct Table([u64; 512]);

fn table() -> u64 {
    // Leaked: the processor reads it to the end.
    Box::leak(Box::new(Table([0; 512]))).0.as_ptr() as u64
}

/// An entry of T in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(*mut u64);

impl Entry {
    pub fn read(self) -> u64 {
        // SAFETY: an entry of a table of this file's; volatile, because walkers write to it, too.
        unsafe { self.0.read_volatile() }
    }

    pub fn write(self, word: u64) {
        // SAFETY: as above.
        unsafe { self.0.write_volatile(word) }
    }

    fn of(table: u64, gpa: u64, level: u32) -> Self {
        let index = gpa >> (PAGE_SHIFT + 9 * (level - 1)) & 511;
        Self((table as *mut u64).wrapping_add(index as usize))
    }
}

/// Result of T for an L2 address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    /// This address of L1's, with these permissions.
    Leads {
        to: u64,
        write: bool,
        user: bool,
        execute: bool,
    },
    NotPresent,
    Reserved,
}

impl Says {
    pub fn allows(self, access: Access) -> bool {
        match (self, access) {
            (Self::Leads { user, .. }, Access::Read) => user,
            (Self::Leads { user, write, .. }, Access::Write) => user && write,
            (Self::Leads { user, execute, .. }, Access::Fetch) => user && execute,
            _ => false,
        }
    }

    /// Returns bits 0 to 4 of #VMEXIT(NPF)'s first word for a refused access: present, store, user, reserved, fetch.
    pub fn reported(self, access: Access) -> u64 {
        u64::from(self != Self::NotPresent)
            | u64::from(access == Access::Write) << 1
            | 1 << 2
            | u64::from(self == Self::Reserved) << 3
            | u64::from(access == Access::Fetch) << 4
    }
}

/// The entries on the path to an L2 address, from the root to the last one, and the result.
#[derive(Clone, Debug)]
pub struct Path {
    pub entries: Vec<(Entry, u64)>,
    pub says: Says,
}

/// T, and the tested addresses.
pub struct Tables {
    pub root: u64,
    pub cells: Vec<u64>,
    /// The guest's own pages, whose entries are not changed.
    home: u64,
    /// The entries of 2 MiB that are links or leaves, with their links.
    both: [(Entry, u64); 2],
    /// A bit that is reserved in every entry.
    reserved: u64,
}

impl Tables {
    /// Makes T with all permissions. `home` is the memory of the guest's code and tables.
    pub fn new(home: core::ops::Range<u64>, random: &mut Random) -> Self {
        let root = table();
        let regions = [40 * MIB, 42 * MIB, GIB, GIB + BLOCK, 517 * GIB, 510 * GIB - BLOCK];
        let reserved = if physical_bits() < 52 { 1 << 51 } else { 0 };
        let both = [(Entry(core::ptr::null_mut()), 0); 2];
        let mut new = Self { root, cells: Vec::new(), home: home.start, both, reserved };
        for page in home.step_by(PAGE_SIZE as usize) {
            new.map(page, page);
        }
        for region in regions {
            let pages = [0, 1, 7, 300, 511].map(|page| region + page * PAGE_SIZE);
            for page in pages {
                new.map(page, some_frame(random));
            }
            new.cells.extend(pages);
        }
        // Unmapped addresses, below the same links and below none.
        new.cells.extend([40 * MIB + 2 * PAGE_SIZE, 2 * GIB, 600 * GIB]);
        for (both, region) in [42 * MIB, GIB + BLOCK].into_iter().enumerate() {
            let (entry, word) = new.walk(region).entries[2];
            new.both[both] = (entry, word & FRAME);
        }
        new
    }

    fn map(&mut self, gpa: u64, to: u64) {
        let mut at = self.root;
        for level in [4, 3, 2] {
            let entry = Entry::of(at, gpa, level);
            if entry.read() == 0 {
                entry.write(table() | OPEN);
            }
            at = entry.read() & FRAME;
        }
        Entry::of(at, gpa, 1).write(to | OPEN);
    }

    /// Walks the current T.
    pub fn walk(&self, gpa: u64) -> Path {
        let (mut at, mut entries) = (self.root, Vec::new());
        let (mut write, mut user, mut execute) = (true, true, true);
        for level in [4, 3, 2, 1] {
            let entry = Entry::of(at, gpa, level);
            let word = entry.read();
            entries.push((entry, word));
            let has = |bit| word & bit != 0;
            let is_leaf = level == 1 || level == 2 && has(LARGE);
            if !has(PRESENT) {
                return Path { entries, says: Says::NotPresent };
            }
            if word & self.reserved != 0
                || level > 2 && has(LARGE)
                || is_leaf && level == 2 && word & FRAME & (BLOCK - 1) & !PAGE_SIZE != 0
            {
                return Path { entries, says: Says::Reserved };
            }
            (write, user, execute) = (write && has(WRITE), user && has(USER), execute && !has(NO_EXECUTE));
            at = word & FRAME;
            if is_leaf && level == 2 {
                at = at & !(BLOCK - 1) | gpa & (BLOCK - 1) & !(PAGE_SIZE - 1);
            }
            if is_leaf {
                break;
            }
        }
        Path { entries, says: Says::Leads { to: at, write, user, execute } }
    }

    /// Changes an entry on the path to `gpa`: gives it all permissions, takes one or presence away, sets a reserved
    /// bit, clears Accessed or Dirty, or changes its address. Returns whether Accessed or Dirty was cleared.
    pub fn change(&self, gpa: u64, random: &mut Random) -> bool {
        let entries = self.walk(gpa).entries;
        // Mostly the last entry.
        let at =
            if random.once_in(4) { random.below(entries.len() as u64) as usize } else { entries.len() - 1 };
        let (entry, word) = entries[at];
        let is_shared = self.walk(self.home).entries.iter().any(|shared| shared.0 == entry);
        if word & FRAME == 0 || is_shared {
            return false;
        }
        let both = self.both.iter().find(|both| both.0 == entry);
        let is_leaf = at == 3 || word & LARGE != 0;
        let opened = (word | OPEN) & !(self.reserved | NO_EXECUTE);
        let new = match random.below(10) {
            0..4 => opened,
            4 => word ^ random.pick(&[WRITE, USER, NO_EXECUTE]),
            5 => word & !PRESENT,
            6 => word | self.reserved,
            7 => word & !random.pick(&[ACCESSED, DIRTY, ACCESSED | DIRTY]),
            _ if at == 3 => word & !FRAME | some_frame(random),
            8 if is_leaf => word & !FRAME | some_frame(random) & !(BLOCK - 1),
            _ => match both {
                Some((_, link)) if is_leaf => opened & !(FRAME | LARGE | DIRTY) | link,
                Some(_) => opened & !FRAME | LARGE | some_frame(random) & !(BLOCK - 1),
                None => opened,
            },
        };
        entry.write(new);
        word & !new & (ACCESSED | DIRTY) != 0
    }

    /// Makes the entry of one of the guest's own pages not present. Returns the entry and its old word.
    pub fn shut(&self, gpa: u64, random: &mut Random) -> (Entry, u64) {
        let (entry, word) = self.walk(gpa).entries[3];
        entry.write(word & !random.pick(&[PRESENT, WRITE]));
        (entry, word)
    }
}

fn some_frame(random: &mut Random) -> u64 {
    FRAMES.start + random.below((FRAMES.end - FRAMES.start) / PAGE_SIZE) * PAGE_SIZE
}
