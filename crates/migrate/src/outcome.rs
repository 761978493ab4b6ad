//! The result of a migration, with its rounds.

use std::time::Duration;

/// Counts of a round's sent pages and bytes, whether or not they were received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Zero pages.
    pub zeroes: u64,
    /// Bytes written to the stream.
    pub bytes: u64,
}

/// One attempt at a round.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Round {
    /// Number of the round, from 1. A failed attempt and the next one have the same number. Back to 1 if the migration
    /// begins anew.
    pub number: u64,
    /// Whether the receiver confirmed it.
    pub received: bool,
    /// Whether the guest was halted.
    pub last: bool,
    /// Pages of the harvest; 0 if no connection could be opened.
    pub told: u64,
    /// The sent pages and bytes.
    pub sent: Sent,
    /// Time from the harvest to the confirmation or failure.
    pub took: Duration,
    /// Time in which the pages were written, if known.
    pub written_in: Option<Duration>,
    /// Share of time that auto-converge took from the guest, in percent.
    pub slowed_down: u8,
}

/// Result of a migration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// All rounds in order, including failed attempts. The last was sent while the guest was halted.
    pub rounds: Vec<Round>,
    /// Time to start the log with every page; zero if the migration was continued.
    pub enable: Duration,
    /// Time from the first harvest until the receiver had everything.
    pub total: Duration,
    /// Time from the call of `halt` until the receiver had everything: the downtime without the receiver's time
    /// to run the guest.
    pub halted: Duration,
}
