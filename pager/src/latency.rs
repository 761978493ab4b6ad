//! Times of faults, by source.

use crate::cache::Source;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Times from the read of a fault until its page was present.
#[derive(Debug)]
pub(crate) struct Latencies([Mutex<Histogram<u64>>; Source::ALL.len()]);

/// Times of the faults from one source, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Number of faults.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Longest time.
    pub most: u64,
}

impl Latencies {
    pub fn new() -> Self {
        // Up to 100 s, with 3 digits.
        Self(
            Source::ALL
                .map(|_| Mutex::new(Histogram::new_with_max(100_000_000_000, 3).expect("these are bounds"))),
        )
    }

    pub fn record(&self, source: Source, took: Duration) {
        self.0[source as usize].lock().saturating_record(took.as_nanos() as u64);
    }

    /// Returns the times of each source, with its name.
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
