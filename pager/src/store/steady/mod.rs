//! A wrapper for a store behind a network. It repeats failed calls, issues slow reads twice, and keeps threads from
//! asking a store that is down.
//!
//! The libraries for this are asynchronous; the pager's threads block.

mod breaker;
mod hedge;
mod pool;

use super::{Entry, Store, StoreError, Version};
use breaker::{Breaker, Limits, Turn};
use hedge::Hedge;
use parking_lot::Mutex;
use pool::Pool;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Options of the calls.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SteadyOptions {
    /// Most tries of a call.
    pub tries: u32,
    /// Pause before the second try; it doubles each time, and varies by half.
    pub pause: Duration,
    /// Least time after which a slow read is issued a second time, if it takes longer than 19 of 20 reads. The first
    /// answer counts. `None`: no read is issued twice.
    pub hedge: Option<Duration>,
    /// One of this many reads may be issued twice, on average.
    pub hedge_one_of: u32,
    /// Number of failures in a row after which no call is made for a while.
    pub break_after: u32,
    /// Length of that pause: the first one, and the longest.
    pub break_for: (Duration, Duration),
}

impl Default for SteadyOptions {
    fn default() -> Self {
        Self {
            tries: 5,
            pause: Duration::from_millis(20),
            hedge: Some(Duration::from_millis(10)),
            hedge_one_of: 10,
            break_after: 10,
            break_for: (Duration::from_millis(200), Duration::from_secs(2)),
        }
    }
}

/// Counters of the calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct StoreStats {
    /// Requested reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Other requested calls.
    pub others: u64,
    /// Failed tries.
    pub failures: u64,
    /// Repeated tries after a failure.
    pub retries: u64,
    /// Reads issued a second time because they were slow.
    pub hedges: u64,
    /// Second reads that answered first.
    pub hedges_won: u64,
    /// Number of times that the breaker opened.
    pub breaks: u64,
    /// Calls that the open breaker refused.
    pub refused: u64,
    /// True if the breaker is open now.
    pub is_down: bool,
}

/// A clock. Tests have their own.
pub trait Clock: Send + Sync {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;
    /// Waits.
    fn sleep(&self, time: Duration);
}

struct Real(Instant);

impl Clock for Real {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A store whose calls are repeated if that may help. A clone of the value refers to the same store.
#[derive(Clone)]
pub struct Steady(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    options: SteadyOptions,
    clock: Arc<dyn Clock>,
    breaker: Mutex<Breaker>,
    /// The last failure of a call, and its time.
    last: Mutex<(String, Duration)>,
    hedge: Mutex<Hedge>,
    pool: Pool,
    reads: AtomicU64,
    bytes: AtomicU64,
    others: AtomicU64,
    failures: AtomicU64,
    retries: AtomicU64,
    hedges: AtomicU64,
    hedges_won: AtomicU64,
    breaks: AtomicU64,
    refused: AtomicU64,
}

impl Steady {
    /// Wraps this store.
    pub fn new(store: impl Store + 'static, options: SteadyOptions) -> Self {
        Self::by(store, options, Arc::new(Real(Instant::now())))
    }

    /// The same with another clock.
    #[doc(hidden)]
    pub fn by(store: impl Store + 'static, options: SteadyOptions, clock: Arc<dyn Clock>) -> Self {
        let zero = || AtomicU64::new(0);
        Self(Arc::new(Inner {
            store: Arc::new(store),
            options,
            clock,
            breaker: Mutex::default(),
            last: Mutex::default(),
            hedge: Mutex::default(),
            pool: Pool::default(),
            reads: zero(),
            bytes: zero(),
            others: zero(),
            failures: zero(),
            retries: zero(),
            hedges: zero(),
            hedges_won: zero(),
            breaks: zero(),
            refused: zero(),
        }))
    }

    /// Returns the last failure of a call, with its object.
    pub fn last_failure(&self) -> String {
        self.0.last.lock().0.clone()
    }

    /// Returns whether the breaker is open, and a call has failed within this time. Without calls an open breaker says
    /// nothing about the store.
    pub(crate) fn is_failing(&self, within: Duration) -> bool {
        let is_recent = self.0.clock.now().saturating_sub(self.0.last.lock().1) < within;
        is_recent && self.0.breaker.lock().is_open()
    }

    /// Reads an object once. It counts for nothing: success with one object must not hide failures with others.
    pub(crate) fn probe(&self, key: &str, most: usize) -> Result<(), StoreError> {
        self.0.store.read(key, most).map(drop)
    }

