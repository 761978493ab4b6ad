//! How swap is set up.

use super::Swap;
use super::blocks::{Blocks, Room};
use super::books::Books;
use super::device::SwapDevice;
use super::pool::Pool;
use super::port::Port;
use super::swap_file::SwapFile;
use crate::arena::Arena;
use crate::error::MmError;
use parking_lot::Mutex;
use slat::PAGE_SIZE;
use std::path::PathBuf;
use std::sync::Arc;

/// Builds a [`Swap`]. Pages go to memory first, if there is any, and what does not compress or fit there to a file or
/// device, if there are any. With none of them, pages of zeroes can be swapped out.
#[derive(Debug)]
#[must_use]
pub struct SwapBuilder {
    memory: u64,
    devices: Vec<(Device, i16)>,
    keep_copies: bool,
    read_ahead: u8,
    ring: bool,
    sabotage: Sabotage,
}

impl Default for SwapBuilder {
    fn default() -> Self {
        Self {
            memory: 0,
            devices: Vec::new(),
            keep_copies: true,
            read_ahead: 8,
            ring: true,
            sabotage: Sabotage::None,
        }
    }
}

/// Files and devices of a swap, at most.
const MOST: usize = 32;

/// Negative controls: what is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(hidden)]
pub enum Sabotage {
    /// Nothing.
    #[default]
    None,
    /// Whether the entry still says what it said, once the device is done.
    LookAgain,
    /// That a page was written, of which a copy is kept.
    NoteWrites,
}

/// Where pages go that do not go to memory.
#[derive(Debug)]
enum Device {
    /// And whether it is overwritten whatever it holds.
    File(PathBuf, bool),
    Other(Arc<dyn SwapDevice>, u64),
}

impl SwapBuilder {
    /// Keeps compressed pages in up to so many bytes of frames of the arena; none unless said otherwise. Where the arena
    /// has no frame left either, pages go to the file.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Uses this file, beside others: opened when the swap is built, made if there is none, readable by this user only. It grows as
    /// needed. When the swap is dropped it is emptied, and removed if it was made. One that is there must be empty, or
    /// be what a process that was killed has left of such a swap.
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.add(Device::File(path.into(), false))
    }

    /// The same whatever the file holds, which is lost.
    pub fn overwrite(self, path: impl Into<PathBuf>) -> Self {
        self.add(Device::File(path.into(), true))
    }

    /// Uses this device, beside others, of so many bytes, rounded down to blocks of 4 KiB.
    pub fn device(self, device: impl SwapDevice + 'static, bytes: u64) -> Self {
        self.add(Device::Other(Arc::new(device), bytes))
    }

    /// Each goes after those before it, unless it is said otherwise.
    fn add(mut self, device: Device) -> Self {
        let lowest = self.devices.iter().map(|(_, priority)| *priority).min().unwrap_or(0);
        self.devices.push((device, lowest.min(0).saturating_sub(1)));
        self
    }

    /// The priority of the last file or device that was said. Pages go to that with the highest as long as there is room; to
    /// several with the same in turn. Where none is said each is used after those said before it.
    ///
    /// ```
    /// # use slat_mm::*;
    /// # let at = |name| std::env::temp_dir().join(format!("slat-mm-{name}-{}", std::process::id()));
    /// let arena = Arena::builder().limit(16 << 20).build()?;
    /// let swap = Swap::builder().file(at("slow")).file(at("one")).priority(5).file(at("other")).priority(5);
    /// let swap = swap.build(&arena)?;
    /// # Ok::<(), MmError>(())
    /// ```
    pub fn priority(mut self, priority: i16) -> Self {
        if let Some((_, is)) = self.devices.last_mut() {
            *is = priority;
        }
        self
    }

    /// So many pages are read from a device at once, at most, where an access wants one and lately its neighbours were used; 8
    /// unless said otherwise, and 1 for no more than what is wanted.
    pub fn read_ahead(mut self, pages: u8) -> Self {
        self.read_ahead = pages;
        self
    }

    /// Whether the kernel is asked for many blocks of a file at once (`io_uring`), where it offers that. On unless said otherwise.
    pub fn ring(mut self, on: bool) -> Self {
        self.ring = on;
        self
    }

    /// Whether the file or device, while it is half empty, keeps the copy of a page that came back, until the page is
    /// written or has gone: so long it can go again without being stored. On unless said otherwise.
    pub fn keep_copies(mut self, on: bool) -> Self {
        self.keep_copies = on;
        self
    }

    /// Negative control: something is left out. Whatever proves that it matters must fail under this.
    #[doc(hidden)]
    pub fn sabotage(mut self, what: Sabotage) -> Self {
        self.sabotage = what;
        self
    }

    /// Swap for pages of this arena, with nothing in it.
    ///
    /// # Errors
    /// [`MmError::SwapInUse`] where another swap uses the file; [`MmError::NotSwap`] and [`MmError::NotAFile`] where what
    /// is there is something else; [`MmError::Os`] where it cannot be had; [`MmError::TooManyDevices`] beyond 32.
    pub fn build(self, arena: &Arc<Arena>) -> Result<Arc<Swap>, MmError> {
        let (mut ports, mut rooms) = (Vec::new(), Vec::new());
        for (device, priority) in self.devices {
            let (device, bytes): (Arc<dyn SwapDevice>, u64) = match device {
                Device::Other(device, bytes) => (device, bytes),
                Device::File(path, overwrite) => {
                    let (file, bytes) = SwapFile::open(&path, overwrite)?;
                    (Arc::new(file), bytes)
                }
            };
            if ports.len() == MOST {
                return Err(MmError::TooManyDevices);
            }
            ports.push(Port::new(device, self.ring));
            let blocks = Blocks::new(u32::try_from(bytes / PAGE_SIZE).unwrap_or(u32::MAX));
            rooms.push(Room { priority, blocks, is_troubled: false });
        }
        Ok(Arc::new(Swap {
            arena: arena.clone(),
            memory: self.memory > 0,
            ports,
            keep_copies: self.keep_copies,
            read_ahead: self.read_ahead,
            sabotage: self.sabotage,
            books: Mutex::new(Books::new(Pool::new(self.memory / PAGE_SIZE), rooms)),
        }))
    }
}
