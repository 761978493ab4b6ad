//! `slat top`: a live view of a running guest: faults, flushes, and the age of its memory.
//!
//! ```text
//! slat run --top          the run itself ─┐
//!                                         ├─▶ samples ─▶ rates ─▶ a screen, lines, or JSON
//! slat top PATH      its socket, `watch` ─┘
//! ```
//! | file | contents |
//! |---|---|
//! | `options` | the options of a view, and the reasons for its end |
//! | `source` | sources of samples: this process, or a socket |
//! | `rates` | rates per second, from two samples |
//! | `figure_text` | figures with three digits and a unit |
//! | `lines` | one line per sample, where there is no terminal |
//! | `screen` | the terminal (with the feature `top`) |

mod figure_text;
mod lines;
mod options;
mod rates;
#[cfg(feature = "top")]
mod screen;
mod source;

use crate::error::Error;
use crate::sample::Samples;
use crate::size::seconds;
use crate::thread::{Worker, start_worker};
use lines::Lines;
use options::{End, Wanted};
use source::{Item, Local, Remote, Source};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::Scope;
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
    #[arg(long, value_name = "SECS", default_value = "0.5", value_parser = |text: &str| seconds(text, 0.05, 3600.0))]
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

impl Top {
    /// Watches until the run or the user ends the view.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let wanted = Wanted { every: self.interval, most: self.samples, sabotaged: self.sabotage_screen };
        let mut source = Remote::connect(&self.path, wanted.every)?;
        match show(&mut source, io::stdout, wanted, self.json)? {
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
pub fn beside<'scope>(scope: &'scope Scope<'scope, '_>, samples: &'scope dyn Samples) -> Worker<'scope, ()> {
    start_worker(scope, move |stop| {
        let wanted = Wanted { every: INTERVAL, most: None, sabotaged: false };
        let Some(mut source) = Local::new(samples, wanted.every, stop) else { return };
        // A failed view does not end the run.
        if let Ok(End::Interrupted) = show(&mut source, io::stderr, wanted, false) {
            crate::interrupt::ask();
        }
    })
}

/// The default interval in seconds.
const INTERVAL: Duration = Duration::from_millis(500);

/// Draws a screen on a terminal that can show one. Elsewhere prints one line per sample.
fn show<W: Write + IsTerminal + 'static>(
    source: &mut dyn Source,
    open: fn() -> W,
    wanted: Wanted,
    json: bool,
) -> Result<End, Error> {
    let mut out = open();
    #[cfg(feature = "top")]
    if !json && out.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb") {
        return screen::draw(source, open, wanted);
    }
    let mut lines = Lines::new(json);
    let mut seen = 0;
    loop {
        if crate::interrupt::asked() {
            return Ok(End::Interrupted);
        }
        let Some(item) = source.next(Duration::from_millis(100))? else { continue };
        let Item::Sample(sample) = item else { return Ok(End::Lost) };
        writeln!(out, "{}", lines.line(&sample))?;
        out.flush()?;
        seen += 1;
        if sample.ended {
            return Ok(End::Run);
        }
        if wanted.most.is_some_and(|most| seen >= most) {
            return Ok(End::Enough);
        }
    }
}
