//! Taking from one log, chunk by chunk: dirty pages become clean and armed.

use super::harvest::TakenWords;
use super::mark::tables_before_marks;
use super::state::LogId;
use super::{DirtyError, Splitting};
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::Written;
use crate::fallible;
use crate::slots::bitmap::{Bitmap, CHUNK, WORD};
use crate::sync::mode::{Mode, Shared};
use crate::tlb::debt::Owed;
use crate::{AccessedPages, Format, Gfn, GuestSpace, Host, Idle, Level, Slot, Span, Walk};
use alloc::vec::Vec;
use core::ops::Range;

/// Pages armed in one section, with a few more allowed: some ten microseconds.
const PAGES_A_SECTION: u64 = 4096;

/// Words of marks taken together.
const PART: usize = 64;

/// The words of one chunk, and one more for bits that a shift carries over.
pub(super) type Words = [u64; CHUNK + 1];

/// Buffers into which a chunk is taken.
struct Room {
    /// The dirty pages; all zero between two chunks.
    dirty: Words,
    /// The marks of the words taken last.
    marks: Words,
}

/// Reason why taking pauses.
enum Pause {
    /// No chunk is left.
    Over,
    /// There is no room for the words of another chunk.
    Full,
    /// This chunk is to be divided first.
    Whole,
}

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Takes all dirty pages of a log into `into`, by word numbers, and owes the flush. Also fills it on an error.
    pub(super) fn take_log(
        &self,
        idle: &mut Idle,
        log: LogId,
        into: &mut TakenWords,
        owed: &mut Owed,
    ) -> Result<(), DirtyError> {
        self.outlast_faults_without(idle);
        let mut room = Room { dirty: [0; CHUNK + 1], marks: [0; CHUNK + 1] };
        let mut chunk = 0;
        loop {
            fallible::reserve(&mut into.words, CHUNK)?;
            let mut walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
            let pause = take_chunks(&mut walk, log, &mut chunk, &mut room, into, owed);
            drop(walk);
            match pause {
                Pause::Over => return Ok(()),
                Pause::Full => {}
                Pause::Whole => self.divide(idle, log, chunk)?,
            }
        }
    }

    /// Waits for faults that do not know of the log yet. A log that begins with all pages dirty is published while such
    /// faults run; what they map is not marked. A harvest before they end must wait for them; the transaction that
    /// began the log waits too. Call it after the log was seen in a published version.
    pub(super) fn outlast_faults_without(&self, _idle: &mut Idle) {
        let (_, in_progress) = self.space.memslots.progress();
        if in_progress {
            self.vm.reads.synchronize();
        }
    }

    /// Divides a chunk that is dirty as a whole, and, with eager splitting, splits the large pages in it.
    pub(super) fn divide(&self, idle: &mut Idle, log: LogId, chunk: usize) -> Result<(), DirtyError> {
        let walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
        let whole = current(&walk, log).filter(|(_, bitmap)| bitmap.is_whole(chunk));
        let Some(gfns) = whole.map(|(slot, bitmap)| frames(&slot, bitmap.words_of(chunk))) else {
            return Ok(());
        };
        drop(walk);
        if self.vm.splitting() == Splitting::Eager {
            // Without table pages they stay large: the first store to each splits it then.
            let _ = self.split(idle, gfns, Level::K4);
        }
        let walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
        let divided = current(&walk, log).map_or(Some(()), |(_, bitmap)| bitmap.divide(chunk));
        divided.ok_or(DirtyError::NoMemory)
    }

    /// Cleans the pages `asked` of a chunk that is not whole, owes the flush, and returns how many were dirty.
    pub(super) fn clean(
        &self,
        idle: &mut Idle,
        log: LogId,
        chunk: usize,
        asked: &Words,
        owed: &mut Owed,
    ) -> u64 {
        let by_bits = self.vm.logs_by_bits();
        let mut walk = Walk::<F, H, Shared>::on_any_seat(self.vm, self.space, idle);
        let (mut next, mut cleaned) = (0, 0);
        while let Some((slot, bitmap)) = current(&walk, log) {
            let words = bitmap.words_of(chunk);
            let (from, end) = (next, (words.end - words.start) as usize);
            let mut work = 0;
            while next < end && work < PAGES_A_SECTION {
                work += 1 + u64::from(asked[next].count_ones());
                next += 1;
            }
            let first = words.start + from as u64;
            let mut dirty = [0; CHUNK + 1];
            if by_bits {
                // The tables before the marks, as in a harvest: a page that is zapped meanwhile is in one of them.
                let told = |index, bits| dirty[from + index] |= bits;
                walk.arm_words(&slot, first, &asked[from..next], told);
            }
            for (word, index) in (first..).zip(from..next) {
                dirty[index] |= bitmap.take(word, asked[index]);
            }
            if !by_bits {
                walk.arm_words(&slot, first, &dirty[from..next], |_, _| ());
            }
            cleaned += owe(owed, &slot, words.start, &dirty);
            if next == end {
                break;
            }
            walk.yield_section();
        }
        cleaned
    }
}

