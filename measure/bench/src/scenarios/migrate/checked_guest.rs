//! The guest of each vCPU: it fills its memory, then writes and reads in it until it is halted, and checks what it reads.
//!
//! ```text
//! pages ▲ ▒▒▒▒▒▒▒▒▒▒▒▒▒     ▒ the working set: pages of it in no order, again and again
//!       │      ░░░░         ░ the sweep: now and then one page more of all the others
//!       └──────────────▶
//! ```
//! **How every byte is known.** Write number n to a page goes to word n modulo 512 of it and stores a number made of the
//! page and n. So the number of writes says what is in the page, all of it: that is the whole oracle, four bytes for each
//! page. It belongs to the guest, like its registers: it goes with the guest to another machine, and no page of memory does.

use crate::scenarios::threads_prelude::*;

/// Words of a page.
const WORDS: u64 = PAGE_SIZE / 8;
/// Of so many pages the last one is left out when memory is filled: it stays zero until the sweep comes.
const UNTOUCHED: u64 = 8;
/// One write of so many accesses belongs to the sweep.
const SWEEP: u64 = 8192;

/// A page's contents.
pub type Page = [u8; PAGE_SIZE as usize];

/// See the module's header.
#[derive(Debug)]
pub struct Guest {
    gfns: Span<Gfn>,
    /// Pages that it has filled or left out.
    filled: u64,
    /// Writes to each page so far.
    writes: Vec<u32>,
    /// Pages of the working set, the first ones.
    working_set: u64,
    random: fastrand::Rng,
    /// Pages that the sweep has been to.
    swept: u64,
    /// Accesses made.
    pub accesses: u64,
    /// Reads that found what was written.
    pub verified: u64,
    /// Reads that found something else.
    pub corrupt: u64,
}

impl Guest {
    /// A guest on `gfns`, whose accesses are those that `seed` decides.
    pub fn new(gfns: Span<Gfn>, working_set: u64, seed: u64) -> Self {
        Self {
            gfns,
            filled: 0,
            writes: vec![0; gfns.len() as usize],
            working_set: working_set.clamp(1, gfns.len()),
            random: fastrand::Rng::with_seed(seed),
            swept: 0,
            accesses: 0,
            verified: 0,
            corrupt: 0,
        }
    }

    /// The expected content of page `gfn` of its memory.
    pub fn expected(&self, gfn: Gfn) -> Page {
        page_of(gfn, self.writes[(gfn.0 - self.gfns.start.0) as usize])
    }

    /// Fills the next page of its memory, or leaves it out.
    fn fill_next(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.filled % UNTOUCHED != UNTOUCHED - 1 {
            let gfn = self.gfns.start + self.filled;
            core.store(gfn.gpa(), &page_of(gfn, WORDS as u32))?;
            self.writes[self.filled as usize] = WORDS as u32;
        }
        self.filled += 1;
        Ok(Step::Next)
    }

    /// Fills its memory where it has not, then runs for `accesses`, or until it is halted.
    pub fn run<'g>(&'g mut self, accesses: u64, halt: &'g AtomicBool) -> Run<'g> {
        Run { guest: self, left: accesses, halt }
    }
}

/// The content of a page after so many writes to it.
fn page_of(gfn: Gfn, writes: u32) -> Page {
    let mut page = [0; PAGE_SIZE as usize];
    for (word, bytes) in (0..).zip(page.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word_of(gfn, writes, word));
    }
    page
}

/// The content of word number `word` of a page after so many writes to the page.
fn word_of(gfn: Gfn, writes: u32, word: u64) -> [u8; 8] {
    let before = u64::from(writes).saturating_sub(word + 1);
    let number = word + before / WORDS * WORDS;
    if number < writes.into() { written(gfn, number) } else { [0; 8] }
}

/// The value that write number `number` stores to a page: no two are alike in all of memory, and none is zero.
fn written(gfn: Gfn, number: u64) -> [u8; 8] {
    let name = (gfn.0 << 32 | number).wrapping_add(1);
    name.wrapping_mul(0xd6e8_feb8_6659_fd93).to_le_bytes()
}

/// See [`Guest::run`].
#[derive(Debug)]
pub struct Run<'g> {
    guest: &'g mut Guest,
    left: u64,
    halt: &'g AtomicBool,
}

impl Program for Run<'_> {
    #[inline]
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let guest = &mut *self.guest;
        if guest.filled < guest.gfns.len() {
            return guest.fill_next(core);
        }
        if self.left == 0 || self.halt.load(Relaxed) {
            return Ok(Step::Stop);
        }
        // The guest goes on only when the instruction is done: a fault runs the same one again.
        let mut random = guest.random.clone();
        let sweeps = guest.accesses.is_multiple_of(SWEEP);
        // The sweep: all the others, and the working set after them.
        let page = if sweeps {
            (guest.working_set + guest.swept) % guest.gfns.len()
        } else {
            random.u64(..guest.working_set)
        };
        let (gfn, writes) = (guest.gfns.start + page, guest.writes[page as usize]);
        if sweeps || random.bool() {
            let number = u64::from(writes);
            core.store(gfn.gpa() + number % WORDS * 8, &written(gfn, number))?;
            guest.writes[page as usize] += 1;
            guest.swept += u64::from(sweeps);
        } else {
            let (word, mut found) = (random.u64(..WORDS), [0; 8]);
            core.load(gfn.gpa() + word * 8, &mut found)?;
            let right = found == word_of(gfn, writes, word);
            guest.verified += u64::from(right);
            guest.corrupt += u64::from(!right);
        }
        guest.random = random;
        guest.accesses += 1;
        self.left -= 1;
        Ok(Step::Next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page by its writes, one after another.
    fn page(gfn: Gfn, writes: u64) -> Page {
        let mut page = [0; PAGE_SIZE as usize];
        for number in 0..writes {
            let at = (number % WORDS * 8) as usize;
            page[at..at + 8].copy_from_slice(&written(gfn, number));
        }
        page
    }

    #[test]
    fn the_number_of_writes_says_what_is_in_a_page() {
        let mut guest = Guest::new(Span::sized(Gfn(100), 4), 2, 1);
        for writes in [0, 1, 2, 511, 512, 513, 1023, 1024, 1500, 5000] {
            guest.writes[3] = writes;
            assert!(guest.expected(Gfn(103)) == page(Gfn(103), writes.into()), "{writes}");
        }
    }
}
