//! How swap is set up.

use super::Swap;
use super::books::{Blocks, Books};
use super::device::{SwapDevice, SwapFile};
use super::pool::Pool;
use crate::arena::Arena;
use crate::error::MmError;
use parking_lot::Mutex;
use slat::PAGE_SIZE;
use std::path::PathBuf;
use std::sync::Arc;

/// Builds a [`Swap`]. Pages go to memory first, if there is any, and what does not compress or fit there to the file or
/// device, if there is one. With neither, pages of zeroes can be swapped out.
#[derive(Debug)]
#[must_use]
pub struct SwapBuilder {
    memory: u64,
    second: Option<Second>,
    keep_copies: bool,
    sabotage: Sabotage,
}

impl Default for SwapBuilder {
    fn default() -> Self {
        Self { memory: 0, second: None, keep_copies: true, sabotage: Sabotage::None }
    }
}

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
enum Second {
    /// And whether it is overwritten whatever it holds.
    File(PathBuf, bool),
    Device(Box<dyn SwapDevice>, u64),
}

impl SwapBuilder {
    /// Keeps compressed pages in up to so many bytes of frames of the arena; none unless said otherwise. Where the arena
    /// has no frame left either, pages go to the file.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Uses this file: opened when the swap is built, made if there is none, readable by this user only. It grows as
    /// needed. When the swap is dropped it is emptied, and removed if it was made. One that is there must be empty, or
    /// be what a process that was killed has left of such a swap.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.second = Some(Second::File(path.into(), false));
        self
    }

    /// The same whatever the file holds, which is lost.
    pub fn overwrite(mut self, path: impl Into<PathBuf>) -> Self {
        self.second = Some(Second::File(path.into(), true));
        self
    }

    /// Uses this device, of so many bytes, rounded down to blocks of 4 KiB.
    pub fn device(mut self, device: impl SwapDevice + 'static, bytes: u64) -> Self {
        self.second = Some(Second::Device(Box::new(device), bytes));
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
    /// is there is something else; [`MmError::Os`] where it cannot be had.
    pub fn build(self, arena: &Arc<Arena>) -> Result<Arc<Swap>, MmError> {
        let (device, bytes) = match self.second {
            None => (None, 0),
            Some(Second::Device(device, bytes)) => (Some(device), bytes),
            Some(Second::File(path, overwrite)) => {
                let (file, bytes) = SwapFile::open(&path, overwrite)?;
                (Some(Box::new(file) as Box<dyn SwapDevice>), bytes)
            }
        };
        let blocks = u32::try_from(bytes / PAGE_SIZE).unwrap_or(u32::MAX);
        Ok(Arc::new(Swap {
            arena: arena.clone(),
            memory: self.memory > 0,
            device,
            keep_copies: self.keep_copies,
            sabotage: self.sabotage,
            books: Mutex::new(Books::new(Pool::new(self.memory / PAGE_SIZE), Blocks::new(blocks))),
        }))
    }
}
