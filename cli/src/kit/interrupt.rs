//! Signals that end the command: SIGINT (Ctrl-C), SIGTERM, SIGHUP.
//!
//! After the first signal [`asked`] is true, and each loop of the command ends with the results it has. After 1.5 s,
//! or at the second signal, the signal thread removes the [temporary files](crate::temporary) and ends the process.

use crate::error::Error;
use crate::temporary;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The time from the first signal to the end of the process.
const PATIENCE: Duration = Duration::from_millis(1500);

static ASKED: AtomicBool = AtomicBool::new(false);
static SIGNAL: AtomicI32 = AtomicI32::new(SIGINT);

/// Starts the signal thread. A program calls this first.
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

/// The flag that the first signal sets.
pub fn flag() -> &'static AtomicBool {
    &ASKED
}

/// Sets the flag as Ctrl-C does. A screen calls this, because it reads the keys itself.
pub fn ask() {
    ASKED.store(true, Relaxed);
}

/// Returns whether a signal has arrived.
pub fn asked() -> bool {
    ASKED.load(Relaxed)
}

/// The exit status of an interrupted command: 128 plus the signal's number, as in shells.
pub fn status() -> ExitCode {
    ExitCode::from((128 + SIGNAL.load(Relaxed)) as u8)
}
