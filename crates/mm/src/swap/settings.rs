//! Settings of swap.

use super::Swap;
use super::blocks::{Blocks, DeviceState};
use super::copy_table::CopyTable;
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

/// Builds a [`Swap`]. Pages go to memory first, if any; pages that do not compress or fit there go to files and
/// devices, if any. Without either, only zero pages can be swapped out.
#[derive(Debug)]
#[must_use]
pub struct SwapBuilder {
    memory: u64,
    devices: Vec<(Device, i16)>,
    keep_copies: bool,
    read_ahead: u8,
    ring: bool,
}

impl Default for SwapBuilder {
    fn default() -> Self {
        Self { memory: 0, devices: Vec::new(), keep_copies: true, read_ahead: 8, ring: true }
    }
}

/// Most files and devices of a swap.
const MAX_DEVICES: usize = 32;

/// A file or device.
#[derive(Debug)]
enum Device {
    /// With a flag: overwrite whatever it holds.
    File(PathBuf, bool),
    Other(Arc<dyn SwapDevice>, u64),
}

impl Swap {
    /// Starts building swap.
    pub fn builder() -> SwapBuilder {
        SwapBuilder::default()
    }
}

impl SwapBuilder {
    /// Keeps compressed pages in frames of the arena, up to this many bytes; none by default. If the arena has
    /// no free frame, pages go to files and devices.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Adds a file. Building the swap opens it, or creates it with access for this user only. It grows as
    /// needed. Dropping the swap truncates it, and removes it if it was created. An existing file must be
    /// empty, or left by a swap whose process was killed.
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.add(Device::File(path.into(), false))
    }

    /// Adds a file whose contents are overwritten, whatever they are.
    pub fn overwrite(self, path: impl Into<PathBuf>) -> Self {
        self.add(Device::File(path.into(), true))
    }

    /// Adds a device of this many bytes, rounded down to blocks of 4 KiB.
    pub fn device(self, device: impl SwapDevice + 'static, bytes: u64) -> Self {
        self.add(Device::Other(Arc::new(device), bytes))
    }

    /// Adds a file or device with a lower priority than the earlier ones.
    fn add(mut self, device: Device) -> Self {
        let lowest = self.devices.iter().map(|(_, priority)| *priority).min().unwrap_or(0);
        self.devices.push((device, lowest.min(0).saturating_sub(1)));
        self
    }

    /// Sets the priority of the last file or device. Pages go to the one with the highest priority that has
    /// room, and round-robin to those with equal priority. By default each comes after those added before it.
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

    /// Sets the most pages that one access reads from a device, if neighbours read earlier were used; 8 by
    /// default, 1 to read only what is needed.
    pub fn read_ahead(mut self, pages: u8) -> Self {
        self.read_ahead = pages;
        self
    }

    /// Whether batches of a file's blocks go to the kernel at once (`io_uring`), if it supports that. On by
    /// default.
    pub fn ring(mut self, on: bool) -> Self {
        self.ring = on;
        self
    }

    /// Whether files and devices that are half empty keep the copy of a page that came back, until the page is
    /// written or removed. If it is swapped out before, it need not be stored again. On by default.
    pub fn keep_copies(mut self, on: bool) -> Self {
        self.keep_copies = on;
        self
    }

    /// Builds an empty swap for pages of this arena.
    ///
    /// # Errors
    /// [`MmError::SwapInUse`] if another swap uses the file; [`MmError::NotSwap`] and [`MmError::NotAFile`] if
    /// the path holds something else; [`MmError::Os`] if it cannot be opened; [`MmError::TooManyDevices`]
    /// above 32.
    pub fn build(self, arena: &Arc<Arena>) -> Result<Arc<Swap>, MmError> {
        let (mut ports, mut device_states) = (Vec::new(), Vec::new());
        for (device, priority) in self.devices {
            let (device, bytes): (Arc<dyn SwapDevice>, u64) = match device {
                Device::Other(device, bytes) => (device, bytes),
                Device::File(path, overwrite) => {
                    let (file, bytes) = SwapFile::open(&path, overwrite)?;
                    (Arc::new(file), bytes)
                }
            };
            if ports.len() == MAX_DEVICES {
                return Err(MmError::TooManyDevices);
            }
            ports.push(Port::new(device, self.ring));
            let blocks = Blocks::new(u32::try_from(bytes / PAGE_SIZE).unwrap_or(u32::MAX));
            device_states.push(DeviceState { priority, blocks, is_failing: false });
        }
        Ok(Arc::new(Swap {
            arena: arena.clone(),
            memory: self.memory > 0,
            ports,
            keep_copies: self.keep_copies,
            read_ahead: self.read_ahead,
            table: Mutex::new(CopyTable::new(Pool::new(self.memory / PAGE_SIZE), device_states)),
        }))
    }
}
