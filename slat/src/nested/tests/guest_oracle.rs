//! A slow walker of a guest's page tables on x86, written from the manuals' text, one bit after the other. It shares no
//! code with the decoders.

use super::oracle::Words;
use super::{ALIAS, ALIASES, NOWHERE, READ_ONLY};
use crate::nested::*;
use crate::*;
use std::vec::Vec;

/// A processor that walks.
#[derive(Clone, Copy, Debug)]
pub struct Walker {
    pub registers: GuestRegisters,
    pub paging: GuestPaging,
    pub privilege: Privilege,
}

/// The address of an access; and whether loads, stores and fetches may use the same translation until the tables
/// change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leads {
    pub frame: u64,
    pub may: [bool; 3],
}

/// The shape of a walk: the shift of each level's index, its bits, and the bytes of an entry.
type Way = (u64, &'static [u32], u32, u64);

fn has(register: u64, bit: u32) -> bool {
    register >> bit & 1 == 1
}

impl Walker {
    fn is_long(&self) -> bool {
        has(self.registers.efer, 10)
    }

    fn is_short(&self) -> bool {
        !has(self.registers.cr4, 5)
    }

    fn nxe(&self) -> bool {
        has(self.registers.efer, 11) && !self.is_short()
    }

    fn way(&self, va: u64) -> Option<Way> {
        let GuestRegisters { cr3, cr4, pdptes, .. } = self.registers;
        Some(if self.is_long() {
            let shifts: &[u32] = if has(cr4, 12) { &[48, 39, 30, 21, 12] } else { &[39, 30, 21, 12] };
            (cr3 & 0x000f_ffff_ffff_f000, shifts, 9, 8)
        } else if self.is_short() {
            (cr3 & 0xffff_f000, &[22, 12], 10, 4)
        } else {
            let first = pdptes[(va >> 30) as usize];
            (Some(first & 0x000f_ffff_ffff_f000).filter(|_| first & 1 == 1)?, &[21, 12], 9, 8)
        })
    }

    fn is_large(&self, entry: u64, shift: u32) -> bool {
        let offered = match shift {
            22 => has(self.registers.cr4, 4),
            21 => true,
            30 => self.paging.large_1g && self.is_long(),
            _ => false,
        };
        offered && has(entry, 7)
    }

    fn is_reserved(&self, bit: u32, shift: u32, is_large: bool) -> bool {
        let physical = self.paging.physical_bits;
        if self.is_short() {
            // PSE-36: bits 13 to 20 are 32 to 39 of the address.
            return is_large && (bit == 21 || (13..=20).contains(&bit) && bit - 13 + 32 >= physical);
        }
        match bit {
            63 => !self.nxe(),
            52..=62 => !self.is_long(),
            12..=51 if bit >= physical => true,
            13..=51 => is_large && bit < shift,
            8 => self.paging.reserves_global && self.is_long() && shift >= 30 && !is_large,
            7 => shift >= 30 && !is_large,
            _ => false,
        }
    }

    /// Walks; changes `words`, and adds the frames of the tables that it changes to `marked`. Returns the error code of
    /// a page fault as an error.
    pub fn walk(
        &self,
        words: &mut Words,
        va: u64,
        access: Access,
        marked: &mut Vec<u64>,
    ) -> Result<Leads, u32> {
        let GuestRegisters { cr0, cr4, .. } = self.registers;
        let is_user = self.privilege == Privilege::User;
        let mut code = u32::from(is_user) << 2;
        code |= u32::from(access == Access::Write) << 1;
        code |= u32::from(access == Access::Fetch && (self.nxe() || has(cr4, 20))) << 4;
        let (mut at, shifts, index_bits, size) = self.way(va).ok_or(code)?;
        let (mut all_write, mut all_user, mut any_nx) = (true, true, false);
        let mut places = Vec::new();
        let mut frame = 0;
        for &shift in shifts {
            let place = at + (va >> shift & ((1 << index_bits) - 1)) * size;
            if place >> 12 >= NOWHERE && !(ALIAS.0..ALIAS.0 + ALIASES).contains(&(place >> 12)) {
                return Err(code | 0b1001);
            }
            let entry = load(words, place, size);
            if entry & 1 == 0 {
                return Err(code);
            }
            let is_large = self.is_large(entry, shift);
            if (0..64).any(|bit| has(entry, bit) && self.is_reserved(bit, shift, is_large)) {
                return Err(code | 0b1001);
            }
            places.push(place);
            all_write &= has(entry, 1);
            all_user &= has(entry, 2);
            any_nx |= self.nxe() && has(entry, 63);
            at = entry & 0x000f_ffff_ffff_f000;
            if shift == 12 {
                frame = at >> 12;
            }
            if is_large && self.is_short() {
                frame = (entry >> 22 & 0x3ff) << 10 | (entry >> 13 & 0xff) << 20 | va >> 12 & 0x3ff;
                break;
            }
            if is_large {
                frame = at >> shift << (shift - 12) | va >> 12 & ((1 << (shift - 12)) - 1);
                break;
            }
        }
        let may = if is_user {
            [all_user, all_user && all_write, all_user && !any_nx]
        } else {
            let kept_off = all_user && has(cr4, 21) && self.privilege == Privilege::Supervisor;
            let no_fetch = any_nx || all_user && has(cr4, 20);
            [!kept_off, !kept_off && (all_write || !has(cr0, 16)), !no_fetch]
        };
        let asked = [Access::Read, Access::Write, Access::Fetch].iter().position(|kind| *kind == access);
        if !may[asked.unwrap()] {
            return Err(code | 1);
        }
        let last = *places.last().unwrap();
        for &place in &places {
            let entry = load(words, place, size);
            let dirty = place == last && access == Access::Write;
            let now = entry | 1 << 5 | u64::from(dirty) << 6;
            if now != entry && !(READ_ONLY..NOWHERE).contains(&(place >> 12)) {
                store(words, place, size, now);
                marked.push(place >> 12);
            }
        }
        let is_dirty = has(load(words, last, size), 6) || access == Access::Write;
        Ok(Leads { frame, may: [may[0], may[1] && is_dirty, may[2]] })
    }
}

/// Returns the address in the first frames of what the alias reaches.
fn real(place: u64) -> u64 {
    if place >= ALIAS.0 << 12 { place - (ALIAS.0 << 12) } else { place }
}

pub(super) fn load(words: &Words, place: u64, size: u64) -> u64 {
    let word = words.get(&(real(place) & !7)).copied().unwrap_or(0);
    if size == 8 { word } else { word >> (8 * (place & 4)) & 0xffff_ffff }
}

pub(super) fn store(words: &mut Words, place: u64, size: u64, entry: u64) {
    let word = words.entry(real(place) & !7).or_default();
    *word = match (size, place & 4) {
        (8, _) => entry,
        (_, 0) => *word >> 32 << 32 | entry,
        _ => *word & 0xffff_ffff | entry << 32,
    };
}
