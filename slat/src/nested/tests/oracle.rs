//! A slow walker that has formats as the manuals draw them: fields from the highest bit down, each with a letter. It
//! shares no code with the decoders.
//!
//! ```text
//! f frame   0 must be clear   . ignored   p present   r w x rights   u x of users   U users may   n no x   a A   d D   m type
//! ```

use super::{ALIAS, ALIASES, NOWHERE, READ_ONLY};
use crate::nested::Refusal;
use crate::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// The owner of the table format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ept { accessed_dirty: bool, execute_only: bool, by_mode: bool },
    Npt { nx: bool, pae: bool },
    Arm { sets_accessed: bool, sets_dirty: bool, xnx: bool },
    RiscV { adue: bool, mxr: bool },
}

/// A table: kind, root, number of levels, bits of its input address, and bits of an L1 address.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    pub kind: Kind,
    pub root: u64,
    pub levels: u8,
    pub input: u32,
    pub output: u32,
}

/// r, w, x, x of users.
pub type Rights = [bool; 4];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    pub frame: u64,
    pub level: u8,
    pub allowed: Rights,
    pub rights: Rights,
    pub memory: MemoryType,
    pub accessed: bool,
    pub dirty: bool,
}

/// L1's memory by address, without words that are zero.
pub type Words = BTreeMap<u64, u64>;

/// The fields of a drawing: the highest bit, the lowest, the letter.
fn fields(drawing: &str) -> impl Iterator<Item = (u32, u32, char)> {
    let mut parts = drawing.split(' ');
    core::iter::from_fn(move || {
        let (bits, letter) = (parts.next()?, parts.next()?);
        let (high, low) = bits.split_once('-').unwrap_or((bits, bits));
        Some((high.parse().unwrap(), low.parse().unwrap(), letter.chars().next()?))
    })
}

/// Returns the bits with this letter, gathered.
fn field(drawing: &str, word: u64, letter: char) -> Option<u64> {
    let mut found = None;
    for (high, low, _) in fields(drawing).filter(|field| field.2 == letter) {
        for bit in (low..=high).rev() {
            found = Some(found.unwrap_or(0) << 1 | word >> bit & 1);
        }
    }
    found
}

/// Returns the bit that the letter marks; zero if it is not drawn.
fn bit_of(drawing: &str, letter: char) -> u64 {
    fields(drawing).find(|field| field.2 == letter).map_or(0, |(_, low, _)| 1 << low)
}

