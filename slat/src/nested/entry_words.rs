//! Entries of T as they are stored: eight bytes, or four. The host reads and exchanges eight at once.
//!
//! Two four-byte entries share eight bytes. Setting A or D in one must not change the other: if the neighbour changes
//! meanwhile, the exchange is repeated.

use super::format::L1Format;
use crate::sync::readside::Within;
use crate::table::memory::ENTRIES;
use crate::{Gpa, Host, Hva, Level, Word};

/// Attempts of a four-byte exchange before the entry counts as changed.
const ATTEMPTS: u32 = 16;

#[inline(always)]
fn bytes<T: L1Format>(table: &T) -> u64 {
    if table.is_short() { 4 } else { 8 }
}

/// Returns the address of `gpa`'s entry in the table of `level` that begins at `at`. A root may be wider than a page,
/// and begin inside one. The address is only looked up.
#[inline(always)]
pub(super) fn place_of<T: L1Format>(table: &T, at: Gpa, gpa: Gpa, level: Level) -> Gpa {
    let bytes = bytes(table);
    Gpa(at.0.wrapping_add((table.index(gpa, level) as u64).wrapping_mul(bytes)) & !(bytes - 1))
}

/// Returns the address of the `nth` entry after the one at `hva`.
#[inline(always)]
pub(super) fn nth<T: L1Format>(table: &T, hva: Hva, nth: usize) -> Hva {
    hva + nth as u64 * bytes(table)
}

/// Returns the address of the eight bytes around the four at `hva`, and the shift of the four.
fn around(hva: Hva) -> (Hva, u64) {
    (Hva(hva.0 & !7), (hva.0 & 4) * 8)
}

fn half(word: Word, shift: u64) -> Word {
    Word(word.0 >> shift & 0xffff_ffff)
}

/// The guest's memory, as the host reads and exchanges it during a section `'s`. A transaction that takes a memslot away
/// returns only after the section, so the memory behind an address that was looked up in it stays.
pub(super) struct GuestWords<'s, H> {
    host: &'s H,
    _section: Within<'s>,
}

impl<'s, H: Host> GuestWords<'s, H> {
    #[inline(always)]
    pub(super) fn new(host: &'s H, section: Within<'s>) -> Self {
        Self { host, _section: section }
    }

    /// Like [`Host::read`].
    #[inline(always)]
    pub(super) fn read<T: L1Format>(&self, table: &T, hva: Hva) -> Option<Word> {
        if !table.is_short() {
            return self.host.read(hva);
        }
        let (hva, shift) = around(hva);
        self.host.read(hva).map(|word| half(word, shift))
    }

    /// Like [`Host::read_all`], from the entry `first` after `hva` on.
    #[inline(always)]
    pub(super) fn read_all<T: L1Format>(
        &self,
        table: &T,
        (hva, first): (Hva, usize),
        words: &mut [Word],
    ) -> bool {
        let hva = nth(table, hva, first);
        if table.is_short() { self.read_all_short(hva, words) } else { self.host.read_all(hva, words) }
    }

    #[inline(never)]
    fn read_all_short(&self, hva: Hva, words: &mut [Word]) -> bool {
        let (at, shift) = around(hva);
        let odd = usize::from(shift != 0);
        let mut pairs = [Word(0); ENTRIES / 2 + 1];
        let pairs = &mut pairs[..(odd + words.len()).div_ceil(2)];
        if !self.host.read_all(at, pairs) {
            return false;
        }
        for (nth, word) in words.iter_mut().enumerate() {
            let nth = nth + odd;
            *word = half(pairs[nth / 2], (nth % 2 * 32) as u64);
        }
        true
    }

    /// Like [`Host::compare_exchange`], but returns the eight bytes as they are now.
    pub(super) fn exchange<T: L1Format>(
        &self,
        table: &T,
        hva: Hva,
        (old, new): (Word, Word),
    ) -> Option<Result<Word, Word>> {
        if !table.is_short() {
            return self.host.compare_exchange(hva, old, new).map(|done| done.map(|_| new));
        }
        let (hva, shift) = around(hva);
        let mut found = self.host.read(hva)?;
        for _ in 0..ATTEMPTS {
            if half(found, shift) != old {
                break;
            }
            let other = found.0 & !(0xffff_ffff << shift);
            let wanted = Word(other | new.0 << shift);
            match self.host.compare_exchange(hva, found, wanted)? {
                Ok(_) => return Some(Ok(wanted)),
                Err(now) => found = now,
            }
        }
        Some(Err(found))
    }
}
