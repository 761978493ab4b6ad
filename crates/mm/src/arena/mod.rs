//! The frame arena: the memory of a whole machine. Guest pages and page tables are allocated from it, and both
//! count towards its limit.
//!
//! ```text
//! base                       frame n is at base + n × 4096; Pfn(n) is its number
//! │ 2 MiB never used │ block │ block │ block │ …                                      one lazily populated memfd
//!   so no frame is 0
//! state of a frame (4 bytes, lazily populated)     31 table | 30 used | 29 merged | 28 read ahead | 27 zeroed | 26 leaving | 25 cached | 24..0 references
//! ```
//! * A frame is **free** or has **references**: one for each entry that maps it, one from the file it belongs
//!   to. A huge page is 512 frames with a reference each, so splitting it, in one address space or several,
//!   changes no count. Dropping the last reference frees the frame.
//! * [`Held`](crate::Held) and [`Released`](crate::held::Released) own references; dropping them drops the
//!   references.
//! * Blocks are divided evenly into **nodes** of consecutive blocks. An allocation takes a frame of the node
//!   that the thread runs on ([`Node::here`]), or of the next node that has one ([`NodeFrames`]).
//! * With **poison**, a freed frame is filled with one byte, so that a stale reader sees it. The next use
//!   checks the fill, so that a stale writer is counted ([`ArenaStats::stale_writes`]).

mod builder;
mod cached;
mod charge;
mod handle;

pub use builder::ArenaBuilder;
pub use handle::ArenaHandle;

use crate::error::MmError;
use crate::frames::BLOCK;
use crate::ledger::Ledgers;
use crate::mapping::Mapping;
use crate::nodes::{Node, NodeFrames};
use crate::notes::Notes;
use crate::prim::{bytes_are_copied, zero_page};
use crate::shards::Shards;
use parking_lot::Mutex;
use slat::{Level, PAGE_SIZE, Pfn, Span};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// The frame belongs to a chunk of tables.
const TABLE: u32 = 1 << 31;
/// The frame was used before: its contents may not be zero.
const USED: u32 = 1 << 30;
/// KSM created the frame and holds a reference. No entry maps it writable.
const MERGED: u32 = 1 << 29;
/// The frame was read ahead and not used yet.
const AHEAD: u32 = 1 << 28;
/// The frame is free and filled with zeroes.
const ZEROED: u32 = 1 << 27;
/// A thread is swapping out an entry that maps the frame; other threads do not start the same.
const LEAVING: u32 = 1 << 26;
/// The swap cache holds a reference to the frame.
const CACHED: u32 = 1 << 25;
const REFERENCES: u32 = CACHED - 1;

/// Physical frames with reference counts. Shared in an [`Arc`](std::sync::Arc); all methods take `&self`.
#[derive(Debug)]
pub struct Arena {
    memory: Mapping,
    states: Mapping,
    notes: Notes,
    /// Boxed, since it is large.
    ledgers: Box<Ledgers>,
    /// In order of frames, without gaps.
    nodes: Box<[NodeFrames]>,
    frames: u64,
    poison: Option<u8>,
    table_frames: AtomicU64,
    stale_writes: AtomicU64,
    /// Number of references dropped while the frame had others.
    unshared: Shards<AtomicU64>,
    /// Frames whose last reference is the swap cache's. Some may have other references again.
    unmapped: Mutex<BTreeSet<Pfn>>,
}

/// Counts of an arena's frames. Exact if no thread uses the arena meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArenaStats {
    /// Number of frames.
    pub frames: u64,
    /// Number of frames in use, tables included.
    pub in_use: u64,
    /// Number of frames lent for tables.
    pub tables: u64,
    /// Number of frames that were written to while they were free. Detected at their next use, with poison
    /// only.
    pub stale_writes: u64,
}

/// Counts of a node's frames. Exact if no thread uses the node meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStats {
    /// Number of frames.
    pub frames: u64,
    /// Number of frames in use, tables included.
    pub in_use: u64,
}

impl Arena {
    /// Address where frame 0 would be; frame `n` is `n` × 4096 bytes further.
    #[inline(always)]
    pub const fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// Address of a frame of this arena, valid for its 4096 bytes. The caller may access them only while it has
    /// a right to the contents: through an entry that maps the frame, until that entry is invalidated.
    #[inline(always)]
    pub const fn frame(&self, pfn: Pfn) -> *mut u8 {
        self.base().as_ptr().wrapping_add(pfn.address() as usize)
    }

