//! The swap devices by priority. The first fails, is sometimes full, and recovers.

use crate::stage::Mistake;
use slat::PAGE_SIZE;
use slat_mm::{Arena, Swap, SwapDevice};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

/// Pages and priority of each device. The first is tried first, and is too small for everything. The next two
/// are used in turn.
const DEVICES: [(u64, i16); 4] = [(256, 9), (512, 5), (512, 5), (4096, 1)];

/// A device. It is sometimes slow, and lets other threads run.
#[derive(Debug, Default)]
pub struct Disk {
    bytes: Mutex<Vec<u8>>,
    /// In each group of this many writes, the first two fail and one in the middle finds no room. 0: no write
    /// fails.
    fails_each: u64,
    /// A mistake: the device reports a write, and discards it.
    forgets: bool,
    writes: AtomicU64,
    /// The number of writes that failed, and that succeeded.
    failed: AtomicU64,
    recovered: AtomicU64,
}

/// Builds a swap with all the devices, and with memory for a few compressed pages.
pub fn build(arena: &Arc<Arena>, mistake: Mistake) -> (Arc<Swap>, Arc<Disk>) {
    // Where guests may write to free frames, no frame may be the swap's.
    let memory = if mistake.spoils_frames() { 0 } else { PAGE_SIZE };
    let forgets = mistake == Mistake::KeepsNothing;
    let first = Arc::new(Disk { fails_each: 64, forgets, ..Disk::default() });
    let mut swap = Swap::builder().memory(memory);
    for (at, (pages, priority)) in DEVICES.into_iter().enumerate() {
        let bytes = pages * PAGE_SIZE;
        swap = if at == 0 { swap.device(first.clone(), bytes) } else { swap.device(Disk::default(), bytes) };
        swap = swap.priority(priority);
    }
    (swap.build(arena).unwrap(), first)
}

impl Disk {
    /// Whether the device has failed and has stored pages.
    pub fn has_recovered(&self) -> bool {
        self.failed.load(Relaxed) > 0 && self.recovered.load(Relaxed) > 0
    }
}

impl SwapDevice for Disk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let number = self.writes.fetch_add(1, Relaxed);
        (0..=number % 8).for_each(|_| thread::yield_now());
        let errno = match number.checked_rem(self.fails_each) {
            Some(0 | 1) => Some(libc::EIO),
            Some(at) if at == self.fails_each / 2 => Some(libc::ENOSPC),
            _ => None,
        };
        if let Some(errno) = errno {
            self.failed.fetch_add(1, Relaxed);
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.recovered.fetch_add(1, Relaxed);
        let mut disk = self.bytes.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let len = disk.len().max(end);
        disk.resize(len, 0);
        if !self.forgets {
            disk[start..end].copy_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        thread::yield_now();
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
        Ok(bytes.len())
    }
}
