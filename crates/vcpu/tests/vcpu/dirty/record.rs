//! A record of the stores by the threads that store: the pages stored to in each round.
//!
//! A store is **certain** where its owner knew before the store that the log was on. A certain store must be
//! told. Every store is **possible**. A page without a possible store may be told only by the log's rules.

use super::counts::tally;
use super::world::PAGES;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Numbers of rounds, for each page of the slot. 0: never. All rounds of all lives are numbered, from 1.
pub struct StoreRecord {
    /// The round in which the log is certainly on. 0: it may be off.
    on: AtomicU64,
    round: AtomicU64,
    certain: Vec<AtomicU64>,
    possible: Vec<AtomicU64>,
}

impl StoreRecord {
    pub fn new() -> Self {
        let rounds = || (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        Self { on: AtomicU64::new(0), round: AtomicU64::new(0), certain: rounds(), possible: rounds() }
    }

    /// A round will begin. Called while all stand still.
    pub fn begin_round(&self, number: u64, on: bool) {
        self.round.store(number, SeqCst);
        self.on.store(if on { number } else { 0 }, SeqCst);
    }

    /// The log is on: its commit has returned.
    pub fn log_is_on(&self) {
        self.on.store(self.round.load(SeqCst), SeqCst);
    }

    /// The round to note for a store that begins now.
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

    /// Whether `page` was stored to in this round while the log was certainly on.
    pub fn is_certain(&self, page: u64) -> bool {
        self.certain[page as usize].load(SeqCst) == self.round.load(SeqCst)
    }

    /// Whether `page` was stored to in this round at all.
    pub fn is_possible(&self, page: u64) -> bool {
        self.possible[page as usize].load(SeqCst) == self.round.load(SeqCst)
    }

    /// Whether `page` was ever stored to, or mapped for a store.
    pub fn was_ever(&self, page: u64) -> bool {
        self.possible[page as usize].load(SeqCst) != 0
    }
}

tally! {
    stores "stores"
    harvests "harvests"
    given_back "given back"
    /// Pages with a certain store, over all rounds. Each was told in its round.
    certain "pages stored to"
    /// Pages told in a round, each once.
    told "pages told"
    /// Pages told because a new log tells every page.
    initial "told as a fresh log"
    faults "faults"
    flushes "flushes"
    splits "splits"
    slot_changes "slot changes"
    ring_full "rings full"
    /// Pages told because they were written before the log, which began while other threads worked.
    of_before "told of before the log"
    wrong "wrong"
}
