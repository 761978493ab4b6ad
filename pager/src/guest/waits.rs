//! The faults of a guest that wait: for the store, the swap file, or memory. A fault that is answered at once never
//! comes here.

use parking_lot::Mutex;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// The waiting faults of a guest.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When each fault was read. Which is which does not matter.
    since: Vec<Instant>,
    /// Why the last one that failed has to wait.
    reason: Option<String>,
}

/// Faults that wait at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Number of faults.
    pub faults: u64,
    /// Time since the oldest one was read.
    pub oldest: Duration,
    /// Why one of them waits.
    pub reason: String,
}

impl Waits {
    /// Adds a fault that was read at this time.
    pub fn begin(&self, since: Instant) {
        self.0.lock().since.push(since);
    }

    /// Removes a fault that was read at this time, because it is answered.
    pub fn end(&self, since: Instant) {
        let mut state = self.0.lock();
        if let Some(at) = state.since.iter().position(|other| *other == since) {
            state.since.swap_remove(at);
        }
        if state.since.is_empty() {
            state.reason = None;
        }
    }

    /// Notes why a fault has to wait.
    pub fn because(&self, reason: impl Display) {
        self.0.lock().reason = Some(reason.to_string());
    }

    pub fn count(&self) -> u64 {
        self.0.lock().since.len() as u64
    }

    /// Returns the faults that wait. `None`: none does.
    pub fn now(&self) -> Option<Waiting> {
        let state = self.0.lock();
        let oldest = state.since.iter().min()?.elapsed();
        let reason = state.reason.clone().unwrap_or_else(|| "the store has not answered yet".into());
        Some(Waiting { faults: state.since.len() as u64, oldest, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_fault_counts_until_it_is_answered_and_a_reason_until_none_waits() {
        let (waits, second) = (Waits::default(), Instant::now());
        let first = second.checked_sub(Duration::from_secs(60)).unwrap();
        assert_eq!(waits.now(), None);
        waits.begin(second);
        assert_eq!(waits.now().unwrap().reason, "the store has not answered yet");
        waits.begin(first);
        waits.because("it is down");
        let now = waits.now().unwrap();
        assert_eq!((now.faults, now.oldest.as_secs() >= 60, &*now.reason), (2, true, "it is down"));
        waits.end(first);
        assert!(waits.now().unwrap().oldest < Duration::from_secs(60));
        waits.end(second);
        waits.begin(first);
        assert_eq!(waits.now().unwrap().reason, "the store has not answered yet", "the old reason is over");
    }
}
