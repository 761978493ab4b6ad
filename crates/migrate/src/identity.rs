//! The identity of a migration, and what the sender knows of the receiver's share of it.
//!
//! A dirty log forgets a page once the receiver has confirmed it. So the log alone does not describe the guest: the log
//! **and** the receiver's memory do. A [`Session`] names that receiver's memory. It belongs beside the log, and says which
//! migration the log's missing pages were sent in, and how far the receiver had confirmed them. Each connection compares
//! both with the receiver. If they differ, or nothing is known, the migration begins anew: under a new identity, with
//! every page.

use crate::frame::Receipt;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Most receipts that a session keeps of rounds that were sent and not confirmed.
const MOST_SENT: usize = 32;

/// Stands for no ticket.
pub(crate) const NO_TICKET: u128 = 0;

/// Numbers that are never drawn twice, on any machine.
pub(crate) struct Nonces(Option<Box<dyn FnMut() -> u128 + Send>>);

impl Nonces {
    /// Numbers made from the operating system's random numbers.
    pub(crate) const RANDOM: Self = Self(None);

    /// Numbers that `next` returns.
    pub(crate) fn from_fn(next: impl FnMut() -> u128 + Send + 'static) -> Self {
        Self(Some(Box::new(next)))
    }

    pub(crate) fn next(&mut self) -> u128 {
        // A `RandomState` has a key of 128 bits from the operating system, which differs for each value.
        let random = || u128::from(RandomState::new().build_hasher().finish());
        self.0.as_mut().map_or_else(|| random() << 64 | random(), |next| next())
    }
}

impl fmt::Debug for Nonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Nonces(given)" } else { "Nonces(random)" })
    }
}

/// The progress of a dirty log's migration, as its receiver has confirmed it. Keep one **beside each log**, and nowhere
/// else: a source with another log needs another session. [`VmLog`](crate::VmLog) has its own, and forgets the receiver
/// if marks of its log may be lost. For another log, call [`forget`](Self::forget) then.
///
/// A new session is always right: the migration then begins anew and sends every page. So a sender that was killed needs
/// to store nothing. If a sender's process is copied by a snapshot, each copy finds out that the other has sent something.
///
/// ```
/// use slat_migrate::Session;
/// let session = Session::new();
/// assert_eq!(session.identity(), None, "no migration has begun");
/// ```
#[derive(Debug)]
pub struct Session {
    nonces: Nonces,
    known: Option<Known>,
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// A session of which no receiver knows anything. Identities come from the operating system's random numbers.
    pub const fn new() -> Self {
        Self { nonces: Nonces::RANDOM, known: None }
    }

    /// A session whose identities come from `next`, for tests. No number may be returned twice, in any session of any
    /// sender that reaches the same receiver.
    pub fn with_nonces(next: impl FnMut() -> u128 + Send + 'static) -> Self {
        Self { nonces: Nonces::from_fn(next), known: None }
    }

    /// Returns the identity of the migration that can be continued; `None` if the next [`PreCopy::send`] begins anew.
    ///
    /// [`PreCopy::send`]: crate::PreCopy::send
    pub fn identity(&self) -> Option<u128> {
        self.known.as_ref().map(|known| known.identity)
    }

    /// Forgets the receiver: the next [`PreCopy::send`](crate::PreCopy::send) begins anew. Call it if marks of the log were
    /// lost.
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// A copy, as a snapshot of the sender's process makes one.
    #[cfg(test)]
    pub(crate) fn copied(&self) -> Self {
        Self { nonces: Nonces::RANDOM, known: self.known.clone() }
    }

    /// Takes what is known. While a call of `send` runs, the session knows nothing: if the call panics, the next one begins
    /// anew.
    pub(crate) fn take(&mut self) -> Option<Known> {
        self.known.take()
    }

    pub(crate) fn set(&mut self, known: Known) {
        self.known = Some(known);
    }

    /// Begins a migration under a new identity.
    pub(crate) fn begin(&mut self) -> Known {
        Known {
            identity: self.nonces.next(),
            confirmed: Receipt::default(),
            sent: Vec::new(),
            tickets: Vec::new(),
        }
    }
}