    /// The memfd that holds the arena, to map frames elsewhere: frame `n` is at offset `n` × 4096. `None` if
    /// the system has no memfd.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.memfd()
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u8 {
        self.nodes.len() as u8
    }

    /// Returns the arena's node that the calling thread runs on.
    pub fn here(&self) -> Node {
        Node(Node::here().0 % self.nodes())
    }

    /// Returns the node of frame `pfn`; the nearest node if the arena has no such frame.
    pub fn node_of(&self, pfn: Pfn) -> Node {
        let block = (pfn.0 / BLOCK).clamp(1, self.frames / BLOCK);
        Node(((block * u64::from(self.nodes()) - 1) / (self.frames / BLOCK)) as u8)
    }

    /// Returns the counts of one node's frames.
    pub fn node_stats(&self, node: Node) -> NodeStats {
        let node = self.node(node);
        let frames = node.frames().len();
        NodeStats { frames, in_use: frames.saturating_sub(node.free()) }
    }

    /// Returns the references of frame `pfn`; 0 if it is free or no frame of this arena.
    pub fn references(&self, pfn: Pfn) -> u32 {
        // ORDER(refs): Acquire: a thread that finds itself the last owner sees all accesses of the others.
        self.states().get(pfn.0 as usize).map_or(0, |state| state.load(Acquire) & REFERENCES)
    }

    /// Whether KSM shares frame `pfn`. No entry maps a merged frame writable, or as its sole owner.
    pub fn is_merged(&self, pfn: Pfn) -> bool {
        self.states().get(pfn.0 as usize).is_some_and(|state| state.load(Relaxed) & MERGED != 0)
    }

    /// Marks the frame as merged, or as no longer merged. The caller holds a reference to it.
    pub(crate) fn set_merged(&self, pfn: Pfn, merged: bool) {
        let state = &self.states()[pfn.0 as usize];
        if merged {
            state.fetch_or(MERGED, Relaxed);
        } else {
            state.fetch_and(!MERGED, Relaxed);
        }
    }

    /// Marks the page as read ahead. The caller holds a reference to it.
    pub(crate) fn mark_ahead(&self, pfn: Pfn) {
        self.states()[pfn.0 as usize].fetch_or(AHEAD, Relaxed);
    }

    /// Whether the page was read ahead and not used since; clears the mark.
    pub(crate) fn take_ahead(&self, pfn: Pfn) -> bool {
        let state = &self.states()[pfn.0 as usize];
        state.load(Relaxed) & AHEAD != 0 && state.fetch_and(!AHEAD, Relaxed) & AHEAD != 0
    }

    /// Returns the counts of its frames.
    pub fn stats(&self) -> ArenaStats {
        let free: u64 = self.nodes.iter().map(NodeFrames::free).sum();
        ArenaStats {
            frames: self.frames,
            in_use: self.frames.saturating_sub(free),
            tables: self.table_frames.load(Relaxed),
            stale_writes: self.stale_writes.load(Relaxed),
        }
    }

