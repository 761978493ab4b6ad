//! Progress on standard error. Nothing is drawn where standard error is not a terminal.

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use std::fmt::{self, Display};
use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// True after `--quiet`: no progress is printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Turns `--quiet` on or off.
pub fn quiet(quiet: bool) {
    QUIET.store(quiet, Relaxed);
}

/// Returns whether progress is off.
pub fn is_quiet() -> bool {
    QUIET.load(Relaxed)
}

/// A progress bar up to `len`, where the length is known. The bar is hidden where standard error is not a terminal,
/// progress is off, or another bar [receives messages](listen).
pub fn bar(len: Option<u64>, template: &str) -> ProgressBar {
    let wanted = !is_quiet() && LISTENER.lock().is_none();
    // indicatif draws nothing to this target where standard error is not a terminal.
    let target = if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    on(target, len, template)
}

fn on(target: ProgressDrawTarget, len: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(len, target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.with_key("rate", rate).progress_chars("=> "));
    }
    bar
}

/// `{rate}`: whole units per second. indicatif's own key prints four decimals.
fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    // A bar that cannot be drawn is left out.
    let _ = write!(out, "{}/s", HumanCount(state.per_sec().round() as u64));
}

/// The bar that shows what [`say`] prints, instead of the terminal.
static LISTENER: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Prints one line of progress.
pub fn say(line: impl Display) {
    match &*LISTENER.lock() {
        Some(bar) => bar.set_message(line.to_string()),
        None if stderr().is_terminal() && !is_quiet() => eprintln!("{line}"),
        None => {}
    }
}

/// Makes this bar show the [messages](say), one line each. `None` gives them back to the terminal.
pub fn listen(bar: Option<ProgressBar>) {
    *LISTENER.lock() = bar;
}

#[cfg(test)]
mod tests {
    use super::{Mutex, ProgressDrawTarget, on};
    use indicatif::TermLike;
    use std::io::Result;
    use std::sync::Arc;
    use std::time::Duration;

    /// The text that was written last.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> Result<()> {
            self.0.lock().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            self.0.lock().clear();
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_rate_has_whole_units() {
        let screen = Screen::default();
        let bar =
            on(ProgressDrawTarget::term_like(Box::new(screen.clone())), None, "{human_pos} of it, {rate}");
        for done in [7_000_001, 13_333_333, 1_000_000_007] {
            std::thread::sleep(Duration::from_millis(1));
            bar.set_position(done);
        }
        bar.abandon();
        let line = screen.0.lock().clone();
        let rate = line.trim().strip_prefix("1,000,000,007 of it, ").and_then(|rate| rate.strip_suffix("/s"));
        let digits = rate.unwrap_or_else(|| panic!("{line}")).replace(',', "");
        assert!(digits.parse::<u64>().is_ok_and(|rate| rate > 0), "{line}");
    }
}
