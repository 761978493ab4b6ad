//! Builds arenas, on new memory or in an existing file.

use super::Arena;
use crate::error::MmError;
use crate::frames::BLOCK;
use crate::ledger::Ledgers;
use crate::mapping::Mapping;
use crate::nodes::{NodeFrames, real_nodes};
use crate::notes::Notes;
use crate::shards::Shards;
use parking_lot::Mutex;
use slat::{Level, PAGE_SIZE, Span};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Builds an [`Arena`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ArenaBuilder {
    limit: u64,
    nodes: u8,
    poison: Option<u8>,
}

impl ArenaBuilder {
    /// Limits the bytes of all frames, rounded down to blocks of 2 MiB; 1 GiB by default. Frames take no memory
    /// until they are used.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Divides the blocks into this many nodes of consecutive blocks, 1 to 255; 1 by default. On a machine with
    /// several nodes they are bound to those in turn, best effort.
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Fills freed frames with `byte`. For tests and debugging: it writes every freed page.
    pub fn poison(mut self, byte: u8) -> Self {
        self.poison = Some(byte);
        self
    }

    /// Builds the arena, with every frame free.
    pub fn build(self) -> Result<Arc<Arena>, MmError> {
        self.on(Mapping::shared)
    }

    /// Like [`build`](Self::build), in an existing file such as a memfd: see [`Arena::from_fd`]. The file's
    /// length replaces [`limit`](Self::limit).
    ///
    /// # Safety
    /// The conditions of [`Arena::from_fd`].
    pub unsafe fn build_on(self, file: OwnedFd) -> Result<Arc<Arena>, MmError> {
        let len = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as u64);
        let Some(limit) = len.checked_sub(Level::M2.bytes()).filter(|&limit| limit >= Level::M2.bytes())
        else {
            return Err(MmError::BadLimit(len));
        };
        Self { limit, ..self }.on(|len| Mapping::of_file(file, len))
    }

    fn on(self, map: impl FnOnce(usize) -> Result<Mapping, MmError>) -> Result<Arc<Arena>, MmError> {
        let blocks = self.limit / Level::M2.bytes();
        let frames = blocks * BLOCK;
        // A Pfn in an entry has 40 bits.
        if blocks == 0 || frames >> 39 != 0 {
            return Err(MmError::BadLimit(self.limit));
        }
        let count = u64::from(self.nodes);
        if count == 0 || count > blocks {
            return Err(MmError::BadNodes(self.nodes));
        }
        let all = frames + BLOCK;
        let memory = map((all * PAGE_SIZE) as usize)?;
        let nodes =
            (0..count).map(|node| NodeFrames::new(node * blocks / count..(node + 1) * blocks / count));
        let nodes: Box<[NodeFrames]> = nodes.collect();
        bind(&memory, &nodes);
        Ok(Arc::new(Arena {
            memory,
            states: Mapping::anonymous(all as usize * size_of::<AtomicU32>())?,
            notes: Notes::new(all)?,
            ledgers: Box::new(Ledgers::new()),
            nodes,
            frames,
            poison: self.poison,
            table_frames: AtomicU64::new(0),
            stale_writes: AtomicU64::new(0),
            unshared: Shards::new(),
            unmapped: Mutex::default(),
        }))
    }
}

/// Binds each node's memory to a node of the machine, if both have several.
fn bind(memory: &Mapping, nodes: &[NodeFrames]) {
    let real = real_nodes();
    if nodes.len() > 1 && real.len() > 1 {
        for (node, &real) in nodes.iter().zip(real.iter().cycle()) {
            let Span { start, end } = node.frames();
            memory.prefer(start.address() as usize..end.address() as usize, real);
        }
    }
}

impl Arena {
    /// Starts building an arena.
    pub fn builder() -> ArenaBuilder {
        ArenaBuilder { limit: 1 << 30, nodes: 1, poison: None }
    }

    /// Builds an arena in an existing file, such as a memfd, which other processes may have open. Frame `n` is
    /// at offset `n` × 4096. **The file's contents are discarded**: all frames are free. The arena has as many
    /// frames as whole blocks of 2 MiB, without the first block. For other settings use
    /// [`ArenaBuilder::build_on`].
    ///
    /// ```
    /// use slat_mm::*;
    /// use std::os::fd::AsFd;
    /// # let limit = 64 << 20;
    /// # let other = Arena::builder().limit(limit).build()?;
    /// // The descriptor was created by a parent process or another part of this one.
    /// let file = other.memfd().unwrap().try_clone_to_owned().unwrap();
    /// // SAFETY: the parent accesses only frames that it may, and does not truncate the file.
    /// let arena = unsafe { Arena::from_fd(file) }?;
    /// assert_eq!(arena.stats().frames, limit / 4096);
    /// # Ok::<(), MmError>(())
    /// ```
    ///
    /// # Safety
    /// The file is not truncated while the arena lives. Other users of the file access a frame only while they
    /// have a right to its contents (see [`frame`](Self::frame)), since tables of VMs are in the file.
    ///
    /// # Errors
    /// [`MmError::BadLimit`] if it is shorter than 4 MiB or not a file. [`MmError::Os`] if it cannot be mapped
    /// for writing, or the system cannot discard parts of it.
    pub unsafe fn from_fd(file: OwnedFd) -> Result<Arc<Self>, MmError> {
        // SAFETY: the caller keeps the conditions.
        unsafe { Self::builder().build_on(file) }
    }
}
