//! Descriptors of other processes. Closing one may take long: the file system may be the sender's own, and a TCP socket may
//! linger. So a thread of its own closes them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of threads that close descriptors.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Most such threads before a daemon accepts no further connection.
pub(crate) const MOST_CLOSING: usize = 256;

/// Descriptors of another process, or connections that may hold some in their buffers.
#[derive(Debug, Default)]
pub(crate) struct Foreign(pub Vec<OwnedFd>);

impl Foreign {
    /// Takes the descriptors out.
    pub fn take(mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0)
    }
}

impl From<OwnedFd> for Foreign {
    fn from(fd: OwnedFd) -> Self {
        Self(vec![fd])
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let fds = std::mem::take(&mut self.0);
        if fds.is_empty() {
            return;
        }
        CLOSING.fetch_add(1, Ordering::Relaxed);
        let close = move || {
            drop(fds);
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("close".into()).stack_size(64 << 10).spawn(close).is_err() {
            // The descriptors were closed here.
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns the number of threads that close descriptors.
pub(crate) fn closing() -> usize {
    CLOSING.load(Ordering::Relaxed)
}
