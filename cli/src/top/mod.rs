//! `slat top`: a live view of a running guest: faults, flushes, and the age of its memory.
//!
//! ```text
//! slat run --top          the run itself ─┐
//!                                         ├─▶ samples ─▶ rates ─▶ a screen, lines, or JSON
//! slat top PATH      its socket, `watch` ─┘
//! ```
//! | file | idea |
//! |---|---|
//! | `sample` | what a run says: sums, as one line of JSON |
//! | `source` | where samples come from, and how it ends |
//! | `rates` | two samples → what happens in a second |
//! | `words` | figures as people read them |
//! | `lines` | a line for each sample: where there is no terminal |
//! | `screen` | the terminal (with the feature `top`) |

mod lines;
mod rates;
pub mod sample;
#[cfg(feature = "top")]
mod screen;
mod source;
mod words;

use crate::error::Error;
use crate::run::Samples;
use lines::Lines;
use source::{Local, Remote, Source};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// Watch a running `slat run`: faults, flushes by cause, memory by size and age, and which of it is in use
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  slat run -q --serve /tmp/guest & slat top /tmp/guest
  slat run --top
  slat top /tmp/guest --interval 2 | tee guest.log
  slat top /tmp/guest -n 1 --json | jq .per_s.flushes_by

On a terminal it draws a screen; the last line lists the keys. Elsewhere, or with TERM=dumb, it prints one line per
sample. NO_COLOR is respected.

Exit status: 0 the run has ended, or -n samples were printed; 2 no run to watch; 130 interrupted.
Time: as long as the run, or -n samples. Memory: 10 MiB.")]
pub struct Top {
    /// Socket of `slat run --serve PATH` or `--lru-gen PATH`
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Seconds between two samples
    #[arg(long, value_name = "SECS", default_value = "0.5", value_parser = interval)]
    interval: Duration,

    /// Number of samples [default: until the run ends]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,

    /// Print one JSON object per sample: sums since the run began, and under `per_s` rates since the previous sample
    #[arg(long)]
    json: bool,

    /// Negative control: panic after the first screen. The terminal must be restored
    #[arg(long, hide = true)]
    sabotage_screen: bool,
}

/// The options of a view.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "top"), allow(dead_code, reason = "lines cannot be told to come more often"))]
struct Wanted {
    /// The interval between samples, until a key changes it.
    every: Duration,
    /// Number of samples; `None` for all.
    most: Option<u64>,
    /// Negative control: panic after the first screen.
    sabotaged: bool,
}

/// Why a view has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The run has ended.
    Run,
    /// The connection to the run was lost.
    Lost,
    /// The wanted number of samples was shown, or the user quit.
    Enough,
    /// A signal arrived.
    Interrupted,
}

impl Top {
    /// Watches until the run or the user ends the view.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let wanted = Wanted { every: self.interval, most: self.samples, sabotaged: self.sabotage_screen };
        let mut source = Remote::connect(&self.path, wanted.every)?;
        let mut lines = Lines::new(self.json);
        let end = if !self.json && can_draw(&io::stdout()) {
            draw(&mut source, io::stdout, wanted)?
        } else {
            print(&mut source, &mut io::stdout(), wanted, &mut lines)?
        };
        match end {
            End::Run if crate::bar::is_quiet() => {}
            End::Run => eprintln!("slat: the run has ended"),
            End::Lost => eprintln!("slat: the run is gone: it was killed, or it has crashed"),
            End::Enough => {}
            End::Interrupted => return Ok(crate::interrupt::status()),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Watches a run of this process on standard error. Standard output belongs to the report.
pub fn beside<'scope>(scope: &'scope Scope<'scope, '_>, samples: &'scope dyn Samples) -> Beside<'scope> {
    let (keep, ends) = channel();
    let thread = crate::thread::start(scope, move || {
        let wanted = Wanted { every: INTERVAL, most: None, sabotaged: false };
        let Some(mut source) = Local::new(samples, wanted.every, ends) else { return };
        let mut lines = Lines::new(false);
        let end = if can_draw(&io::stderr()) {
            draw(&mut source, io::stderr, wanted)
        } else {
            print(&mut source, &mut io::stderr(), wanted, &mut lines)
        };
        // A failed view does not end the run.
        if let Ok(End::Interrupted) = end {
            crate::interrupt::ask();
        }
    });
    Beside { keep: Some(keep), thread: Some(thread) }
}

/// The default interval in seconds.
const INTERVAL: Duration = Duration::from_millis(500);

/// A view beside a run. Drop ends the view and waits until the terminal is restored.
#[must_use = "dropping it ends the view"]
pub struct Beside<'scope> {
    keep: Option<Sender<()>>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        drop(self.keep.take());
        // A panic of the view has been printed; the run continues.
        let _ = self.thread.take().map(ScopedJoinHandle::join);
    }
}

/// Returns whether `out` is a terminal that can show a screen.
fn can_draw(out: &impl IsTerminal) -> bool {
    cfg!(feature = "top") && out.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

#[cfg(feature = "top")]
use screen::draw;

#[cfg(not(feature = "top"))]
fn draw<W: Write>(source: &mut dyn Source, open: fn() -> W, wanted: Wanted) -> Result<End, Error> {
    print(source, &mut open(), wanted, &mut Lines::new(false))
}

/// Prints one line per sample.
fn print(
    source: &mut dyn Source,
    out: &mut dyn Write,
    wanted: Wanted,
    lines: &mut Lines,
) -> Result<End, Error> {
    let mut seen = 0;
    loop {
        if crate::interrupt::asked() {
            return Ok(End::Interrupted);
        }
        let Some(item) = source.next(Duration::from_millis(100))? else { continue };
        let (sample, end) = match item {
            source::Item::Sample(sample) if sample.ended => (Some(sample), Some(End::Run)),
            source::Item::Sample(sample) => (Some(sample), None),
            source::Item::Lost => (None, Some(End::Lost)),
        };
        if let Some(sample) = sample {
            writeln!(out, "{}", lines.line(&sample))?;
            out.flush()?;
            seen += 1;
        }
        if let Some(end) = end {
            return Ok(end);
        }
        if wanted.most.is_some_and(|most| seen >= most) {
            return Ok(End::Enough);
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("from 0.05 to 3600 seconds".into())
    }
}