/// The knowledge of a sender about its migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) identity: u128,
    /// The last confirmed round.
    pub(crate) confirmed: Receipt,
    /// Attempts at the next round that were sent whole, and may have arrived.
    sent: Vec<Receipt>,
    /// The tickets of the connections of which one was this sender's last to begin.
    tickets: Vec<u128>,
}

impl Known {
    /// Notes that all of a round has been sent. Its confirmation may be lost.
    pub(crate) fn sends(&mut self, receipt: Receipt) {
        keep(&mut self.sent, receipt);
    }

    /// Notes that a connection begins with this ticket. The receiver may not hear of it.
    pub(crate) fn begins(&mut self, ticket: u128) {
        keep(&mut self.tickets, ticket);
    }

    /// Notes that the receiver has heard of it.
    pub(crate) fn welcome(&mut self, ticket: u128) {
        self.tickets = vec![ticket];
    }

    /// Notes that the receiver has confirmed a round.
    pub(crate) fn confirm(&mut self, receipt: Receipt) {
        self.confirmed = receipt;
        self.sent.clear();
    }

    /// Whether a receiver whose last complete round is `has`, and whose last connection had the ticket `last`, lacks only
    /// pages that the log has. A copy of this sender, restored from a snapshot, has the same identity: it has begun
    /// connections of its own, which may have sent a part of a round.
    pub(crate) fn agrees(&self, has: Receipt, last: u128) -> bool {
        let own = last == NO_TICKET || self.tickets.contains(&last);
        own && (has == self.confirmed || self.sent.contains(&has))
    }
}

/// Adds an item. Without the oldest one, the sender begins anew if that is the one that arrived.
fn keep<T>(items: &mut Vec<T>, item: T) {
    if items.len() >= MOST_SENT {
        items.remove(0);
    }
    items.push(item);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn receipt(round: u64, sum: u64) -> Receipt {
        Receipt { round, pages: 1, sum }
    }

    #[test]
    fn identities_differ_in_every_session() {
        let drawn: HashSet<u128> = (0..1000).map(|_| Session::new().begin().identity).collect();
        assert_eq!(drawn.len(), 1000);
        let mut session = Session::new();
        let drawn: HashSet<u128> = (0..1000).map(|_| session.begin().identity).collect();
        assert_eq!(drawn.len(), 1000);
        assert!((0..64).all(|bit| drawn.iter().any(|nonce| nonce >> (64 + bit) & 1 == 1)), "128 bits");
    }

    #[test]
    fn a_receiver_agrees_with_the_confirmed_round_or_an_attempt_at_the_next() {
        let mut known = Session::with_nonces(|| 7).begin();
        assert!(known.agrees(Receipt::default(), NO_TICKET) && known.identity == 7);
        known.sends(receipt(1, 10));
        known.sends(receipt(1, 11));
        assert!(
            known.agrees(receipt(1, 10), NO_TICKET)
                && known.agrees(receipt(1, 11), NO_TICKET)
                && known.agrees(Receipt::default(), NO_TICKET)
        );
        assert!(!known.agrees(receipt(1, 12), NO_TICKET), "another sender's round");
        known.confirm(receipt(1, 11));
        assert!(
            !known.agrees(receipt(1, 10), NO_TICKET) && !known.agrees(Receipt::default(), NO_TICKET),
            "restarted"
        );
        (0..100).for_each(|sum| known.sends(receipt(2, sum)));
        assert!(
            !known.agrees(receipt(2, 0), NO_TICKET)
                && known.agrees(receipt(2, 99), NO_TICKET)
                && known.agrees(receipt(1, 11), NO_TICKET)
        );
    }

    #[test]
    fn a_receiver_whose_last_connection_was_anothers_does_not_agree() {
        let mut known = Session::with_nonces(|| 7).begin();
        known.begins(1);
        known.begins(2);
        let none = Receipt::default();
        assert!([NO_TICKET, 1, 2].iter().all(|&last| known.agrees(none, last)) && !known.agrees(none, 3));
        known.welcome(2);
        assert!(known.agrees(none, 2) && !known.agrees(none, 1));
    }
}
