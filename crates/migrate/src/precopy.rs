//! The sender: rounds while the guest runs, until the remaining pages fit the downtime.
//!
//! ```text
//! mark all, draw an identity ─▶ connect ─▶ harvest ─▶ send ─▶ received? ─▶ commit ─┐
//!                  ▲              │  ▲       ▲ │               │ no: give back      │
//!                  └──────────────┘  └───────┼─┼───────────────┘                    │
//!   the receiver does not have               └─┼────────────────────────────────────┘
//!   what it has confirmed                      │ fits, or rounds are used up
//!                                              ▼
//!                                   halt ─▶ give back ─▶ harvest ─▶ send ─▶ received? ─▶ commit, Go
//!                                                                     │ no: give back, resume the guest here
//! ```
//! A round sends the pages of one harvest. Their bits leave the log for good only after the receiver has
//! confirmed the round. If anything fails earlier, the bits go back to the log, which also has all pages
//! written meanwhile. Each connection begins with a comparison of what is confirmed ([`crate::wire`]). A page is read after the harvest that reported it, so a store that the copy misses is
//! logged again.

use crate::connection::{Announced, pages};
use crate::error::{Interrupted, MigrateError, WireError};
use crate::frame::{Frame, MemoryRange};
use crate::identity::Known;
use crate::outcome::{Outcome, Round, Sent};
use crate::source_target::Source;
use crate::wire::{Reading, Writing};
use slat::PAGE_SIZE;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Auto-converge: first share of time taken from the guest, step, and maximum, in percent.
const SLOW_DOWN: [u8; 3] = [20, 10, 99];

/// Settings of a pre-copy migration: memory is sent while the guest runs, in rounds, each with the pages
/// written during the last one.
///
/// The last round is sent while the guest is halted. It begins when the remaining pages can be sent within
/// [`downtime`](Self::downtime) at the last round's speed, or after [`max_rounds`](Self::max_rounds).
#[derive(Clone, Copy, Debug)]
pub struct PreCopy {
    downtime: Duration,
    max_rounds: u64,
    bandwidth: Option<u64>,
    tries: u32,
    auto_converge: bool,
}

impl Default for PreCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl PreCopy {
    /// 300 ms of downtime, at most 30 rounds with 4 tries each, no bandwidth limit, and no auto-converge.
    pub fn new() -> Self {
        Self {
            downtime: Duration::from_millis(300),
            max_rounds: 30,
            bandwidth: None,
            tries: 4,
            auto_converge: false,
        }
    }

    /// Sets how long the guest may be halted while the last round is sent. An estimate: the stream may become
    /// slower.
    pub fn downtime(self, downtime: Duration) -> Self {
        Self { downtime, ..self }
    }

    /// Sets the round for which the guest is halted at the latest, whether the rest fits or not. With 1 it is
    /// halted first, and then everything is sent. 0 counts as 1.
    pub fn max_rounds(self, max_rounds: u64) -> Self {
        Self { max_rounds, ..self }
    }

    /// Limits the bytes per second, on average over a round. 0 counts as 1.
    pub fn bandwidth(self, bytes_per_s: u64) -> Self {
        Self { bandwidth: Some(bytes_per_s.max(1)), ..self }
    }

    /// Sets how often a round is tried, each time over a new connection, and how often the migration begins anew, since
    /// the receiver does not have what it has confirmed. 0 counts as 1.
    pub fn tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// Slows the vCPUs down ([`Source::slow_down`]) if rounds do not become shorter. A round with more than
    /// half the pages of the last one takes 20% of their time. Each further such round takes 10% more, up to
    /// 99%.
    pub fn auto_converge(self) -> Self {
        Self { auto_converge: true, ..self }
    }

