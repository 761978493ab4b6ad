//! The scanner thread: scans some pages and sleeps, repeatedly.

use super::Ksm;
use crate::error::MmError;
use parking_lot::{Condvar, Mutex};
use slat::Idle;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Number of pages between two checks of the stop flag.
const PART: u64 = 256;

/// A thread that scans. Dropping this waits for it to end, after at most a few pages.
#[derive(Debug)]
#[must_use = "dropping it ends the thread"]
pub struct Scanner {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Stop {
    asked: Mutex<bool>,
    bell: Condvar,
}

impl Ksm {
    /// Starts a thread that scans by the settings.
    pub fn start(self: &Arc<Self>) -> Result<Scanner, MmError> {
        Scanner::start(self)
    }
}

impl Scanner {
    fn start(ksm: &Arc<Ksm>) -> Result<Self, MmError> {
        let stop = Arc::<Stop>::default();
        let (ksm, asked) = (ksm.clone(), stop.clone());
        let run = move || {
            // A new thread always has one.
            let Some(mut idle) = Idle::take() else { return };
            loop {
                let mut left = ksm.settings.pages_to_scan;
                while left > 0 {
                    if *asked.asked.lock() {
                        return;
                    }
                    let part = left.min(PART);
                    ksm.scan(&mut idle, part);
                    left -= part;
                }
                if ksm.settings.sleep.is_zero() {
                    thread::yield_now();
                    continue;
                }
                let mut over = asked.asked.lock();
                if !*over {
                    asked.bell.wait_for(&mut over, ksm.settings.sleep);
                }
            }
        };
        let thread = thread::Builder::new().name("ksm".into()).spawn(run);
        let refused =
            |error: std::io::Error| MmError::Os { call: "clone", errno: error.raw_os_error().unwrap_or(0) };
        Ok(Self { stop, thread: Some(thread.map_err(refused)?) })
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            // A scan does not panic; if it did, its thread printed the report.
            let _ = thread.join();
        }
    }
}
