//! Descriptors of other processes. Closing one may take long: the file system may be the sender's own, and a TCP socket may
//! linger. So threads of their own close them, and nothing waits for those threads.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Most threads that close descriptors. Further descriptors stay open until one of the threads is free.
const MOST_THREADS: usize = 256;

struct Closing {
    waiting: VecDeque<Vec<OwnedFd>>,
    threads: usize,
}

static CLOSING: Mutex<Closing> = Mutex::new(Closing { waiting: VecDeque::new(), threads: 0 });

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
        let mut closing = CLOSING.lock();
        closing.waiting.push_back(fds);
        if closing.threads < MOST_THREADS {
            // If no thread can be started, the next drop tries again.
            let thread = std::thread::Builder::new().name("close".into()).stack_size(64 << 10).spawn(close);
            closing.threads += usize::from(thread.is_ok());
        }
    }
}

/// Closes descriptors while some wait.
fn close() {
    loop {
        let mut closing = CLOSING.lock();
        let Some(fds) = closing.waiting.pop_front() else {
            closing.threads -= 1;
            return;
        };
        drop(closing);
        drop(fds);
    }
}
