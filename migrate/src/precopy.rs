//! The sender: rounds while the guest runs, until what is left fits the time that the guest may stand still.
//!
//! ```text
//! start the log ─▶ harvest ─▶ send ─▶ received? ─▶ commit ─┐
//!                    ▲  │               │ no: give back,   │
//!                    │  │               │ connect again    │
//!                    │  │               ▼                  │
//!                    └──┼───────────────◀──────────────────┘
//!                       │ fits, or rounds are used up
//!                       ▼
//!            halt ─▶ give back ─▶ harvest ─▶ send ─▶ received? ─▶ commit, Go
//!                                              │ no: give back, the guest runs on here
//! ```
//! A round is what one harvest has told. Its bits are gone for good only when the receiver has said that it has the round;
//! whatever goes wrong before returns them to the log, and with them all that was written meanwhile. A page is read after the
//! harvest that told of it, so a store that comes too late for the copy is logged again.

use crate::connection::{Connection, Order, Sent, pages};
use crate::error::{Interrupted, MigrateError, WireError};
use crate::guest::{MemoryRange, Source};
use crate::wire::Writing;
use slat::{DirtyWord, PAGE_SIZE};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// The least share of time that auto-converge takes from the guest, in percent; by how much it grows; the largest.
const SLOW_DOWN: [u8; 3] = [20, 10, 99];

/// How to migrate by pre-copy: memory is sent while the guest runs, in rounds, each with what was written during the last one.
///
/// The last round is sent while the guest stands still. It begins when what is left can be sent within
/// [`downtime`](Self::downtime) at the last round's speed, or after [`max_rounds`](Self::max_rounds).
#[derive(Clone, Copy, Debug)]
pub struct PreCopy {
    downtime: Duration,
    max_rounds: u64,
    bandwidth: Option<u64>,
    tries: u32,
    auto_converge: bool,
}

/// One round, or one that failed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Round {
    /// Its number, from 1. A round that failed and the one after it have the same.
    pub number: u64,
    /// Whether the receiver has it.
    pub received: bool,
    /// Whether the guest stood still.
    pub last: bool,
    /// Pages that the harvest has told of.
    pub told: u64,
    /// What was sent.
    pub sent: Sent,
    /// From the harvest until it was received, or had failed.
    pub took: Duration,
    /// In how long the pages were written, where it is known.
    pub written_in: Option<Duration>,
    /// The share of time that auto-converge had taken from the guest, in percent.
    pub slowed_down: u8,
}

/// What came of a migration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// In order, those that failed among them. The last one was sent while the guest stood still.
    pub rounds: Vec<Round>,
    /// Starting the log.
    pub enable: Duration,
    /// From the first harvest until the receiver had everything.
    pub total: Duration,
    /// From the order to halt until the receiver had everything: the downtime, but for what the receiver takes to run the guest.
    pub halted: Duration,
}

impl Default for PreCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl PreCopy {
    /// A downtime of 300 ms, 30 rounds at most, each tried 4 times, as fast as the stream is, and no auto-converge.
    pub fn new() -> Self {
        Self {
            downtime: Duration::from_millis(300),
            max_rounds: 30,
            bandwidth: None,
            tries: 4,
            auto_converge: false,
        }
    }

    /// How long the guest may stand still while the last round is sent. It is an estimate: the stream may become slower.
    pub fn downtime(self, downtime: Duration) -> Self {
        Self { downtime, ..self }
    }

    /// The guest stands still for this round at the latest, whether the rest fits or not. 1: it is halted first, and everything is
    /// sent then. 0 is taken for 1.
    pub fn max_rounds(self, max_rounds: u64) -> Self {
        Self { max_rounds, ..self }
    }

    /// Bytes per second at most, on average over a round. 0 is taken for 1.
    pub fn bandwidth(self, bytes_per_s: u64) -> Self {
        Self { bandwidth: Some(bytes_per_s.max(1)), ..self }
    }

    /// How often a round is tried, each time over a new connection. 0 is taken for 1.
    pub fn tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// Slows the vCPUs down ([`Source::slow_down`]) where the rounds do not become shorter: by 20% of their time when a round has
    /// more than half as many pages as the one before, by 10% more each time that this happens again, up to 99%.
    pub fn auto_converge(self) -> Self {
        Self { auto_converge: true, ..self }
    }

    /// Migrates the guest, which runs, over the streams that `connect` opens: the first one, and another one each time that one
    /// breaks. Sleeps until it is over. Set the streams' timeouts: a receiver that says nothing is waited for as long as they say.
    /// Bytes whose `write` or `flush` has failed must not all arrive: the guest runs on here then.
    ///
    /// After `Ok` the guest stands still here, and may run at the receiver, where it is complete. It must not run here any more,
    /// also where the receiver is then lost.
    ///
    /// After an error the guest runs here, as fast as before. Its log is left on, and knows of every page that the receiver does
    /// not have: another call with the same receiver goes on from there, also in the same round. Or [`cancel`] it.
    pub fn send<G: Source, S: Read + Write>(
        &self,
        source: &mut G,
        connect: impl FnMut() -> io::Result<S>,
    ) -> Result<Outcome, MigrateError<G::Error>> {
        let mut ranges = source.ranges();
        ranges.sort_unstable_by_key(|range| range.gfns.start);
        let mut migration = Migration {
            settings: self,
            source,
            connect,
            ranges,
            connection: None,
            halted: false,
            slowed_down: 0,
            rounds: Vec::new(),
        };
        let result = migration.run();
        if let Err(error) = &result {
            migration.undo(matches!(error, MigrateError::Cancelled));
        }
        result
    }
}

