//! Progress bars: on standard error, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar up to `len`, if that is known, or nothing where it is not wanted or not a terminal.
pub fn bar(wanted: bool, len: Option<u64>, template: &str) -> ProgressBar {
    // With this target indicatif stays silent by itself where standard error is no terminal.
    let target = if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(len, target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