    /// Counters of the calls.
    pub fn stats(&self) -> StoreStats {
        let inner = &*self.0;
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        StoreStats {
            reads: read(&inner.reads),
            bytes: read(&inner.bytes),
            others: read(&inner.others),
            failures: read(&inner.failures),
            retries: read(&inner.retries),
            hedges: read(&inner.hedges),
            hedges_won: read(&inner.hedges_won),
            breaks: read(&inner.breaks),
            refused: read(&inner.refused),
            is_down: inner.breaker.lock().is_open(),
        }
    }
}

/// Returns whether the store has answered by an error: it is full or read-only. To repeat the call is no use, and other
/// calls may succeed.
fn is_answer(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

/// Increments a counter. Returns its old value.
fn count(number: &AtomicU64) -> u64 {
    number.fetch_add(1, Ordering::Relaxed)
}

impl Inner {
    /// Makes a call, and repeats it up to `tries` times while the failure may pass.
    fn call<T>(
        &self,
        key: &str,
        tries: u32,
        mut call: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let limits = Limits {
            failures: self.options.break_after,
            pause: self.options.break_for.0,
            most: self.options.break_for.1,
        };
        for tried in 1.. {
            let turn = self.breaker.lock().begin(self.clock.now());
            let turn = turn.map_err(|_| {
                count(&self.refused);
                let what = format!("the store is out of reach: {}", self.last.lock().0);
                let error = io::Error::new(io::ErrorKind::NotConnected, what);
                StoreError::Io { key: key.into(), error }
            })?;
            // If the call panics, others may try.
            let mut ends = Ends { inner: self, limits: &limits, turn, is_good: false };
            let result = call();
            let passes = matches!(&result, Err(StoreError::Io { error, .. }) if !is_answer(error));
            ends.is_good = !passes;
            drop(ends);
            if !passes {
                return result;
            }
            if let Err(error) = &result {
                *self.last.lock() = (error.to_string(), self.clock.now());
            }
            let failures = count(&self.failures);
            if tried >= tries {
                return result;
            }
            count(&self.retries);
            // From half of the pause to all of it, so that calls that failed together do not repeat together.
            let pause = self.options.pause * (1 << (tried - 1).min(10)) / 16;
            self.clock.sleep(pause * (8 + (failures as u32).wrapping_mul(2_654_435_761) % 9));
        }
        unreachable!("the last try returns")
    }
}

/// A call that is under way.
struct Ends<'a> {
    inner: &'a Inner,
    limits: &'a Limits,
    turn: Turn,
    is_good: bool,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let now = self.inner.clock.now();
        if self.inner.breaker.lock().end(self.turn, self.is_good, now, self.limits) {
            count(&self.inner.breaks);
        }
    }
}

type Read = Result<(Vec<u8>, Version), StoreError>;

impl Steady {
    /// Makes one read, and maybe a second one.
    fn read_once(&self, key: &str, most: usize) -> Read {
        let inner = &self.0;
        let Some(least) = inner.options.hedge else { return inner.store.read(key, most) };
        let began = inner.clock.now();
        let (send, answers) = sync_channel::<(bool, Read)>(2);
        let ask = |second: bool| {
            let (send, store, key) = (send.clone(), inner.store.clone(), key.to_owned());
            inner.pool.run(move || _ = send.send((second, store.read(&key, most))))
        };
        let io = |error| StoreError::Io { key: key.into(), error };
        ask(false).map_err(io)?;
        let delay = inner.hedge.lock().delay(least);
        let mut asked = 1;
        let mut answer = match answers.recv_timeout(delay) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => return Err(io(io::Error::other("a read panicked"))),
            Err(RecvTimeoutError::Timeout) => {
                if inner.hedge.lock().take() && ask(true).is_ok() {
                    count(&inner.hedges);
                    asked = 2;
                }
                answers.recv().map_err(|_| io(io::Error::other("a read panicked")))?
            }
        };
        if answer.1.is_err() && asked == 2 {
            // The other read may succeed.
            answer = answers.recv().unwrap_or(answer);
        }
        if answer.1.is_ok() {
            inner.hedges_won.fetch_add(u64::from(answer.0), Ordering::Relaxed);
            let share = 1.0 / f64::from(inner.options.hedge_one_of.max(1));
            inner.hedge.lock().note(inner.clock.now().saturating_sub(began), share);
        }
        answer.1
    }

    fn other<T>(
        &self,
        key: &str,
        call: impl Fn(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        count(&self.0.others);
        self.0.call(key, self.0.options.tries, || call(&*self.0.store))
    }
}

impl Store for Steady {
    fn read(&self, key: &str, most: usize) -> Read {
        count(&self.0.reads);
        let read = self.0.call(key, self.0.options.tries, || self.read_once(key, most))?;
        self.0.bytes.fetch_add(read.0.len() as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.other(key, |store| store.put(key, bytes))
    }

    /// Makes the call once: after an error, only the caller can find out whether the change was made.
    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
        count(&self.0.others);
        self.0.call(key, 1, || self.0.store.put_if(key, bytes, before))
    }

    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
        self.other(kind, |store| store.entries(kind))
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.other(key, |store| store.delete(key))
    }
}
