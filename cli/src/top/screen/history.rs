//! The last sample, its rates, and as much of the past as a screen can show.

use crate::sample::{Heat, Sample};
use crate::top::rates::Rates;
use std::collections::VecDeque;

/// More rows than any terminal has.
const PAST: usize = 512;

/// The samples seen so far.
#[derive(Default)]
pub struct History {
    pub now: Sample,
    pub rates: Rates,
    /// Faults per second, newest first.
    pub faults: VecDeque<f64>,
    /// Maps of guest memory with their times, newest first.
    pub maps: VecDeque<(u64, Heat)>,
}

impl History {
    /// Adds the next sample.
    pub fn add(&mut self, sample: Sample) {
        self.rates = Rates::between(&self.now, &sample);
        self.faults.push_front(self.rates.faults);
        self.faults.truncate(PAST);
        self.maps.push_front((sample.at_ms, sample.heat.clone()));
        self.maps.truncate(PAST);
        self.now = sample;
    }
}
