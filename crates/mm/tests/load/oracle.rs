//! The expected value of every byte, although pages lose their contents during use.
//!
//! Each thread has a **lane**: a line of 64 bytes in every page. Only that thread writes the line, so it knows
//! what it wrote there. A change that drops contents is entered in the **ledger** before it begins and after it
//! has ended:
//!
//! ```text
//!            write v                 load
//! ───────────┼───────────────────────┼────────▶
//!   ended ┄┄┄│                       │┄┄┄ begun      v or 0:  a drop of the page may have met the write or the load
//!            │┄┄┄ begun ┄┄┄┄┄ ended ┄│               0 only:  a drop began after the write and ended before the load
//!            │         none          │               v only
//! ```
//! After a zero was read, the line holds zero: the old value never comes back. Each value is written once, so
//! an older one is a mistake, too. A few pages always get the same value, so that they are merged.
//!
//! Other threads may **peek** into a lane. They find a value whose write had ended before, or a newer one, or
//! zero if the page was ever dropped.

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Bytes of a lane in each page.
pub const LINE: usize = 64;
const WORDS: usize = LINE / 8;
/// One page in this many has the same contents as others, and only one lane.
const ALIKE: u64 = 8;

/// How often a drop of a page began and ended, and how often a certain drop began and ended.
#[derive(Default)]
struct Drops {
    begun: AtomicU64,
    ended: AtomicU64,
    surely_begun: AtomicU64,
    surely_ended: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Default)]
struct DropCounts {
    begun: u64,
    ended: u64,
    surely_begun: u64,
    surely_ended: u64,
}

/// A result of [`Ledger::look`].
pub struct Look {
    ended: u64,
    written: Vec<u64>,
}

/// The expected contents of all pages, shared by all threads. See the module's header.
pub struct Ledger {
    drops: Vec<Drops>,
    /// The latest value in each line whose write has ended.
    written: Vec<AtomicU64>,
    lanes: u64,
}

impl Ledger {
    pub fn new(pages: u64, lanes: u64) -> Self {
        let written = (0..pages * lanes).map(|_| AtomicU64::new(0)).collect();
        Self { drops: (0..pages).map(|_| Drops::default()).collect(), written, lanes }
    }

    fn written(&self, page: u64, lane: u64) -> &AtomicU64 {
        &self.written[(page * self.lanes + lane) as usize]
    }

    /// Returns the expected contents of a page at the moment.
    pub fn look(&self, page: u64) -> Look {
        let ended = self.seen(page).ended;
        Look { ended, written: (0..self.lanes).map(|lane| self.written(page, lane).load(SeqCst)).collect() }
    }

    /// Whether a thread with one of these lanes began and ended a write to the page between three looks, and no
    /// thread can have dropped the page since. The second value was written after the first.
    pub fn was_written(
        &self,
        page: u64,
        [first, then, last]: [&Look; 3],
        lanes: impl Fn(u64) -> bool,
    ) -> bool {
        let written = |look: &Look, lane: u64| look.written[lane as usize];
        let twice = |&lane: &u64| {
            let then = written(then, lane);
            written(first, lane) != then && then != written(last, lane)
        };
        self.seen(page).begun == first.ended
            && (0..self.lanes).filter(|&lane| lanes(lane)).any(|lane| twice(&lane))
    }

    /// Reads a line of any lane through `get`. Judges it by what all threads know.
    pub fn peek<E>(
        &self,
        page: u64,
        lane: u64,
        get: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Result<(), Wrong>, E> {
        let mut line = [0; LINE];
        let written = self.written(page, lane).load(SeqCst);
        get(&mut line)?;
        let found = words(&line);
        // A line that is being written is partly old.
        let dropped = self.seen(page).begun > 0;
        let newer = |word: u64| word >= written && (word == 0 || word >> 40 == tag(page, lane) >> 40);
        let holds = found.iter().all(|&word| newer(word) || (word == 0 && dropped));
        Ok(if holds { Ok(()) } else { Err(Wrong { page, lane, written, found }) })
    }

    /// Runs `change`, which drops the contents of `pages`. A change that may leave some pages is not `sure`.
    pub fn dropping<T>(&self, pages: Range<u64>, sure: bool, change: impl FnOnce() -> T) -> T {
        let drops = &self.drops[pages.start as usize..pages.end as usize];
        for page in drops {
            page.begun.fetch_add(1, SeqCst);
            page.surely_begun.fetch_add(sure.into(), SeqCst);
        }
        let result = change();
        for page in drops {
            page.ended.fetch_add(1, SeqCst);
            page.surely_ended.fetch_add(sure.into(), SeqCst);
        }
        result
    }

    fn seen(&self, page: u64) -> DropCounts {
        let drops = &self.drops[page as usize];
        DropCounts {
            begun: drops.begun.load(SeqCst),
            ended: drops.ended.load(SeqCst),
            surely_begun: drops.surely_begun.load(SeqCst),
            surely_ended: drops.surely_ended.load(SeqCst),
        }
    }
}

/// The last known contents of a line.
#[derive(Clone, Copy, Default)]
struct Last {
    value: u64,
    before: DropCounts,
    after: DropCounts,
}

/// A line with wrong contents.
pub struct Wrong {
    page: u64,
    lane: u64,
    written: u64,
    found: [u64; WORDS],
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, lane, written, found } = self;
        write!(f, "page {page}, lane {lane}: {found:x?} instead of {written:x}")
    }
}

