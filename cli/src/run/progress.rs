//! The progress bar: on standard error, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Accesses so far, and how fast they go. Traces are streams: nobody knows their end.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar, or nothing where it is not wanted or not a terminal.
    pub fn new(wanted: bool) -> Self {
        // With this target indicatif stays silent by itself where standard error is no terminal.
        let target = if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = "{spinner} {elapsed} {human_pos} accesses, {per_sec}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        if wanted {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self(bar)
    }

    /// So many more.
    pub fn add(&self, accesses: u64) {
        self.0.inc(accesses);
    }

    /// Takes it away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
