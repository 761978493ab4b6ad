//! How an arena is made: on memory of its own, or in a file that there is already.

use super::Arena;
use crate::error::MmError;
use crate::frames::BLOCK;
use crate::ledger::Ledgers;
use crate::mapping::Mapping;
use crate::notes::Notes;
use crate::numa::{NodeFrames, real_nodes};
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
    /// Bytes of all frames together, rounded down to blocks of 2 MiB; 1 GiB unless said otherwise. They cost
    /// nothing until they are used.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// How many nodes its blocks are dealt out to, the first ones to node 0 and so on; 1 unless said otherwise, at
    /// most 255. Where the machine has several, they are bound to its nodes in turn, best effort.
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Fills freed frames with `byte`. For tests and for hunting bugs: it costs a pass over every page freed.
    pub fn poison(mut self, byte: u8) -> Self {
        self.poison = Some(byte);
        self
    }

    /// The arena, with every frame free.
    pub fn build(self) -> Result<Arc<Arena>, MmError> {
        self.on(Mapping::shared)
    }

    /// The same, in a file that there is already, a memfd for instance: see [`Arena::from_fd`]. Its length says how many bytes
    /// there are; [`limit`](Self::limit) does not matter.
    ///
    /// # Safety
    /// As for [`Arena::from_fd`].
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

/// Where there is a choice, each node's memory comes from a node of the machine.
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

    /// An arena in a file that there is already, a memfd for instance, which other processes may have, too: frame `n` is at offset
    /// `n` × 4096. **What the file held is gone**: all of it is free. It has as many frames as whole blocks of 2 MiB, of which
    /// the first is not used. Other settings: [`ArenaBuilder::build_on`].
    ///
    /// ```
    /// use slat_mm::*;
    /// use std::os::fd::AsFd;
    /// # let limit = 64 << 20;
    /// # let other = Arena::builder().limit(limit).build()?;
    /// // A descriptor that a parent process, or a part of this one, has made.
    /// let file = other.memfd().unwrap().try_clone_to_owned().unwrap();
    /// // SAFETY: the parent uses only what it is told to use, and does not make the file shorter.
    /// let arena = unsafe { Arena::from_fd(file) }?;
    /// assert_eq!(arena.stats().frames, limit / 4096);
    /// # Ok::<(), MmError>(())
    /// ```
    ///
    /// # Safety
    /// While the arena lives, nothing makes the file shorter. Any other user of the file uses a frame only while it has a right
    /// to the frame's contents (see [`frame`](Self::frame)), since tables of VMs are in the file.
    ///
    /// # Errors
    /// [`MmError::BadLimit`]: it is shorter than 4 MiB, or no file. [`MmError::Os`]: it cannot be mapped for writing, or parts
    /// of it cannot be given back to the system.
    pub unsafe fn from_fd(file: OwnedFd) -> Result<Arc<Self>, MmError> {
        // SAFETY: the caller's word.
        unsafe { Self::builder().build_on(file) }
    }
}
