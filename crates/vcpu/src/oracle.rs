//! The oracle: the expected value of every byte of guest memory.
//!
//! It keeps a copy of each page that the guest has touched, applies the same stores to it, and compares every
//! load. Memory that was never written is zero. Its own memory is bounded: it does not keep pages above the
//! budget, and loads from them are counted as unchecked.

use slat::{Gfn, Gpa, PAGE_SIZE};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

type Page = Box<[u8; PAGE_SIZE as usize]>;

/// Expected contents of a guest's memory.
#[derive(Debug)]
pub struct Oracle {
    pages: Vec<Page>,
    index: HashMap<Gfn, u32, BuildHasherDefault<Fibonacci>>,
    budget: usize,
    /// Recently used pages, by the low bits of their numbers: finds nearly every page.
    recent: Box<[(Gfn, u32); RECENT]>,
}

const RECENT: usize = 256;
const NOWHERE: Gfn = Gfn(u64::MAX);

/// Result of checking a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every byte is as written.
    Match,
    /// Some bytes are in a page above the budget; the others are as written.
    Unchecked,
    /// The byte at `gpa` is not what was written; all bytes before it are right.
    Corrupt {
        /// The first wrong byte.
        gpa: Gpa,
        /// The value that was written.
        expected: u8,
        /// The value that was read.
        found: u8,
    },
}

/// A hash for frame numbers that only has to spread their bits.
#[derive(Default, Debug)]
pub struct Fibonacci(u64);

impl Hasher for Fibonacci {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Oracle {
    /// Creates an oracle that keeps at most `budget` pages.
    pub fn new(budget: usize) -> Self {
        let budget = budget.min(u32::MAX as usize);
        Self {
            pages: Vec::new(),
            index: HashMap::default(),
            budget,
            recent: Box::new([(NOWHERE, 0); RECENT]),
        }
    }

    /// Records that the guest has stored `bytes` at `gpa`.
    #[inline]
    pub fn wrote(&mut self, gpa: Gpa, bytes: &[u8]) {
        for (gpa, part) in parts(gpa, bytes.len()) {
            if let Some(page) = self.page(gpa.gfn()) {
                page[gpa.offset() as usize..][..part.len()].copy_from_slice(&bytes[part]);
            }
        }
    }

    /// Sets the contents of a page before the guest touches it.
    pub fn expect_page(&mut self, gfn: Gfn, contents: &[u8; PAGE_SIZE as usize]) {
        self.wrote(gfn.gpa(), contents);
    }

    /// Checks `bytes` that the guest has loaded from `gpa`.
    #[inline]
    pub fn check(&mut self, gpa: Gpa, bytes: &[u8]) -> Verdict {
        let mut verdict = Verdict::Match;
        for (gpa, part) in parts(gpa, bytes.len()) {
            let Some(page) = self.page(gpa.gfn()) else {
                verdict = Verdict::Unchecked;
                continue;
            };
            let expected = &page[gpa.offset() as usize..][..part.len()];
            let found = &bytes[part];
            if expected != found {
                return corrupt(gpa, expected, found);
            }
        }
        verdict
    }

    /// Returns the kept pages, in no order.
    pub fn pages(&self) -> impl Iterator<Item = (Gfn, &[u8; PAGE_SIZE as usize])> + '_ {
        self.index.iter().map(|(&gfn, &at)| (gfn, &*self.pages[at as usize]))
    }

    #[inline]
    fn page(&mut self, gfn: Gfn) -> Option<&mut Page> {
        let (recent, at) = self.recent[gfn.0 as usize % RECENT];
        let at = if recent == gfn { at } else { self.search(gfn)? };
        Some(&mut self.pages[at as usize])
    }

    #[cold]
    fn search(&mut self, gfn: Gfn) -> Option<u32> {
        let at = match self.index.get(&gfn) {
            Some(&at) => at,
            None if self.pages.len() >= self.budget => return None,
            None => {
                let at = self.pages.len() as u32;
                self.pages.push(Box::new([0; PAGE_SIZE as usize]));
                self.index.insert(gfn, at);
                at
            }
        };
        self.recent[gfn.0 as usize % RECENT] = (gfn, at);
        Some(at)
    }
}

#[cold]
fn corrupt(gpa: Gpa, expected: &[u8], found: &[u8]) -> Verdict {
    let at = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(0);
    Verdict::Corrupt { gpa: gpa + at as u64, expected: expected[at], found: found[at] }
}

/// Splits an access into pages: the address and the byte range of each part.
#[inline]
fn parts(gpa: Gpa, len: usize) -> impl Iterator<Item = (Gpa, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = gpa + done as u64;
        let part = done..len.min(done + (PAGE_SIZE - at.offset()) as usize);
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_expected_and_the_rest_is_zero() {
        let mut oracle = Oracle::new(8);
        oracle.wrote(Gpa(0xffc), b"abcdefgh");
        assert_eq!(oracle.check(Gpa(0xffc), b"abcdefgh"), Verdict::Match, "across a page border");
        assert_eq!(oracle.check(Gpa(0x1000), b"efgh\0\0"), Verdict::Match);
        assert_eq!(oracle.check(Gpa(0x1ffe), &[0; 4]), Verdict::Match, "never stored to");
        oracle.expect_page(Gfn(5), &[7; 4096]);
        assert_eq!(oracle.check(Gpa(0x5800), &[7; 16]), Verdict::Match);
    }

    #[test]
    fn negative_control_one_wrong_byte_is_named() {
        let mut oracle = Oracle::new(8);
        oracle.wrote(Gpa(0xffe), b"abcd");
        let verdict = Verdict::Corrupt { gpa: Gpa(0x1001), expected: b'd', found: b'X' };
        assert_eq!(oracle.check(Gpa(0xffe), b"abcX"), verdict);
    }

    #[test]
    fn loads_above_the_budget_are_unchecked() {
        let mut oracle = Oracle::new(1);
        oracle.wrote(Gpa(0), &[1]);
        oracle.wrote(Gpa(0x1000), &[2]);
        assert_eq!(oracle.check(Gpa(0), &[1]), Verdict::Match);
        assert_eq!(oracle.check(Gpa(0x1000), &[9]), Verdict::Unchecked);
        assert_eq!(oracle.check(Gpa(0xfff), &[0, 9]), Verdict::Unchecked);
        let verdict = Verdict::Corrupt { gpa: Gpa(0xfff), expected: 0, found: 1 };
        assert_eq!(oracle.check(Gpa(0xfff), &[1, 9]), verdict, "the other bytes are checked");
    }
}