impl Drawn {
    fn drawing(&self, word: u64, level: u8) -> &'static str {
        let large = word >> 7 & 1 == 1;
        match (self.kind, level) {
            (Kind::Ept { .. }, 1) => "63-52 . 51-12 f 11 . 10 u 9 d 8 a 7 . 6 i 5-3 m 2 x 1 w 0 r",
            (Kind::Ept { .. }, 2) if large => {
                "63-52 . 51-21 f 20-12 0 11 . 10 u 9 d 8 a 7 . 6 i 5-3 m 2 x 1 w 0 r"
            }
            (Kind::Ept { .. }, 3) if large => {
                "63-52 . 51-30 f 29-12 0 11 . 10 u 9 d 8 a 7 . 6 i 5-3 m 2 x 1 w 0 r"
            }
            (Kind::Ept { .. }, _) => "63-52 . 51-12 f 11 . 10 u 9 . 8 a 7-3 0 2 x 1 w 0 r",
            (Kind::Npt { pae: true, .. }, 3) => "63-52 0 51-12 f 11-9 . 8-5 0 4-3 . 2-1 0 0 p",
            (Kind::Npt { pae: true, .. }, 1) => "63 n 62-52 0 51-12 f 11-8 . 7 m 6 d 5 a 4-3 m 2 U 1 w 0 p",
            (Kind::Npt { pae: true, .. }, _) if large => {
                "63 n 62-52 0 51-21 f 20-13 0 12 m 11-8 . 7 . 6 d 5 a 4-3 m 2 U 1 w 0 p"
            }
            (Kind::Npt { pae: true, .. }, _) => "63 n 62-52 0 51-12 f 11-8 . 7 0 6 . 5 a 4-3 . 2 U 1 w 0 p",
            (Kind::Npt { .. }, 1) => "63 n 62-52 . 51-12 f 11-8 . 7 m 6 d 5 a 4-3 m 2 U 1 w 0 p",
            (Kind::Npt { .. }, 2) if large => {
                "63 n 62-52 . 51-21 f 20-13 0 12 m 11-8 . 7 . 6 d 5 a 4-3 m 2 U 1 w 0 p"
            }
            (Kind::Npt { .. }, 3) if large => {
                "63 n 62-52 . 51-30 f 29-13 0 12 m 11-8 . 7 . 6 d 5 a 4-3 m 2 U 1 w 0 p"
            }
            (Kind::Npt { .. }, 2) => "63 n 62-52 . 51-12 f 11-8 . 7 0 6 . 5 a 4-3 . 2 U 1 w 0 p",
            (Kind::Npt { .. }, _) => "63 n 62-52 . 51-12 f 11-9 . 8-7 0 6 . 5 a 4-3 . 2 U 1 w 0 p",
            (Kind::Arm { .. }, 1) => {
                "63-55 . 54-53 x 52 . 51 D 50-48 . 47-12 f 11 . 10 a 9-8 . 7 w 6 r 5-2 m 1 t 0 p"
            }
            (Kind::Arm { .. }, 2) if word & 2 == 0 => {
                "63-55 . 54-53 x 52 . 51 D 50-48 . 47-21 f 20-11 . 10 a 9-8 . 7 w 6 r 5-2 m 1 t 0 p"
            }
            (Kind::Arm { .. }, 3) if word & 2 == 0 => {
                "63-55 . 54-53 x 52 . 51 D 50-48 . 47-30 f 29-11 . 10 a 9-8 . 7 w 6 r 5-2 m 1 t 0 p"
            }
            (Kind::Arm { .. }, _) => "63-48 . 47-12 f 11-2 . 1 t 0 p",
            (Kind::RiscV { .. }, level) if word & 0b1110 != 0 => match level {
                1 => "63 0 62-61 m 60-54 0 53-10 f 9-8 . 7 d 6 a 5 . 4 U 3 x 2 w 1 r 0 p",
                2 => "63 0 62-61 m 60-54 0 53-19 f 18-10 0 9-8 . 7 d 6 a 5 . 4 U 3 x 2 w 1 r 0 p",
                3 => "63 0 62-61 m 60-54 0 53-28 f 27-10 0 9-8 . 7 d 6 a 5 . 4 U 3 x 2 w 1 r 0 p",
                4 => "63 0 62-61 m 60-54 0 53-37 f 36-10 0 9-8 . 7 d 6 a 5 . 4 U 3 x 2 w 1 r 0 p",
                _ => "63 0 62-61 m 60-54 0 53-46 f 45-10 0 9-8 . 7 d 6 a 5 . 4 U 3 x 2 w 1 r 0 p",
            },
            (Kind::RiscV { .. }, _) => "63-54 0 53-10 f 9-8 . 7-6 0 5 . 4 0 3-1 0 0 p",
        }
    }

    /// Returns whether the entry is a leaf, its rights and its type; or why it is refused.
    fn says(&self, word: u64, level: u8) -> Answer {
        let drawing = self.drawing(word, level);
        let is_leaf = drawing.contains(" m ");
        let outside = (word & 0xf_ffff_ffff_f000) >> self.output != 0;
        let must_be_clear = field(drawing, word, '0').unwrap_or(0) != 0;
        let entry = Drawing { drawing, word, level, is_leaf, is_reserved: must_be_clear || outside };
        match self.kind {
            Kind::Ept { execute_only, by_mode, .. } => entry.ept(execute_only, by_mode),
            Kind::Npt { nx, pae } => entry.npt(nx, pae),
            Kind::Arm { sets_accessed, sets_dirty, xnx } => {
                entry.arm(self.output, sets_accessed, sets_dirty, xnx)
            }
            Kind::RiscV { adue, mxr } => Drawing { is_reserved: must_be_clear, ..entry }.risc_v(adue, mxr),
        }
    }

    /// Returns which of A and D hardware sets in this entry.
    fn sets(&self, word: u64, level: u8, store: bool) -> u64 {
        let drawing = self.drawing(word, level);
        let (a, d) = (bit_of(drawing, 'a'), if store { bit_of(drawing, 'd') } else { 0 });
        match self.kind {
            Kind::Ept { accessed_dirty: false, .. } | Kind::RiscV { adue: false, .. } => 0,
            Kind::Ept { .. } | Kind::Npt { .. } | Kind::RiscV { .. } => a | d,
            Kind::Arm { sets_accessed, sets_dirty, .. } => {
                let dirt = store && sets_dirty && field(drawing, word, 'D') == Some(1);
                (if sets_accessed { a } else { 0 }) | if dirt { bit_of(drawing, 'w') } else { 0 }
            }
        }
    }

    /// Walks; changes `words`, and adds the frames of the tables that it changes to `marked`.
    pub fn walk(
        &self,
        words: &mut Words,
        access: &super::L1Access,
        marked: &mut Vec<u64>,
    ) -> Result<Said, (Refusal, u8, Rights)> {
        let gpa = access.gpa.0;
        let (read, write, fetch) = match access.access {
            Access::Read => (true, false, false),
            Access::Write => (false, true, false),
            Access::Fetch => (false, false, true),
        };
        let (read, write, fetch) = match (self.kind, access.walk_for) {
            (Kind::Ept { accessed_dirty: true, .. }, Some(_)) => (true, true, false),
            (Kind::Npt { .. }, Some(_)) => (false, true, false),
            _ => (read, write, fetch),
        };
        if gpa >> self.input != 0 {
            return Err((Refusal::NotPresent, self.levels, [true; 4]));
        }
        let (mut table, mut level, mut rights) = (self.root, self.levels, [true; 4]);
        let mut places = Vec::new();
        let (frame, memory) = loop {
            let index = gpa >> (12 + 9 * (u32::from(level) - 1));
            let place = table + 8 * if level == self.levels { index } else { index % 512 };
            if place >> 12 >= NOWHERE && !(ALIAS.0..ALIAS.0 + ALIASES).contains(&(place >> 12)) {
                return Err((Refusal::NoMemory, level, rights));
            }
            let word = words.get(&real(place)).copied().unwrap_or(0);
            places.push((place, level));
            let (is_leaf, allowed, memory) = self.says(word, level).map_err(|why| (why, level, rights))?;
            for (all, one) in rights.iter_mut().zip(allowed) {
                *all &= one;
            }
            let drawing = self.drawing(word, level);
            let mut frame = field(drawing, word, 'f').unwrap();
            if is_leaf {
                let size = 9 * (u32::from(level) - 1);
                // Its lowest bits are not drawn.
                frame = frame << size | (gpa >> 12) % (1 << size);
                break (frame, memory);
            }
            (table, level) = (frame << 12, level - 1);
        };
        let x = if access.user { rights[3] } else { rights[2] };
        if read && !rights[0] || write && !rights[1] || fetch && !x {
            return Err((Refusal::Rights, level, rights));
        }
        for &(place, level) in &places {
            let word = words.get(&real(place)).copied().unwrap_or(0);
            let now = word | self.sets(word, level, write && level == places.last().unwrap().1);
            if now == word {
                continue;
            }
            if (READ_ONLY..NOWHERE).contains(&(place >> 12)) {
                if matches!(self.kind, Kind::Arm { .. } | Kind::RiscV { .. }) {
                    return Err((Refusal::NoMemory, level, rights));
                }
                continue;
            }
            words.insert(real(place), now);
            marked.push(place >> 12);
        }
        let word = |place: u64| words.get(&real(place)).copied().unwrap_or(0);
        let leaf = word(places.last().unwrap().0);
        let dirty = self.sets(leaf, level, true) & !leaf & !self.sets(leaf, level, false) == 0;
        let accessed =
            places.iter().all(|&(place, level)| self.sets(word(place), level, false) & !word(place) == 0);
        let [r, w, x, users] = rights;
        let rights_now = [r, w && (dirty || write), x, users];
        Ok(Said { frame, level, allowed: rights, rights: rights_now, memory, accessed, dirty })
    }
}