/// Tells the receiver at the other end of a new stream that there will be no migration.
pub fn cancel(stream: impl Read + Write) -> Result<(), WireError> {
    Connection(Writing::new(stream)).cancel()
}

/// A migration under way.
struct Migration<'m, G, S: Read + Write, C> {
    settings: &'m PreCopy,
    source: &'m mut G,
    connect: C,
    /// In order of frames.
    ranges: Vec<MemoryRange>,
    connection: Option<Connection<S>>,
    halted: bool,
    /// In percent.
    slowed_down: u8,
    rounds: Vec<Round>,
}

impl<G: Source, S: Read + Write, C: FnMut() -> io::Result<S>> Migration<'_, G, S, C> {
    fn run(&mut self) -> Result<Outcome, MigrateError<G::Error>> {
        let began = Instant::now();
        self.source.start_log().map_err(MigrateError::Guest)?;
        let (enable, began) = (began.elapsed(), Instant::now());
        let (mut number, mut tries, mut harvested) = (1, 0, None);
        loop {
            let harvesting = Instant::now();
            let mut words = self.source.harvest().map_err(MigrateError::Guest)?;
            // The halted guest is harvested once more.
            let last = number >= self.settings.max_rounds || self.fits(pages(&words), harvesting.elapsed());
            let halting = Instant::now();
            if last {
                self.source.halt().map_err(MigrateError::Guest)?;
                self.halted = true;
                self.source.give_back();
                words = self.source.harvest().map_err(MigrateError::Guest)?;
            } else {
                self.converge(pages(&words));
            }
            let now = Instant::now();
            let before = harvested.replace(now);
            let mut sent = Sent::default();
            let order = Order { round: number, last, bandwidth: self.settings.bandwidth };
            let result = self.send(&words, order, &mut sent);
            // After a round that failed, what it had told of is told of again.
            let afresh = self.rounds.last().is_some_and(|round| round.received);
            self.rounds.push(Round {
                number,
                received: result.is_ok(),
                last,
                told: pages(&words),
                sent,
                took: now.elapsed(),
                written_in: before.filter(|_| afresh).map(|before| now - before),
                slowed_down: self.slowed_down,
            });
            match result {
                Ok(()) => {
                    self.source.commit();
                    if last {
                        return Ok(Outcome {
                            rounds: std::mem::take(&mut self.rounds),
                            enable,
                            total: began.elapsed(),
                            halted: halting.elapsed(),
                        });
                    }
                    (number, tries) = (number + 1, 0);
                }
                Err(Interrupted::Over(error)) => return Err(error),
                Err(Interrupted::Wire(error)) => {
                    self.source.give_back();
                    // The guest is not kept waiting for another connection.
                    self.resume();
                    self.connection = None;
                    tries += 1;
                    if tries >= self.settings.tries {
                        return Err(MigrateError::Failed { round: number, tries, error });
                    }
                }
            }
        }
    }

    /// Whether this much can be harvested in so long, and sent at the speed of the last round, while the guest stands still.
    fn fits(&self, pages: u64, harvest: Duration) -> bool {
        let Some(round) = self.rounds.iter().rfind(|round| round.received) else { return false };
        let bytes_per_s = round.sent.bytes as f64 / round.took.as_secs_f64();
        let left = self.settings.downtime.saturating_sub(harvest);
        (pages * PAGE_SIZE) as f64 <= bytes_per_s * left.as_secs_f64()
    }

    /// Slows the guest down where so many pages are no fewer than half of the last round's.
    fn converge(&mut self, pages: u64) {
        let [first, more, most] = SLOW_DOWN;
        let writes_too_fast =
            self.rounds.last().is_some_and(|round| round.received && pages > round.told / 2);
        if self.settings.auto_converge && writes_too_fast && self.slowed_down < most {
            self.slowed_down = if self.slowed_down == 0 { first } else { most.min(self.slowed_down + more) };
            self.source.slow_down(self.slowed_down);
        }
    }

    /// Sends a round, over a new connection where there is none.
    fn send(
        &mut self,
        words: &[DirtyWord],
        order: Order,
        sent: &mut Sent,
    ) -> Result<(), Interrupted<G::Error>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::new((self.connect)()?, &self.ranges)?),
        };
        connection.send(self.source, words, order, sent)?;
        if order.last {
            connection.go()?;
        }
        Ok(())
    }

    fn resume(&mut self) {
        if std::mem::take(&mut self.halted) {
            self.source.resume();
        }
    }

    /// After an error: the guest runs as before, and what was harvested is dirty.
    fn undo(&mut self, cancelled: bool) {
        self.source.give_back();
        self.resume();
        if self.slowed_down > 0 {
            self.source.slow_down(0);
        }
        if cancelled {
            // Where the receiver is gone it is told nothing.
            let _ = match &mut self.connection {
                Some(connection) => connection.cancel(),
                None => Ok(()),
            };
        }
    }
}

#[cfg(test)]
#[path = "precopy_tests.rs"]
mod tests;
