//! A device, with the kernel's ring or the threads that execute its requests.

use super::device::{Bytes, PAGE, SwapDevice};
use super::request::{Direction, Request, Requests, ThreadPool};
use super::ring::Ring;
use std::ptr::NonNull;
use std::sync::Arc;

/// One device and the executor of its requests.
#[derive(Debug)]
pub(super) struct Port {
    device: Arc<dyn SwapDevice>,
    /// Present if the device is a file and the kernel supports it.
    ring: Option<Ring>,
    pool: Arc<ThreadPool>,
}

impl Port {
    /// Wraps this device, with a ring if wanted and available.
    pub(super) fn new(device: Arc<dyn SwapDevice>, ring: bool) -> Self {
        let ring = if ring && device.file().is_some() { Ring::new() } else { None };
        Self { device, ring, pool: Arc::default() }
    }

    /// Whether requests go to the kernel.
    pub(super) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Starts to write these pages to these blocks, or to read them. The blocks, numbered in pages, are in
    /// order; neighbours form one request.
    ///
    /// # Safety
    /// Until the requests are done the pages stay allocated, and no other thread writes to them, or reads them
    /// during a read.
    pub(super) unsafe fn begin(&self, direction: Direction, pages: &[(u32, NonNull<Bytes>)]) -> Requests {
        let runs = pages.chunk_by(|one, next| one.0 + 1 == next.0);
        let request = |run: &[(u32, NonNull<Bytes>)]| {
            let pages = run.iter().map(|&(_, page)| page).collect();
            // SAFETY: the caller keeps the condition.
            unsafe { Request::new(self.device.clone(), direction, u64::from(run[0].0) * PAGE as u64, pages) }
        };
        let requests: Vec<_> = runs.map(request).collect();
        // The waiting thread executes the first request itself.
        match (&self.ring, self.device.file(), requests.get(1..).unwrap_or_default()) {
            (_, _, []) => {}
            (Some(ring), Some((file, start)), others) => ring.submit(file, start, others),
            (_, _, others) => self.pool.submit(others),
        }
        Requests(requests)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.pool.end();
    }
}