/// Returns the address in the first frames of what the alias reaches.
fn real(place: u64) -> u64 {
    let first = ALIAS.0 << 12;
    if place >= first { place - first } else { place }
}

/// Whether an entry is a leaf, its rights and its type; or why it is refused.
type Answer = Result<(bool, Rights, MemoryType), Refusal>;

/// An entry with its drawing.
struct Drawing {
    drawing: &'static str,
    word: u64,
    level: u8,
    is_leaf: bool,
    /// Whether a bit that must be clear is set, or the address is too large.
    is_reserved: bool,
}

impl Drawing {
    fn get(&self, letter: char) -> u64 {
        field(self.drawing, self.word, letter).unwrap_or(0)
    }

    fn on(&self, letter: char) -> bool {
        self.get(letter) == 1
    }

    fn ept(&self, execute_only: bool, by_mode: bool) -> Answer {
        let users = if by_mode { self.on('u') } else { self.on('x') };
        let type_of = [
            Some(MemoryType::Uncached),
            Some(MemoryType::WriteCombining),
            None,
            None,
            Some(MemoryType::Uncached),
            Some(MemoryType::Uncached),
            Some(MemoryType::WriteBack),
            None,
        ];
        let memory = if self.is_leaf { type_of[self.get('m') as usize] } else { Some(MemoryType::WriteBack) };
        match (self.on('r'), self.on('w'), self.on('x') || users) {
            (false, false, false) => return Err(Refusal::NotPresent),
            (false, true, _) => return Err(Refusal::Reserved),
            (false, false, true) if !execute_only => return Err(Refusal::Reserved),
            _ if self.is_reserved || memory.is_none() => return Err(Refusal::Reserved),
            _ => {}
        }
        let memory = match memory {
            Some(MemoryType::Uncached) if self.on('i') => MemoryType::Device,
            memory => memory.unwrap(),
        };
        Ok((self.is_leaf, [self.on('r'), self.on('w'), self.on('x'), users], memory))
    }