/// Takes chunks from `chunk` on, until there is a reason to pause.
fn take_chunks<F: Format, H: Host>(
    walk: &mut Walk<'_, F, H, Shared>,
    log: LogId,
    chunk: &mut usize,
    room: &mut Room,
    into: &mut TakenWords,
    owed: &mut Owed,
) -> Pause {
    let by_bits = walk.vm.logs_by_bits();
    while let Some((slot, bitmap)) = current(walk, log) {
        let chunks = bitmap.chunks();
        // By marks alone, chunks without marks are skipped.
        let far = chunks.min(*chunk + PAGES_A_SECTION as usize);
        *chunk = (*chunk..far).find(|&chunk| by_bits || !bitmap.is_clean(chunk)).unwrap_or(far);
        if *chunk == chunks {
            return Pause::Over;
        }
        if *chunk == far {
            walk.yield_section();
            continue;
        }
        if bitmap.is_whole(*chunk) {
            return Pause::Whole;
        }
        if into.words.capacity() - into.words.len() < CHUNK {
            return Pause::Full;
        }
        let by_tables = if by_bits { tables(walk, log, *chunk, Found::Cleared, &mut room.dirty) } else { 0 };
        let marked = take_marks(walk, log, *chunk, room);
        if by_tables + marked > 0 {
            // If the slot has moved meanwhile, the move flushed what was armed before.
            let slot = current(walk, log).map_or(slot, |(slot, _)| slot);
            let noted = note(&mut into.words, (*chunk * CHUNK) as u64, &room.dirty);
            // A page may be in both.
            let count = || noted.iter().map(|(_, bits)| u64::from(bits.count_ones())).sum();
            let pages = if by_tables.min(marked) == 0 { by_tables + marked } else { count() };
            into.pages += pages;
            if let (Some(&(first, _)), Some(&(last, _))) = (noted.first(), noted.last()) {
                owed.owe_pages(frames(&slot, first..last + 1), pages);
            }
            room.dirty = [0; CHUNK + 1];
        }
        *chunk += 1;
        walk.yield_section();
    }
    Pause::Over
}

/// Takes the marks of a chunk that is not whole, and arms their pages. Returns their number.
fn take_marks<F: Format, H: Host>(
    walk: &mut Walk<'_, F, H, Shared>,
    log: LogId,
    chunk: usize,
    Room { dirty, marks }: &mut Room,
) -> u64 {
    let (mut next, mut all) = (0, 0);
    while let Some((slot, bitmap)) = current(walk, log).filter(|(_, bitmap)| !bitmap.is_clean(chunk)) {
        let words = bitmap.words_of(chunk);
        let (from, end) = (next, (words.end - words.start) as usize);
        let mut pages = 0;
        while next < end && pages < PAGES_A_SECTION {
            let to = end.min(next + PART);
            pages += bitmap.take_all(words.start + next as u64, &mut marks[next..to]);
            next = to;
        }
        if pages > 0 {
            all += pages;
            walk.arm_words(&slot, words.start + from as u64, &marks[from..next], |_, _| ());
            dirty[from..next].iter_mut().zip(&marks[from..next]).for_each(|(dirty, marks)| *dirty |= marks);
        }
        if next == end {
            break;
        }
        walk.yield_section();
    }
    all
}

/// Adds the pages of a chunk whose D bits are set. Returns their number. A leaf that an invalidation zaps meanwhile is
/// in the bitmap when it is gone; the caller reads that afterwards.
pub(super) fn tables<F: Format, H: Host, M: Mode>(
    walk: &mut Walk<'_, F, H, M>,
    log: LogId,
    chunk: usize,
    found: Found,
    into: &mut Words,
) -> u64 {
    let vm = walk.vm;
    let (mut done, mut pages) = (0, 0);
    while let Some((slot, bitmap)) = current(walk, log) {
        let gfns = frames(&slot, bitmap.words_of(chunk));
        let left = Span::new(gfns.start + done, gfns.end);
        let told = |written: AccessedPages<Gfn>| {
            pages += u64::from(written.count());
            add(into, written.first().0 - gfns.start.0, written.bits());
            true
        };
        let mut pass = Pass::<F, Written, _, _>::new(vm.tables(), How::every_leaf(found), told);
        // SAFETY: this walk is one section from its opening or last yield, in which the root is read, to the next.
        let goal = unsafe { pass.stretch(walk.root(), left) };
        if goal >= left.end {
            break;
        }
        done = goal.0 - gfns.start.0;
        walk.yield_section();
    }
    tables_before_marks();
    pages
}

