//! The progress bar of a migration.

use indicatif::ProgressBar;
use slat_cli::bar::bar;

/// How far a round is, in pages.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar, or nothing where it is not wanted or not a terminal.
    pub fn new() -> Self {
        Self(bar(Some(0), "{prefix} [{bar:40}] {human_pos} of {human_len} pages, {elapsed}"))
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
