//! Decides when a slow read is issued a second time.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Number of reads in a window; the typical time is that of the last one or two windows.
const WINDOW: u64 = 256;
/// Most second reads at once.
const BURST: f64 = 8.0;

/// Times of reads, and the budget of second reads.
#[derive(Debug)]
pub struct Hedge {
    times: Histogram<u64>,
    /// 95th percentile of the previous window.
    typical: Option<Duration>,
    /// Number of second reads that may be made now.
    budget: f64,
}

impl Default for Hedge {
    fn default() -> Self {
        let times = Histogram::new_with_max(1_000_000_000, 2).expect("these are bounds");
        Self { times, typical: None, budget: BURST }
    }
}

impl Hedge {
    /// Returns the time after which a read is issued again: the 95th percentile, but at least `least`.
    pub fn delay(&self, least: Duration) -> Duration {
        self.typical.map_or(least * 10, |typical| typical * 3 / 2).max(least)
    }

    /// Notes a successful read, which adds `share` of a second read to the budget.
    pub fn note(&mut self, took: Duration, share: f64) {
        self.budget = (self.budget + share).min(BURST);
        self.times.saturating_record(took.as_micros() as u64);
        if self.times.len() >= WINDOW || self.typical.is_none() && self.times.len() >= 16 {
            self.typical = Some(Duration::from_micros(self.times.value_at_quantile(0.95)));
            self.times.reset();
        }
    }

    /// Takes a second read from the budget. Returns whether there was one.
    pub fn take(&mut self) -> bool {
        let may = self.budget >= 1.0;
        self.budget -= f64::from(u8::from(may));
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_follows_the_typical_read_and_few_reads_are_repeated() {
        let (ms, mut hedge) = (Duration::from_millis, Hedge::default());
        assert_eq!(hedge.delay(ms(5)), ms(50));
        (0..400).for_each(|read| hedge.note(ms(if read % 50 == 0 { 900 } else { 20 }), 0.05));
        let delay = hedge.delay(ms(5));
        assert!(delay > ms(29) && delay < ms(32), "{delay:?}");
        (0..400).for_each(|_| hedge.note(ms(1), 0.05));
        assert_eq!(hedge.delay(ms(5)), ms(5));
        let taken = (0..1000).filter(|_| {
            hedge.note(ms(1), 0.05);
            hedge.take()
        });
        assert!((50..=58).contains(&taken.count()));
    }
}
