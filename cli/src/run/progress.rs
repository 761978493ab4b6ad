//! The progress bar of a run.

use crate::bar::bar;
use indicatif::ProgressBar;
use std::time::Duration;

/// Accesses so far and their rate. Traces are streams, so their length is unknown.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar; hidden if unwanted or if standard error is not a terminal.
    pub fn new(wanted: bool) -> Self {
        if !wanted {
            return Self(ProgressBar::hidden());
        }
        let bar = bar(None, "{spinner} {elapsed} {human_pos} accesses, {rate}");
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Adds accesses.
    pub fn add(&self, accesses: u64) {
        self.0.inc(accesses);
    }

    /// Clears the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