    /// Migrates the running guest over the streams that `connect` opens: a first one, and another each time one
    /// breaks. Sleeps until the migration is over. Set timeouts on the streams: `send` waits for a silent
    /// receiver as long as they allow. If `write` or `flush` fails, its bytes must not all arrive, since the
    /// guest then continues here.
    ///
    /// After `Ok` the guest is halted here, and may run at the receiver, which has all of it. It must not run
    /// here any more, even if the receiver is lost later.
    ///
    /// After an error the guest runs here at full speed. The log stays on, and has every page that the receiver
    /// lacks. Another call with the same receiver continues from there, even in the same round. Or [`cancel`]
    /// it. A call with another receiver, or with one that was restarted or has another guest since, sends every page:
    /// each connection compares the source's [`Session`](crate::Session) with the receiver.
    ///
    /// If the source, `connect` or a stream panics, the guest runs here at full speed, and the log has every page of the
    /// harvest; another call begins anew. Not if the guest may have left: once the last frame is being sent.
    pub fn send<G: Source, S: Read + Write>(
        &self,
        source: &mut G,
        connect: impl FnMut() -> io::Result<S>,
    ) -> Result<Outcome, MigrateError<G::Error>> {
        let mut ranges = source.ranges();
        ranges.sort_unstable_by_key(|range| range.gfns.start);
        let known = source.session().take();
        let mut migration = Migration {
            settings: self,
            source,
            connect,
            announced: Announced::new(&ranges),
            ranges,
            known,
            anew: 0,
            number: 1,
            harvested: None,
            since: Instant::now(),
            halting: Instant::now(),
            connection: None,
            halted: false,
            slowed_down: 0,
            rounds: Vec::new(),
            settled: false,
        };
        let result = migration.run();
        if let Err(error) = &result {
            migration.undo(matches!(error, MigrateError::Cancelled));
            let known = migration.known.take();
            // After other errors the receiver was told that it is over, or marks of the log may be lost.
            if let (MigrateError::Failed { .. } | MigrateError::RefusedThere(_), Some(known)) = (error, known)
            {
                migration.source.session().set(known);
            }
        }
        result
    }
}

/// Tells the receiver at the other end of a new stream that the migration is cancelled, whichever guest it waits for.
pub fn cancel(stream: impl Read + Write) -> Result<(), WireError> {
    Writing::new(stream).send(Frame::Cancel)
}

/// A migration in progress.
struct Migration<'m, G: Source, S: Read + Write, C> {
    settings: &'m PreCopy,
    source: &'m mut G,
    connect: C,
    /// In order of frames.
    ranges: Vec<MemoryRange>,
    /// The same, by slot.
    announced: Announced,
    /// `None` until the migration has begun.
    known: Option<Known>,
    /// Number of times that it has begun anew.
    anew: u32,
    /// Number of the next round.
    number: u64,
    /// Time of the last harvest.
    harvested: Option<Instant>,
    /// The beginning of the attempt: its harvest, or its connection if that failed.
    since: Instant,
    /// Time of the last call of `halt`.
    halting: Instant,
    connection: Option<Writing<S>>,
    halted: bool,
    /// Share of time taken from the guest, in percent.
    slowed_down: u8,
    rounds: Vec<Round>,
    /// The guest has left, and must not run here any more; or it runs here as before.
    settled: bool,
}

