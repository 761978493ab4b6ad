//! A device, and what carries out its requests: the kernel's ring, or threads.

use super::device::{Bytes, PAGE, SwapDevice};
use super::request::{Request, Requests, ThreadPool, Way};
use super::ring::Ring;
use std::ptr::NonNull;
use std::sync::Arc;

/// A device, and what asks it.
#[derive(Debug)]
pub(super) struct Port {
    device: Arc<dyn SwapDevice>,
    /// Where it is a file and the kernel lets itself be asked.
    ring: Option<Ring>,
    pool: Arc<ThreadPool>,
}

impl Port {
    /// Of this device; with the kernel's help, if that is wanted and can be had.
    pub(super) fn new(device: Arc<dyn SwapDevice>, ring: bool) -> Self {
        let ring = if ring && device.file().is_some() { Ring::new() } else { None };
        Self { device, ring, pool: Arc::default() }
    }

    /// Whether the kernel is asked.
    pub(super) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Begins to write these pages to these blocks, or to read them, which are in order: neighbours are one request. A block is
    /// where it lies on the device, in pages.
    ///
    /// # Safety
    /// Until the requests are done the pages stay, no other thread writes to them, and none reads them where they are read in.
    pub(super) unsafe fn begin(&self, way: Way, pages: &[(u32, NonNull<Bytes>)]) -> Requests {
        let runs = pages.chunk_by(|one, next| one.0 + 1 == next.0);
        let request = |run: &[(u32, NonNull<Bytes>)]| {
            let pages = run.iter().map(|&(_, page)| page).collect();
            // SAFETY: the caller's word.
            unsafe { Request::new(self.device.clone(), way, u64::from(run[0].0) * PAGE as u64, pages) }
        };
        let requests: Vec<_> = runs.map(request).collect();
        // The thread that waits begins with the first.
        match (&self.ring, self.device.file(), requests.get(1..).unwrap_or_default()) {
            (_, _, []) => {}
            _ if seeded!(OneAtATime) => {}
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
