//! How fast a stream may be: `--bandwidth`.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// A limit, from when it was made.
#[derive(Debug)]
pub struct Pace {
    bytes_per_s: Option<u64>,
    began: Instant,
    sent: u64,
}

impl Pace {
    /// As fast as it goes without one.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, began: Instant::now(), sent: 0 }
    }

    /// So many bytes have been sent: sleeps for as long as they are ahead of time.
    pub fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
        if let Some(limit) = self.bytes_per_s {
            let due = Duration::from_secs_f64(self.sent as f64 / limit as f64);
            sleep(due.saturating_sub(self.began.elapsed()));
        }
    }
}