impl<G: Source, S: Read + Write, C: FnMut() -> io::Result<S>> Migration<'_, G, S, C> {
    fn run(&mut self) -> Result<Outcome, MigrateError<G::Error>> {
        let began = Instant::now();
        if self.known.is_none() {
            self.begin()?;
        }
        let (enable, began) = (began.elapsed(), Instant::now());
        let mut tries = 0;
        loop {
            let mut round = self.next_round();
            self.since = Instant::now();
            let result = self.attempt(&mut round);
            let (received, took) = (result.is_ok(), self.since.elapsed());
            self.rounds.push(Round { received, took, ..round });
            match result {
                Ok(()) => {
                    self.source.commit();
                    if round.last {
                        return Ok(Outcome {
                            rounds: std::mem::take(&mut self.rounds),
                            enable,
                            total: began.elapsed(),
                            halted: self.halting.elapsed(),
                        });
                    }
                    (self.number, tries) = (round.number + 1, 0);
                }
                Err(Interrupted::Over(error)) => return Err(error),
                Err(Interrupted::Wire(error)) => {
                    self.source.give_back();
                    // The guest does not wait for another connection.
                    self.resume();
                    self.connection = None;
                    tries += 1;
                    let forgotten = matches!(error, WireError::Forgotten { .. });
                    if tries >= self.settings.tries || forgotten {
                        return Err(MigrateError::Failed { round: round.number, tries, error });
                    }
                }
            }
        }
    }

    /// Begins under a new identity, with every page in the log.
    fn begin(&mut self) -> Result<(), MigrateError<G::Error>> {
        // If this fails, nothing is known.
        self.known = None;
        self.number = 1;
        self.source.give_back();
        self.source.mark_all().map_err(MigrateError::Guest)?;
        self.known = Some(self.source.session().begin());
        Ok(())
    }

    fn next_round(&self) -> Round {
        Round {
            number: self.number,
            received: false,
            last: false,
            told: 0,
            sent: Sent::default(),
            took: Duration::ZERO,
            written_in: None,
            slowed_down: self.slowed_down,
        }
    }

    /// Harvests and sends a round, over a new connection if there is none.
    fn attempt(&mut self, round: &mut Round) -> Result<(), Interrupted<G::Error>> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.open()?,
        };
        // After a failed attempt, and where it begins anew, the harvest has older pages too.
        let afresh = self.rounds.last().is_some_and(|round| round.received) && self.number > 1;
        self.since = Instant::now();
        let mut words = self.source.harvest().map_err(Interrupted::guest)?;
        // If this is the last round, the halted guest is harvested once more.
        let last = self.number >= self.settings.max_rounds || self.fits(pages(&words), self.since.elapsed());
        self.halting = Instant::now();
        if last {
            self.source.halt().map_err(Interrupted::guest)?;
            self.halted = true;
            self.source.give_back();
            words = self.source.harvest().map_err(Interrupted::guest)?;
        } else {
            self.converge(pages(&words));
        }
        self.since = Instant::now();
        let before = self.harvested.replace(self.since);
        *round = Round {
            last,
            told: pages(&words),
            written_in: before.filter(|_| afresh).map(|before| self.since - before),
            ..self.next_round()
        };
        let connection = self.connection.insert(connection);
        let Some(known) = &mut self.known else { unreachable!("`open` needs one") };
        let harvest = (&self.announced, words.as_slice());
        let receipt = connection.round(self.source, known, harvest, self.settings.bandwidth, round)?;
        if last {
            // Before it is sent: if the stream panics, it may have arrived.
            self.settled = true;
            let sent = connection.send(Frame::Go);
            self.settled = sent.is_ok();
            sent?;
        }
        known.confirm(receipt);
        Ok(())
    }

    /// Opens a connection, and agrees with the receiver about what is complete there. If it does not have what it has
    /// confirmed, the migration begins anew.
    fn open(&mut self) -> Result<Writing<S>, Interrupted<G::Error>> {
        let mut connection = Writing::new((self.connect)()?);
        loop {
            let Some(known) = &mut self.known else { unreachable!("`run` has begun") };
            connection.greet(known, &self.ranges)?;
            let (ticket, last, has) = Reading::new(connection.stream()).offer()?;
            if known.agrees(has, last) {
                // Noted before it is sent: it may arrive even if this side sees an error.
                known.begins(ticket);
                connection.send(Frame::Begin(ticket))?;
                Reading::new(connection.stream()).welcome()?;
                known.welcome(ticket);
                return Ok(connection);
            }
            if self.anew >= self.settings.tries {
                return Err(WireError::Forgotten { has, confirmed: known.confirmed }.into());
            }
            self.anew += 1;
            self.begin().map_err(Interrupted::Over)?;
        }
    }

    /// Whether this many pages can be harvested and sent within the downtime, at the speed of the last round.
    fn fits(&self, pages: u64, harvest: Duration) -> bool {
        let Some(round) = self.rounds.iter().rfind(|round| round.received) else { return false };
        let bytes_per_s = round.sent.bytes as f64 / round.took.as_secs_f64();
        let left = self.settings.downtime.saturating_sub(harvest);
        (pages * PAGE_SIZE) as f64 <= bytes_per_s * left.as_secs_f64()
    }

    /// Slows the guest down if `pages` is more than half of the last round's pages.
    fn converge(&mut self, pages: u64) {
        let [first, more, most] = SLOW_DOWN;
        let writes_too_fast =
            self.rounds.last().is_some_and(|round| round.received && pages > round.told / 2);
        if self.settings.auto_converge && writes_too_fast && self.slowed_down < most {
            self.slowed_down = if self.slowed_down == 0 { first } else { most.min(self.slowed_down + more) };
            self.source.slow_down(self.slowed_down);
        }
    }

    /// After an error: lets the guest run as before, and makes harvested pages dirty again.
    fn undo(&mut self, cancelled: bool) {
        self.source.give_back();
        self.resume();
        self.full_speed();
        self.settled = true;
        if let Some(connection) = self.connection.as_mut().filter(|_| cancelled) {
            // An unreachable receiver cannot be told.
            let _ = connection.send(Frame::Cancel);
        }
    }
}

impl<G: Source, S: Read + Write, C> Migration<'_, G, S, C> {
    fn resume(&mut self) {
        if std::mem::take(&mut self.halted) {
            self.source.resume();
        }
    }

    fn full_speed(&mut self) {
        if std::mem::take(&mut self.slowed_down) > 0 {
            self.source.slow_down(0);
        }
    }
}

/// After a panic of the source or of a stream, the guest runs here as before, unless it may have left.
impl<G: Source, S: Read + Write, C> Drop for Migration<'_, G, S, C> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let steps: [fn(&mut Self); 3] = [|it| it.source.give_back(), Self::resume, Self::full_speed];
        for step in steps {
            // A second panic would end the process, with the guest halted. The first one is told.
            let _ = catch_unwind(AssertUnwindSafe(|| step(self)));
        }
    }
}

#[cfg(test)]
#[path = "precopy_tests.rs"]
mod tests;