/// Returns the slot and its log, if it is still the log that was asked for. Valid until the walk yields.
pub(super) fn current<'w, F: Format, H: Host, M: Mode>(
    walk: &'w Walk<'_, F, H, M>,
    log: LogId,
) -> Option<(Slot, &'w Bitmap)> {
    let version = walk.slots();
    let bitmap = version.log(log.slot).filter(|bitmap| bitmap.serial() == log.serial)?;
    Some((version.get(log.slot)?, bitmap))
}

/// Adds the bits of pages from page `first` of a chunk on, without those past its end.
fn add(into: &mut Words, first: u64, bits: &[u64; 8]) {
    let (word, shift) = ((first / WORD) as usize, first % WORD);
    if shift == 0 && word + bits.len() <= CHUNK {
        // The usual case: slots begin where tables do.
        let into = &mut into[word..][..bits.len()];
        into.iter_mut().zip(bits).for_each(|(into, bits)| *into |= bits);
        return;
    }
    let low = bits.iter().map(|bits| bits << shift);
    into[word..].iter_mut().zip(low).for_each(|(into, bits)| *into |= bits);
    if shift != 0 {
        let high = bits.iter().map(|bits| bits >> (WORD - shift));
        into[word + 1..].iter_mut().zip(high).for_each(|(into, bits)| *into |= bits);
    }
}

/// Adds the non-zero words of a chunk with their numbers, from `first` on. The caller has reserved room. Whether a word
/// is zero is hard to predict, so there is no branch on it. Returns the added words.
fn note<'n>(into: &'n mut Vec<(u64, u64)>, first: u64, words: &Words) -> &'n [(u64, u64)] {
    let len = into.len();
    let room = &mut into.spare_capacity_mut()[..CHUNK];
    let mut noted = 0;
    for (number, &bits) in (first..).zip(&words[..CHUNK]) {
        room[noted % CHUNK].write((number, bits));
        noted += usize::from(bits != 0);
    }
    // SAFETY: `noted` elements were written at the end.
    unsafe { into.set_len(len + noted) };
    &into[len..]
}

/// The frames of these words of a log.
fn frames(slot: &Slot, words: Range<u64>) -> Span<Gfn> {
    let first = slot.gfns.start;
    Span::new(first + words.start * WORD, (first + words.end * WORD).min(slot.gfns.end))
}

/// Owes the flush of the dirty pages of a chunk whose first word is number `first`. Returns their number.
fn owe(owed: &mut Owed, slot: &Slot, first: u64, dirty: &Words) -> u64 {
    let Some(from) = dirty.iter().position(|bits| *bits != 0) else { return 0 };
    let to = dirty.iter().rposition(|bits| *bits != 0).unwrap_or(from) + 1;
    let count = dirty[from..to].iter().map(|bits| u64::from(bits.count_ones())).sum();
    owed.owe_pages(frames(slot, first + from as u64..first + to as u64), count);
    count
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slots::bitmap::CHUNK_PAGES;

    #[test]
    fn bits_are_added_wherever_the_table_begins_in_the_chunk() {
        let bits = [1 << 63 | 1, 0, u64::MAX, 0, 0, 0, 0, 1 << 62];
        let pages = |words: &[u64]| -> Vec<u64> {
            let set = |page: &u64| words[(page / WORD) as usize] >> (page % WORD) & 1 != 0;
            (0..words.len() as u64 * WORD).filter(set).collect()
        };
        for first in [0, 64, 1, 63, 511, 700, CHUNK_PAGES - 512] {
            let mut into = [0; CHUNK + 1];
            add(&mut into, first, &bits);
            assert!(
                pages(&into).into_iter().eq(pages(&bits).into_iter().map(|page| first + page)),
                "{first}"
            );
        }
        // The last table of a chunk reaches out of it: bits past the end are dropped.
        let mut into = [0; CHUNK + 1];
        add(&mut into, CHUNK_PAGES - 3, &[0b111, 0, 0, 0, 0, 0, 0, 0]);
        assert!(pages(&into).into_iter().eq(CHUNK_PAGES - 3..CHUNK_PAGES));
    }

    #[test]
    fn words_are_noted_where_there_are_any() {
        let mut words = [0; CHUNK + 1];
        (words[0], words[7], words[CHUNK - 1]) = (3, u64::MAX, 1 << 63);
        let mut into = vec![(5, 5)];
        into.reserve(CHUNK);
        note(&mut into, 1024, &words);
        assert_eq!(into, [(5, 5), (1024, 3), (1031, u64::MAX), (1535, 1 << 63)]);
        let mut into = Vec::with_capacity(CHUNK);
        note(&mut into, 0, &[1; CHUNK + 1]);
        assert_eq!(into.len(), CHUNK);
    }
}
