//! Progress: on standard error, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use std::fmt::Display;
use std::io::{IsTerminal, stderr};

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

/// Who listens to [`say`], if not the terminal.
static LISTENER: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// One line about what goes on.
pub fn say(line: impl Display) {
    match &*LISTENER.lock() {
        Some(bar) => bar.set_message(line.to_string()),
        None if stderr().is_terminal() => eprintln!("{line}"),
        None => {}
    }
}

/// From now on what is [said](say) is this bar's message, which has one line; until it is told `None`.
pub fn listen(bar: Option<ProgressBar>) {
    *LISTENER.lock() = bar;
}
