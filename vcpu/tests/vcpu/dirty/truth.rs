//! The truth about pages, kept by the threads that store: which were stored to in which round, and which were told.
//!
//! A store is **certain** where its owner knew the log to be on before it began: it must be told. It is **possible**
//! wherever it was made: a page without even that may be told only by the log's rules.

use super::counts::tally;
use super::world::PAGES;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Numbers of rounds, by page of the slot; 0: never. All rounds of all lives have a number, from 1.
pub struct Truth {
    /// The round in which the log is on for certain; 0: it may be off.
    on: AtomicU64,
    round: AtomicU64,
    certain: Vec<AtomicU64>,
    possible: Vec<AtomicU64>,
}

impl Truth {
    pub fn new() -> Self {
        let rounds = || (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        Self { on: AtomicU64::new(0), round: AtomicU64::new(0), certain: rounds(), possible: rounds() }
    }

    /// A round is about to begin; all stand still.
    pub fn begin_round(&self, number: u64, on: bool) {
        self.round.store(number, SeqCst);
        self.on.store(if on { number } else { 0 }, SeqCst);
    }

    /// The log is on: its commit has returned.
    pub fn log_is_on(&self) {
        self.on.store(self.round.load(SeqCst), SeqCst);
    }

    /// What a store that begins now is to be noted under.
    pub fn before_store(&self) -> u64 {
        self.on.load(SeqCst)
    }

    /// The store to `page` is done.
    pub fn stored(&self, page: u64, before: u64) {
        self.possible[page as usize].store(self.round.load(SeqCst), SeqCst);
        if before != 0 {
            self.certain[page as usize].store(before, SeqCst);
        }
    }

    /// Whether `page` was stored to in this round, while the log was on for certain.
    pub fn is_certain(&self, page: u64) -> bool {
        self.certain[page as usize].load(SeqCst) == self.round.load(SeqCst)
    }

    /// Whether it was stored to in this round at all.
    pub fn is_possible(&self, page: u64) -> bool {
        self.possible[page as usize].load(SeqCst) == self.round.load(SeqCst)
    }

    /// Whether it was ever stored to, or mapped for a store.
    pub fn was_ever(&self, page: u64) -> bool {
        self.possible[page as usize].load(SeqCst) != 0
    }
}

tally! {
    stores "stores"
    harvests "harvests"
    given_back "given back"
    /// Pages stored to for certain, over all rounds: each was told in its round.
    certain "pages stored to"
    /// Pages told in a round, each once.
    told "pages told"
    /// Told because a fresh log says so of every page.
    initial "told as a fresh log"
    faults "faults"
    flushes "flushes"
    splits "splits"
    slot_changes "slot changes"
    ring_full "rings full"
    /// Told because it was written before, and the log began amid other work.
    of_before "told of before the log"
    wrong "wrong"
}
