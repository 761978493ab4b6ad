//! The progress bar of a migration.

use indicatif::ProgressBar;
use slat_cli::bar::bar;
use slat_migrate::Progress;

/// How far a round is, in pages.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar, or nothing where it is not wanted or not a terminal.
    pub fn new() -> Self {
        Self(bar(Some(0), "{prefix} [{bar:40}] {human_pos} of {human_len} pages, {elapsed}"))
    }

    /// A round is as far as that.
    pub fn at(&self, progress: Progress) {
        if progress.sent == 0 {
            self.0.reset();
            self.0.set_length(progress.pages);
            self.0.set_prefix(format!("round {}", progress.round));
        }
        self.0.set_position(progress.sent);
    }

    /// Takes it away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