    fn npt(&self, nx: bool, pae: bool) -> Answer {
        if !self.on('p') {
            return Err(Refusal::NotPresent);
        }
        if self.is_reserved || self.on('n') && !nx {
            return Err(Refusal::Reserved);
        }
        if pae && self.level == 3 {
            return Ok((false, [true; 4], MemoryType::WriteBack));
        }
        // The PAT of the tests: 6, 4, 7, 0, and the same again.
        let types = [MemoryType::WriteBack, MemoryType::Uncached, MemoryType::Uncached, MemoryType::Device];
        let users = self.on('U');
        let x = users && !self.on('n');
        let memory = if self.is_leaf { types[(self.get('m') & 3) as usize] } else { MemoryType::WriteBack };
        Ok((self.is_leaf, [users, users && self.on('w'), x, x], memory))
    }

    fn arm(&self, output: u32, sets_accessed: bool, sets_dirty: bool, xnx: bool) -> Answer {
        let block = !self.on('t');
        if !self.on('p') || self.level == 1 && block || self.level > 3 && block {
            return Err(Refusal::NotPresent);
        }
        let first = if self.is_leaf && self.level > 1 { 12 + 9 * (u32::from(self.level) - 1) } else { 12 };
        if (self.word & 0xffff_ffff_f000) >> first << first >> output != 0 {
            return Err(Refusal::AddressSize);
        }
        if !self.is_leaf {
            return Ok((false, [true; 4], MemoryType::WriteBack));
        }
        if !self.on('a') && !sets_accessed {
            return Err(Refusal::NotAccessed);
        }
        let (x, users) = match (self.get('x'), xnx) {
            (0b00, _) | (0b01, false) => (true, true),
            (0b01, true) => (false, true),
            (0b10, _) | (0b11, false) => (false, false),
            _ => (true, false),
        };
        let memory = match self.get('m') {
            15 => MemoryType::WriteBack,
            0..=3 => MemoryType::Device,
            _ => MemoryType::WriteCombining,
        };
        Ok((true, [self.on('r'), self.on('w') || sets_dirty && self.on('D'), x, users], memory))
    }

    fn risc_v(&self, adue: bool, mxr: bool) -> Answer {
        if !self.on('p') {
            return Err(Refusal::NotPresent);
        }
        let memory = match self.get('m') {
            0 => MemoryType::WriteBack,
            1 => MemoryType::WriteCombining,
            2 => MemoryType::Device,
            _ => return Err(Refusal::Reserved),
        };
        if self.is_reserved || !self.is_leaf && self.level == 1 || self.on('w') && !self.on('r') {
            return Err(Refusal::Reserved);
        }
        if !self.is_leaf {
            return Ok((false, [true; 4], memory));
        }
        if !adue && !self.on('a') {
            return Err(Refusal::NotAccessed);
        }
        let (u, x) = (self.on('U'), self.on('U') && self.on('x'));
        Ok((true, [u && self.on('r') || mxr && x, u && self.on('w') && (adue || self.on('d')), x, x], memory))
    }
}
