//! Signals that ask for an end: Ctrl-C, SIGTERM, SIGHUP.
//!
//! The first one asks: what looks at [`asked`] ends with what it has. A process that is still there after a second and a half,
//! or is asked again, is ended here, and its [temporary files](crate::temporary) are removed.

use crate::error::Error;
use crate::temporary;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// From the first signal to the end of the process.
const PATIENCE: Duration = Duration::from_millis(1500);

static ASKED: AtomicBool = AtomicBool::new(false);
static SIGNAL: AtomicI32 = AtomicI32::new(SIGINT);

/// Hears signals from now on: the first thing that a program does.
pub fn hear() -> Result<(), Error> {
    let failed = |error| Error::Machine(format!("signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let waits = move || {
        let Some(signal) = signals.forever().next() else { return };
        SIGNAL.store(signal, Relaxed);
        ask();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && signals.pending().next().is_none() {
            thread::sleep(Duration::from_millis(10));
        }
        temporary::remove_all();
        std::process::exit(128 + signal);
    };
    thread::Builder::new().name("signals".into()).spawn(waits).map_err(failed)?;
    Ok(())
}

/// True from the first signal on.
pub fn flag() -> &'static AtomicBool {
    &ASKED
}

/// As if Ctrl-C were pressed: for a screen, which reads the keys itself.
pub fn ask() {
    ASKED.store(true, Relaxed);
}

/// Whether an end was asked for.
pub fn asked() -> bool {
    ASKED.load(Relaxed)
}

/// The exit status of a command that was asked to end: 128 and the number of the signal, as shells have it.
pub fn status() -> ExitCode {
    ExitCode::from((128 + SIGNAL.load(Relaxed)) as u8)
}