    /// Whether the system has given memory to the frame. For a free frame the answer holds until it is taken.
    pub(crate) fn is_used(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].load(Relaxed) & USED != 0
    }

    /// Returns the memory of free frames to the system; the frames count as never used. The caller has taken
    /// them, so no other thread can.
    pub(crate) fn discard(&self, frames: Span<Pfn>) -> Result<(), MmError> {
        self.memory.discard(frames.start.address() as usize..frames.end.address() as usize)?;
        for pfn in frames.start.0..frames.end.0 {
            self.states()[pfn as usize].store(0, Relaxed);
        }
        Ok(())
    }

    fn states(&self) -> &[AtomicU32] {
        let len = self.states.len() / size_of::<AtomicU32>();
        // SAFETY: that many zeroed, aligned words, only ever used as atomics.
        unsafe { std::slice::from_raw_parts(self.states.base().as_ptr().cast(), len) }
    }

    /// Returns the notes of all frames.
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Returns the ledgers of all groups.
    pub(crate) fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    pub(crate) fn node(&self, node: Node) -> &NodeFrames {
        &self.nodes[usize::from(node.0) % self.nodes.len()]
    }

    /// Takes from this thread's node, or from the next node that has what is asked for.
    pub(crate) fn nearest(&self, take: impl Fn(&NodeFrames) -> Option<Pfn>) -> Option<Pfn> {
        let (here, nodes) = (usize::from(self.here().0), self.nodes.len());
        (here..here + nodes).find_map(|node| take(&self.nodes[node % nodes]))
    }

    /// Gives a free frame its first reference.
    pub(crate) fn begin_use(&self, pfn: Pfn, kind: u32, zero: bool) {
        let state = &self.states()[pfn.0 as usize];
        let before = state.load(Relaxed);
        let was_written = self.check_free(pfn, before);
        // With poison, a zeroed frame that was written while free is detected; it is zeroed again.
        if before & USED != 0 && zero && (before & ZEROED == 0 || was_written) {
            // SAFETY: a free frame of this arena, which this thread has taken.
            unsafe { zero_page(self.frame(pfn)) };
        }
        self.notes.forget(pfn);
        state.store(kind | USED | 1, Relaxed);
    }

    /// Checks the fill of a free frame in state `state`, and counts a stale write. Returns whether there was
    /// one.
    fn check_free(&self, pfn: Pfn, state: u32) -> bool {
        let Some(poison) = self.poison.filter(|_| state & USED != 0) else { return false };
        let byte = if state & ZEROED != 0 { 0 } else { poison };
        // SAFETY: a free frame of this arena, which this thread has taken.
        let bytes = unsafe { std::slice::from_raw_parts(self.frame(pfn), PAGE_SIZE as usize) };
        let was_written = bytes != [byte; PAGE_SIZE as usize];
        if was_written {
            self.stale_writes.fetch_add(1, Relaxed);
        }
        was_written
    }

    /// Fills a free frame, which the caller has taken, with zeroes.
    pub(crate) fn zero_free(&self, pfn: Pfn) {
        let state = &self.states()[pfn.0 as usize];
        let before = state.load(Relaxed);
        self.check_free(pfn, before);
        // Also a frame that was never used: the system gives it memory now.
        // SAFETY: a free frame of this arena, which this thread has taken.
        unsafe { zero_page(self.frame(pfn)) };
        state.store(USED | ZEROED, Relaxed);
    }

    /// Adds a reference to each frame.
    pub(crate) fn share(&self, frames: Span<Pfn>) {
        for pfn in frames.start.0..frames.end.0 {
            self.states()[pfn as usize].fetch_add(1, Relaxed);
        }
    }

    /// Drops a reference to each frame. Poisons and frees frames without references.
    pub(crate) fn put(&self, frames: Span<Pfn>) {
        let mut free = Span::sized(frames.start, 0);
        for pfn in (frames.start.0..frames.end.0).map(Pfn) {
            // ORDER(refs): Release: the owner's accesses to the frame come before; pairs with the fence below
            // and with `references`.
            let state = self.states()[pfn.0 as usize].fetch_sub(1, Release);
            let before = state & REFERENCES;
            debug_assert!(before > 0, "{pfn:?} is free already");
            if before == 2 && state & CACHED != 0 {
                self.unmapped.lock().insert(pfn);
            }
            if before == 1 {
                fence(Acquire);
                self.end_use(pfn);
                free.end = pfn + 1;
            } else {
                self.unshared.mine().fetch_add(1, Relaxed);
                self.give(free);
                free = Span::sized(pfn + 1, 0);
            }
        }
        self.give(free);
    }

    /// Ends the use of a frame that has lost its last reference.
    fn end_use(&self, pfn: Pfn) {
        self.credit(pfn);
        if let Some(byte) = self.poison {
            // SAFETY: a frame of this arena, which has lost its last reference.
            unsafe { self.frame(pfn).write_bytes(byte, PAGE_SIZE as usize) };
        }
        self.states()[pfn.0 as usize].store(USED, Relaxed);
    }

    /// Frees frames, which may belong to several nodes.
    fn give(&self, mut frames: Span<Pfn>) {
        while !frames.is_empty() {
            let node = self.node(self.node_of(frames.start));
            let part = Span::new(frames.start, frames.end.min(node.frames().end));
            node.give(part);
            frames.start = part.end;
        }
    }

    /// Copies a page to another of the same level. The caller has a right to both.
    pub(crate) fn copy(&self, from: Pfn, to: Pfn, level: Level) {
        let len = level.bytes() as usize;
        let end = from.0.max(to.0) + level.pages();
        assert!(
            end <= self.frames + BLOCK && from.0.abs_diff(to.0) >= level.pages(),
            "two pages of this arena"
        );
        // SAFETY: both pages lie in the mapping and do not overlap.
        unsafe { self.frame(from).copy_to_nonoverlapping(self.frame(to), len) };
        bytes_are_copied(len);
    }
}

#[cfg(test)]
mod tests;