/// One thread's line in every page.
pub struct Lane {
    number: u64,
    writes: u64,
    lines: Vec<Last>,
    /// How often a page was found dropped.
    pub dropped: u64,
    /// The number of judged loads.
    pub judged: u64,
}

impl Lane {
    /// The lane with this number.
    pub fn new(number: u64, pages: u64) -> Self {
        let lines = vec![Last::default(); pages as usize];
        Self { number, writes: 0, lines, dropped: 0, judged: 0 }
    }

    /// The offset of the line in a page.
    pub fn offset(&self) -> u64 {
        self.number * LINE as u64
    }

    /// Whether this lane may write to `page`.
    pub fn owns(&self, ledger: &Ledger, page: u64) -> bool {
        !page.is_multiple_of(ALIKE) || page / ALIKE % ledger.lanes == self.number
    }

    /// Writes the next value through `put`. Where that fails, nothing has happened.
    pub fn store<E>(
        &mut self,
        ledger: &Ledger,
        page: u64,
        put: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let tag = tag(page, self.number);
        let value = if page.is_multiple_of(ALIKE) { tag } else { tag | (self.writes + 1) };
        let before = ledger.seen(page);
        put(&[value.to_le_bytes(); WORDS].concat())?;
        self.lines[page as usize] = Last { value, before, after: ledger.seen(page) };
        ledger.written(page, self.number).store(value, SeqCst);
        self.writes += 1;
        Ok(())
    }

    /// Reads through `get`, and judges.
    pub fn load<E>(
        &mut self,
        ledger: &Ledger,
        page: u64,
        get: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Result<(), Wrong>, E> {
        let mut bytes = [0; LINE];
        let before = ledger.seen(page);
        get(&mut bytes)?;
        let after = ledger.seen(page);
        self.judged += 1;
        let line = &mut self.lines[page as usize];
        let dropped = before.surely_ended > line.after.surely_begun;
        let droppable = after.begun > line.before.ended;
        if bytes == [0; LINE] && line.value != 0 && droppable {
            *line = Last::default();
            self.dropped += 1;
            return Ok(Ok(()));
        }
        let holds = words(&bytes) == [line.value; WORDS];
        if holds && (line.value == 0 || !dropped) {
            return Ok(Ok(()));
        }
        Ok(Err(Wrong { page, lane: self.number, written: line.value, found: words(&bytes) }))
    }
}

/// The start of every value of a line: its lane and its page. Pages with the same contents have the same tag.
fn tag(page: u64, lane: u64) -> u64 {
    (lane + 1) << 56 | if page.is_multiple_of(ALIKE) { 0 } else { page << 40 }
}

fn words(line: &[u8; LINE]) -> [u64; WORDS] {
    let word = |at: usize| std::array::from_fn(|byte| line[at * 8 + byte]);
    std::array::from_fn(|at| u64::from_le_bytes(word(at)))
}

/// Judges a lane's line that is an array of bytes in memory, for the tests of the oracle.
fn judge(lane: &mut Lane, ledger: &Ledger, bytes: [u8; LINE]) -> bool {
    let copy = |into: &mut [u8]| -> Result<(), Infallible> {
        into.copy_from_slice(&bytes);
        Ok(())
    };
    let Ok(verdict) = lane.load(ledger, 1, copy);
    verdict.is_ok()
}

fn write(lane: &mut Lane, ledger: &Ledger) -> [u8; LINE] {
    let mut line = [0; LINE];
    let Ok(()) = lane.store(ledger, 1, |bytes| -> Result<(), Infallible> {
        line.copy_from_slice(bytes);
        Ok(())
    });
    line
}

#[test]
fn the_oracle_knows_what_a_line_may_hold() {
    let (ledger, mut lane) = (Ledger::new(2, 1), Lane::new(0, 2));
    let first = write(&mut lane, &ledger);
    assert!(judge(&mut lane, &ledger, first));
    assert!(!judge(&mut lane, &ledger, [0; LINE]), "the page was not dropped");
    let second = write(&mut lane, &ledger);
    assert!(!judge(&mut lane, &ledger, first), "an older value");
    assert!(!judge(&mut lane, &ledger, [0xdd; LINE]), "poison");

    let peek = |line: [u8; LINE]| {
        let copy = |into: &mut [u8]| -> Result<(), Infallible> {
            into.copy_from_slice(&line);
            Ok(())
        };
        let Ok(verdict) = ledger.peek(1, 0, copy);
        verdict.is_ok()
    };
    assert!(peek(second) && !peek(first) && !peek([0; LINE]) && !peek([0xdd; LINE]));

    ledger.dropping(1..2, false, || assert!(judge(&mut lane, &ledger, second), "the drop has not ended"));
    assert!(judge(&mut lane, &ledger, second), "the page may not have been dropped");
    ledger.dropping(1..2, true, || {});
    assert!(!judge(&mut lane, &ledger, second), "the page was certainly dropped");
    assert!(judge(&mut lane, &ledger, [0; LINE]));
    assert!(!judge(&mut lane, &ledger, second), "the old value does not come back");

    ledger.dropping(1..2, true, || {
        let third = write(&mut lane, &ledger);
        assert!(judge(&mut lane, &ledger, third));
        assert!(judge(&mut lane, &ledger, [0; LINE]), "written while it was dropped");
    });
}
