//! Times of faults, by source: histograms that threads write without a lock.

use crate::cache::Source;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first bucket has times up to this power of two, in nanoseconds: 1.024 µs.
const FIRST: u32 = 10;
/// The last bucket has times over this power of two: 68.7 s.
const LAST: u32 = 36;
/// Number of buckets between two powers of two.
const PARTS: usize = 4;
const BUCKETS: usize = 2 + (LAST - FIRST) as usize * PARTS;

/// A histogram of times. To record one costs two relaxed additions. Each guest has its own, so its threads seldom meet.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    /// Sum of the times, in nanoseconds.
    sum: AtomicU64,
}

/// Returns the bucket of a time. A time on the bound of two buckets belongs to the lower one.
fn bucket(nanos: u64) -> usize {
    let below = nanos.saturating_sub(1);
    match below.checked_ilog2() {
        Some(power) if power >= LAST => BUCKETS - 1,
        Some(power) if power >= FIRST => {
            let part = (below >> (power - 2)) as usize % PARTS;
            1 + (power - FIRST) as usize * PARTS + part
        }
        _ => 0,
    }
}

/// Returns the upper bound of a bucket, in nanoseconds. The last one has none.
fn bound(bucket: usize) -> Option<u64> {
    let (power, part) = match bucket.checked_sub(1) {
        None => return Some(1 << FIRST),
        Some(above) => (FIRST + (above / PARTS) as u32, (above % PARTS) as u64),
    };
    (power < LAST).then(|| (PARTS as u64 + part + 1) << (power - 2))
}

impl Histogram {
    pub fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }

    pub fn record(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.counts[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Adds its times to `times`.
    pub fn add_to(&self, times: &mut Times) {
        for (to, count) in times.counts.iter_mut().zip(&self.counts) {
            *to += count.load(Ordering::Relaxed);
        }
        times.sum += self.sum.load(Ordering::Relaxed);
    }
}

/// The content of histograms at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    counts: [u64; BUCKETS],
    sum: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl Times {
    /// Adds a time.
    pub fn add(&mut self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.counts[bucket(nanos)] += 1;
        self.sum += nanos;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the times in seconds.
    pub fn seconds(&self) -> f64 {
        self.sum as f64 / 1e9
    }

    /// Returns for each power of two, in seconds, the number of times up to it.
    pub fn up_to(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut sum = 0;
        self.counts.iter().enumerate().filter_map(move |(bucket, count)| {
            sum += count;
            let nanos = bound(bucket)?;
            nanos.is_power_of_two().then_some((nanos as f64 / 1e9, sum))
        })
    }

    /// Returns the time in nanoseconds that this share of the times does not exceed. It lies between the bounds of the
    /// right bucket, which differ by a quarter at most.
    fn quantile(&self, share: f64) -> u64 {
        let (mut before, rank) = (0, share * self.count() as f64);
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if (before + count) as f64 >= rank {
                let low = bucket.checked_sub(1).and_then(bound).unwrap_or(0);
                let high = bound(bucket).unwrap_or(low);
                return low + ((high - low) as f64 * (rank - before as f64) / *count as f64) as u64;
            }
            before += count;
        }
        0
    }
}

/// Times from the read of a fault until its page was present.
#[derive(Debug)]
pub(crate) struct Latencies([Histogram; Source::ALL.len()]);

/// Times of the faults from one source, in nanoseconds. Percentiles are exact to a quarter.
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
}

impl Latencies {
    pub fn new() -> Self {
        Self(Source::ALL.map(|_| Histogram::new()))
    }

    pub fn record(&self, source: Source, took: Duration) {
        self.0[source as usize].record(took);
    }

    /// Adds the times of each source.
    pub fn add_to(&self, times: &mut [Times; Source::ALL.len()]) {
        self.0.iter().zip(times).for_each(|(from, to)| from.add_to(to));
    }

    /// Returns the times of each source, with its name.
    pub fn all(&self) -> Vec<(String, Latency)> {
        Source::ALL.map(|source| (source.name().to_owned(), self.read(source))).to_vec()
    }

    fn read(&self, source: Source) -> Latency {
        let mut times = Times::default();
        self.0[source as usize].add_to(&mut times);
        let quantile = |share| times.quantile(share);
        Latency { count: times.count(), p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_between_whose_bounds_it_lies() {
        let mut edges: Vec<u64> = (0..BUCKETS).filter_map(bound).collect();
        assert!(edges.is_sorted() && edges.len() == BUCKETS - 1 && *edges.last().unwrap() == 1 << LAST);
        edges.extend([0, 1, 999, 1_000_000, 123_456_789, u64::MAX - 1]);
        for nanos in edges.into_iter().flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1]) {
            let bucket = bucket(nanos);
            let low = bucket.checked_sub(1).and_then(bound);
            assert!(low.is_none_or(|low| low < nanos), "{nanos} in {bucket}");
            assert!(bound(bucket).is_none_or(|high| nanos <= high), "{nanos} in {bucket}");
        }
    }

    #[test]
    fn percentiles_are_exact_to_a_quarter_and_sums_are_exact() {
        let (histogram, mut times) = (Histogram::new(), Times::default());
        let all: Vec<u64> = (1..=1000).map(|number| number * number * 50).collect();
        for nanos in &all {
            histogram.record(Duration::from_nanos(*nanos));
        }
        histogram.add_to(&mut times);
        for share in [0.01, 0.5, 0.99, 0.999] {
            let (right, found) = (all[(share * 1000.0) as usize - 1] as f64, times.quantile(share) as f64);
            assert!((found / right - 1.0).abs() < 0.25 || right < 1024.0, "{share}: {found} for {right}");
        }
        assert_eq!((times.count(), times.sum), (1000, all.iter().sum()));
        let up_to: Vec<_> = times.up_to().collect();
        for (seconds, count) in &up_to {
            let nanos = (seconds * 1e9).round() as u64;
            assert_eq!(all.iter().filter(|time| **time <= nanos).count() as u64, *count);
        }
        assert_eq!(up_to.len() as u32, LAST - FIRST + 1);
    }
}
