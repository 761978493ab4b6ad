//! The scanner's thread.

use super::scan::Balancer;
use parking_lot::{Condvar, Mutex};
use slat::Idle;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A thread that scans [`scan_bytes`](super::Settings::scan_bytes) every [`period`](super::Settings::period).
/// Dropping this waits for its current scan, and ends it.
#[derive(Debug)]
#[must_use = "dropping it stops the thread"]
pub struct Scanner {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Scanner {
    /// Starts the thread. The first scan comes after the first period.
    pub fn start(balancer: Balancer) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            // A new thread always has one.
            let Some(mut idle) = Idle::take() else { return };
            let (flag, changed) = &*stopped;
            loop {
                let mut stop = flag.lock();
                changed.wait_while_for(&mut stop, |stop| !*stop, balancer.settings().period);
                if *stop {
                    return;
                }
                drop(stop);
                // A lack of memory may be temporary; the pages come up again.
                let _ = balancer.scan(&mut idle, balancer.settings().scan_bytes);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        let (flag, changed) = &*self.stop;
        *flag.lock() = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its own thread.
            let _ = thread.join();
        }
    }
}
