//! Charges of frames to groups.
//!
//! A frame is charged when it enters an address space of a group, for as long as it is in use
//! (`Arena::charge`). The frame's note stores the group's number, so that the thread that drops the last
//! reference knows which ledger to credit.
//!
//! Threads share no cache line: each charges and credits its own **stock**. When the stock is empty or too
//! large, the thread moves a batch between it and the sum. The sum minus the stocks is exact.

use crate::error::MmError;
use crate::shards::Shards;
use parking_lot::Mutex;
use slat::PAGE_SIZE;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Size to which a stock is refilled, or cut when it exceeds twice that.
const BATCH: i64 = 32;
/// Number of ledgers allocated at a time.
const ROW: usize = 64;

/// A number that many threads change.
// ORDER(charge): Relaxed, all here: numbers; no other memory depends on them.
#[derive(Debug)]
pub(crate) struct Count {
    sum: AtomicI64,
    stocks: Shards<AtomicI64>,
}

impl Count {
    pub(crate) fn new() -> Self {
        Self { sum: AtomicI64::new(0), stocks: Shards::new() }
    }

    /// Adds `count`, which may be negative.
    pub(crate) fn add(&self, count: i64) {
        let stock = self.stocks.mine();
        let left = stock.fetch_sub(count, Relaxed) - count;
        if !(0..=2 * BATCH).contains(&left) {
            // Another thread may refill the same stock at once; the total stays correct.
            let more = BATCH - left;
            self.sum.fetch_add(more, Relaxed);
            stock.fetch_add(more, Relaxed);
        }
    }

    /// Returns an upper bound: one load from a line that is seldom written.
    pub(crate) fn at_most(&self) -> u64 {
        self.sum.load(Relaxed).max(0) as u64
    }

    /// Returns the number.
    pub(crate) fn exact(&self) -> u64 {
        let stocks: i64 = self.stocks.iter().map(|stock| stock.load(Relaxed)).sum();
        (self.sum.load(Relaxed) - stocks).max(0) as u64
    }
}

/// The charges of a group.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Limit in bytes.
    pub(crate) limit: AtomicU64,
    /// Frames of anonymous pages, and of file pages.
    frames: [Count; 2],
    /// Bytes of page tables, of tables lent to VMs, and of compressed copies.
    pub(crate) tables: AtomicI64,
    pub(crate) lent: AtomicI64,
    pub(crate) stored: AtomicI64,
    /// Number of copies in swap.
    pub(crate) copies: AtomicI64,
}

impl Ledger {
    fn new() -> Self {
        let [tables, lent, stored, copies] = [const { AtomicI64::new(0) }; 4];
        let frames = [Count::new(), Count::new()];
        Self { limit: AtomicU64::new(u64::MAX), frames, tables, lent, stored, copies }
    }

    /// Adds frames of file pages, or of anonymous pages; `frames` may be negative.
    pub(crate) fn add(&self, is_file: bool, frames: i64) {
        self.frames[usize::from(is_file)].add(frames);
    }

    /// Returns the frames of anonymous pages and of file pages.
    pub(crate) fn frames(&self) -> [u64; 2] {
        self.frames.each_ref().map(Count::exact)
    }

    fn others(&self) -> u64 {
        let others = [&self.tables, &self.lent, &self.stored].map(|bytes| bytes.load(Relaxed));
        others.iter().sum::<i64>().max(0) as u64
    }

    /// Returns everything charged, in bytes.
    pub(crate) fn charged(&self) -> u64 {
        self.frames().iter().sum::<u64>() * PAGE_SIZE + self.others()
    }

    /// Whether `bytes` more fit within the limit.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let limit = self.limit.load(Relaxed);
        let at_most = || self.frames.iter().map(Count::at_most).sum::<u64>() * PAGE_SIZE + self.others();
        limit == u64::MAX || at_most() + bytes <= limit || self.charged() + bytes <= limit
    }

    /// Whether nothing is charged to it.
    fn is_empty(&self) -> bool {
        self.charged() == 0 && self.copies.load(Relaxed) == 0
    }
}

/// Number of a group; zero for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owner(u16);

impl Owner {
    /// Bits in the number.
    pub(crate) const BITS: u32 = 12;

    pub(crate) fn of(number: u64) -> Self {
        Self(number as u16)
    }

    pub(crate) fn number(self) -> u64 {
        self.0.into()
    }
}

/// The ledgers of an arena.
#[derive(Debug)]
pub(crate) struct Ledgers {
    rows: [OnceLock<Box<[Ledger; ROW]>>; (1 << Owner::BITS) / ROW],
    /// How many numbers have been used, and which of these are free. Frames may still be charged to a free one.
    numbers: Mutex<(u16, Vec<Owner>)>,
}

impl Ledgers {
    pub(crate) fn new() -> Self {
        Self { rows: [const { OnceLock::new() }; (1 << Owner::BITS) / ROW], numbers: Mutex::default() }
    }

    pub(crate) fn get(&self, owner: Owner) -> Option<&Ledger> {
        let at = usize::from(owner.0.checked_sub(1)?);
        Some(&self.rows[at / ROW].get()?[at % ROW])
    }

    /// Takes a number for a new group.
    pub(crate) fn take(&self) -> Result<Owner, MmError> {
        let mut numbers = self.numbers.lock();
        let is_empty = |owner: &Owner| self.get(*owner).is_some_and(Ledger::is_empty);
        if let Some(at) = numbers.1.iter().position(is_empty) {
            return Ok(numbers.1.swap_remove(at));
        }
        let next = numbers.0;
        let row = self.rows.get(usize::from(next) / ROW).ok_or(MmError::TooManyGroups)?;
        row.get_or_init(|| Box::new(std::array::from_fn(|_| Ledger::new())));
        numbers.0 += 1;
        Ok(Owner(next + 1))
    }

    /// Returns the number of a dropped group.
    pub(crate) fn give(&self, owner: Owner) {
        if let Some(ledger) = self.get(owner) {
            ledger.limit.store(u64::MAX, Relaxed);
        }
        self.numbers.lock().1.push(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_exact_with_any_stocks() {
        let count = Count::new();
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let count = &count;
                scope.spawn(move || {
                    (0..1000).for_each(|step| count.add(if step % 3 == 2 { -1 } else { thread }));
                });
            }
        });
        let expected: u64 = (1..=4).map(|thread| 667 * thread - 333).sum();
        assert_eq!(count.exact(), expected);
        assert!(count.at_most() >= expected && count.at_most() <= expected + 4 * 2 * BATCH as u64);
        count.add(-(expected as i64));
        assert_eq!(count.exact(), 0);
    }

    #[test]
    fn numbers_are_reused_when_nothing_is_charged_to_them() {
        let ledgers = Ledgers::new();
        let [one, other] = [(); 2].map(|()| ledgers.take().unwrap());
        ledgers.get(one).unwrap().frames[0].add(1);
        ledgers.give(one);
        ledgers.give(other);
        assert_eq!(ledgers.take(), Ok(other));
        assert_ne!(ledgers.take(), Ok(one), "a frame is still charged to it");
        let taken = std::iter::from_fn(|| ledgers.take().ok()).count();
        assert_eq!((taken, ledgers.take()), (4096 - 3, Err(MmError::TooManyGroups)));
        ledgers.get(one).unwrap().frames[0].add(-1);
        assert_eq!(ledgers.take(), Ok(one));
    }
}
