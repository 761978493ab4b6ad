//! How long faults took, by where their pages came from.

use crate::cache::Source;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Times from the moment in which a fault was read to that in which its page was there.
#[derive(Debug)]
pub(crate) struct Latencies([Mutex<Histogram<u64>>; Source::ALL.len()]);

/// Times of the faults from one source, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50: u64,
    /// 99% did.
    pub p99: u64,
    /// 99.9% did.
    pub p999: u64,
    /// The longest one.
    pub most: u64,
}

impl Latencies {
    pub fn new() -> Self {
        // Up to 100 s, to 3 digits.
        Self(
            Source::ALL
                .map(|_| Mutex::new(Histogram::new_with_max(100_000_000_000, 3).expect("these are bounds"))),
        )
    }

    pub fn record(&self, source: Source, took: Duration) {
        self.0[source as usize].lock().saturating_record(took.as_nanos() as u64);
    }

    /// Of each source, with its name.
    pub fn all(&self) -> Vec<(String, Latency)> {
        Source::ALL.map(|source| (source.name().to_owned(), self.read(source))).to_vec()
    }

    fn read(&self, source: Source) -> Latency {
        let times = self.0[source as usize].lock();
        let quantile = |quantile| times.value_at_quantile(quantile);
        let (count, most) = (times.len(), if times.is_empty() { 0 } else { times.max() });
        Latency { count, p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999), most }
    }
}
