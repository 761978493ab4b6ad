//! The progress bar: on standard error, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a round is, in pages.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar, or nothing where it is not wanted or not a terminal.
    pub fn new(wanted: bool) -> Self {
        // With this target indicatif stays silent by itself where standard error is no terminal.
        let target = if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = "{prefix} [{bar:40}] {human_pos} of {human_len} pages, {elapsed}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    /// A round of so many pages begins.
    pub fn round(&self, number: u64, pages: u64) {
        self.0.reset();
        self.0.set_length(pages);
        self.0.set_prefix(format!("round {number}"));
    }

    /// So many pages more have been sent.
    pub fn sent(&self, pages: u64) {
        self.0.inc(pages);
    }

    /// Takes it away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
