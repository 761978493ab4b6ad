//! What has been seen: the last sample, what happens in a second, and as much of the past as a screen can show.

use crate::top::rates::Rates;
use crate::top::sample::{Heat, Sample};
use std::collections::VecDeque;

/// More than a terminal is wide or high.
const PAST: usize = 512;

/// See the module's header.
#[derive(Default)]
pub struct History {
    pub now: Sample,
    pub rates: Rates,
    /// Faults in a second, newest first.
    pub faults: VecDeque<f64>,
    /// Maps of guest memory and when they were made, newest first.
    pub maps: VecDeque<(u64, Heat)>,
}

impl History {
    /// The next sample.
    pub fn add(&mut self, sample: Sample) {
        self.rates = Rates::between(&self.now, &sample);
        self.faults.push_front(self.rates.faults);
        self.faults.truncate(PAST);
        self.maps.push_front((sample.at_ms, sample.heat.clone()));
        self.maps.truncate(PAST);
        self.now = sample;
    }
}
