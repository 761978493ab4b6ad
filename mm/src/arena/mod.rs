//! The frame arena: all memory of a machine in miniature. Guest pages and page tables come from here, and both
//! count towards its limit.
//!
//! ```text
//! base                       frame n lies at base + n × 4096, and Pfn(n) is its number
//! │ 2 MiB never used │ block │ block │ block │ …                                      one lazily populated memfd
//!   no frame is 0
//! frame's state (4 bytes, lazily populated too)    31 table | 30 used | 29 merged | 28 read ahead | 27 zeroed | 26 leaving | 25 cached | 24..0 references
//! ```
//! * A frame is **free** or has **references**: one for each entry that maps it, one from the file it belongs to.
//!   A huge page is 512 frames with a reference each, so that splitting it, in one address space or in several,
//!   changes no count. Who drops the last reference frees the frame.
//! * [`Held`](crate::Held) and [`Released`](crate::held::Released) are references as values: dropping them gives them back.
//! * Blocks belong to **nodes**, as many to each and neighbours together. Who needs a frame gets one of the node
//!   that it runs on ([`Node::here`]), or where that has none, of the next ([`NodeFrames`]).
//! * With **poison**, a freed frame is filled with one byte: a stale reader sees it. When the frame is used
//!   again the fill is checked: a stale writer is counted ([`ArenaStats::stale_writes`]).

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
use crate::notes::Notes;
use crate::numa::{Node, NodeFrames};
use crate::prim::zero_page;
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
/// The frame was in use before: its contents are not zero.
const USED: u32 = 1 << 30;
/// KSM has made it and holds a reference to it. No entry gives write permission to it.
const MERGED: u32 = 1 << 29;
/// It was read ahead of need, and not used yet.
const AHEAD: u32 = 1 << 28;
/// The frame is free, and holds zeroes.
const ZEROED: u32 = 1 << 27;
/// A thread takes an entry that maps it to swap: no other thread begins the same.
const LEAVING: u32 = 1 << 26;
/// The swap cache has a reference to it.
const CACHED: u32 = 1 << 25;
const REFERENCES: u32 = CACHED - 1;

/// See the module's header. Shared in an [`Arc`](std::sync::Arc); everything takes `&self`.
#[derive(Debug)]
pub struct Arena {
    memory: Mapping,
    states: Mapping,
    notes: Notes,
    /// Boxed: it is large.
    ledgers: Box<Ledgers>,
    /// In order, without gaps.
    nodes: Box<[NodeFrames]>,
    frames: u64,
    poison: Option<u8>,
    table_frames: AtomicU64,
    stale_writes: AtomicU64,
    /// Times that a reference to a frame was given back that has others.
    unshared: Shards<AtomicU64>,
    /// Frames to which the swap cache has the last reference; some have others again.
    unmapped: Mutex<BTreeSet<Pfn>>,
}

/// What an arena holds. Exact where no thread uses the arena meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArenaStats {
    /// Frames there are.
    pub frames: u64,
    /// Frames that are not free, tables included.
    pub in_use: u64,
    /// Frames lent for tables.
    pub tables: u64,
    /// Frames that were written to while they were free (found when they are used again; with poison only).
    pub stale_writes: u64,
}

/// What a node holds. Exact where no thread uses the node meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStats {
    /// Frames there are.
    pub frames: u64,
    /// Frames that are not free, tables included.
    pub in_use: u64,
}

impl Arena {
    /// Where frame 0 would be: frame `n` lies `n` × 4096 bytes further.
    #[inline(always)]
    pub const fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// Where the frame lies. The pointer is good for the 4096 bytes of a frame of this arena. A caller may use them while it has
    /// a right to the contents: through an entry that maps the frame, until that entry is invalidated.
    #[inline(always)]
    pub const fn frame(&self, pfn: Pfn) -> *mut u8 {
        self.base().as_ptr().wrapping_add(pfn.address() as usize)
    }

    /// The file that the arena is, for mapping frames elsewhere: frame `n` is at offset `n` × 4096. `None` where
    /// the system has no memfd.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.memfd()
    }

    /// How many nodes it has.
    pub fn nodes(&self) -> u8 {
        self.nodes.len() as u8
    }

    /// Of its nodes, the one that the calling thread runs on.
    pub fn here(&self) -> Node {
        Node(Node::here().0 % self.nodes())
    }

    /// The node that frame `pfn` belongs to. What is no frame of this arena belongs to the nearest.
    pub fn node_of(&self, pfn: Pfn) -> Node {
        let block = (pfn.0 / BLOCK).clamp(1, self.frames / BLOCK);
        Node(((block * u64::from(self.nodes()) - 1) / (self.frames / BLOCK)) as u8)
    }

    /// What one node holds.
    pub fn node_stats(&self, node: Node) -> NodeStats {
        let node = self.node(node);
        let frames = node.frames().len();
        NodeStats { frames, in_use: frames.saturating_sub(node.free()) }
    }

    /// How many references frame `pfn` has; zero: it is free, or no frame of this arena.
    pub fn references(&self, pfn: Pfn) -> u32 {
        // ORDER(refs): Acquire: who finds itself the last owner sees that the others are done with the frame.
        self.states().get(pfn.0 as usize).map_or(0, |state| state.load(Acquire) & REFERENCES)
    }

    /// Whether frame `pfn` is one that KSM shares: no entry that maps it is writable, or its sole owner.
    pub fn is_merged(&self, pfn: Pfn) -> bool {
        self.states().get(pfn.0 as usize).is_some_and(|state| state.load(Relaxed) & MERGED != 0)
    }

    /// Says so, or that it is no longer one. The caller holds a reference to it.
    pub(crate) fn set_merged(&self, pfn: Pfn, merged: bool) {
        let state = &self.states()[pfn.0 as usize];
        if merged {
            state.fetch_or(MERGED, Relaxed);
        } else {
            state.fetch_and(!MERGED, Relaxed);
        }
    }

    /// The page was read ahead. The caller holds a reference to it.
    pub(crate) fn mark_ahead(&self, pfn: Pfn) {
        self.states()[pfn.0 as usize].fetch_or(AHEAD, Relaxed);
    }

    /// Whether it was, and has not been used since: now it is.
    pub(crate) fn take_ahead(&self, pfn: Pfn) -> bool {
        let state = &self.states()[pfn.0 as usize];
        state.load(Relaxed) & AHEAD != 0 && state.fetch_and(!AHEAD, Relaxed) & AHEAD != 0
    }

    /// What it holds.
    pub fn stats(&self) -> ArenaStats {
        let free: u64 = self.nodes.iter().map(NodeFrames::free).sum();
        ArenaStats {
            frames: self.frames,
            in_use: self.frames.saturating_sub(free),
            tables: self.table_frames.load(Relaxed),
            stale_writes: self.stale_writes.load(Relaxed),
        }
    }

    /// Whether the frame has memory of its own: it was in use. Of one that is free this stays as it is until it is taken.
    pub(crate) fn is_used(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].load(Relaxed) & USED != 0
    }

    /// Gives the memory of free frames back. The caller has taken them, so no other thread can. They are then as if never used.
    pub(crate) fn discard(&self, frames: Span<Pfn>) -> Result<(), MmError> {
        self.memory.discard(frames.start.address() as usize..frames.end.address() as usize)?;
        for pfn in frames.start.0..frames.end.0 {
            self.states()[pfn as usize].store(0, Relaxed);
        }
        Ok(())
    }

    fn states(&self) -> &[AtomicU32] {
        let len = self.states.len() / size_of::<AtomicU32>();
        // SAFETY: as many zeroed, aligned words, only ever used as atomics.
        unsafe { std::slice::from_raw_parts(self.states.base().as_ptr().cast(), len) }
    }

    /// What is known of frames beside their references.
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// What is charged to each group.
    pub(crate) fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    pub(crate) fn node(&self, node: Node) -> &NodeFrames {
        &self.nodes[usize::from(node.0) % self.nodes.len()]
    }

    /// Takes from this thread's node, or from the next one that has it.
    pub(crate) fn nearest(&self, take: impl Fn(&NodeFrames) -> Option<Pfn>) -> Option<Pfn> {
        let (here, nodes) = (usize::from(self.here().0), self.nodes.len());
        (here..here + nodes).find_map(|node| take(&self.nodes[node % nodes]))
    }

    /// A frame that was free gets its first reference.
    pub(crate) fn begin_use(&self, pfn: Pfn, kind: u32, zero: bool) {
        let state = &self.states()[pfn.0 as usize];
        let before = state.load(Relaxed);
        let was_written = self.check_free(pfn, before);
        // A page of zeroes that was written while it was free is found where free frames are poisoned; it is zeroed again then.
        if before & USED != 0 && zero && (before & ZEROED == 0 || was_written) {
            // SAFETY: a free frame of this arena. Only this thread has a right to it.
            unsafe { zero_page(self.frame(pfn)) };
        }
        self.notes.forget(pfn);
        state.store(kind | USED | 1, Relaxed);
    }

    /// Counts a stale write to a frame that is free, and whose state is `state`: it does not hold what it held. Whether it is one.
    fn check_free(&self, pfn: Pfn, state: u32) -> bool {
        let Some(poison) = self.poison.filter(|_| state & USED != 0) else { return false };
        let byte = if state & ZEROED != 0 { 0 } else { poison };
        // SAFETY: a free frame of this arena. Only this thread has a right to it.
        let bytes = unsafe { std::slice::from_raw_parts(self.frame(pfn), PAGE_SIZE as usize) };
        let was_written = bytes != [byte; PAGE_SIZE as usize];
        if was_written {
            self.stale_writes.fetch_add(1, Relaxed);
        }
        was_written
    }

    /// Makes a free frame, which the caller has taken, hold zeroes.
    pub(crate) fn zero_free(&self, pfn: Pfn) {
        let state = &self.states()[pfn.0 as usize];
        let before = state.load(Relaxed);
        self.check_free(pfn, before);
        if !seeded!(ZeroedInName) {
            // Also one that was never used: the kernel finds memory for it now.
            // SAFETY: a free frame of this arena. Only this thread has a right to it.
            unsafe { zero_page(self.frame(pfn)) };
        }
        state.store(USED | ZEROED, Relaxed);
    }

    /// One more reference to each frame.
    pub(crate) fn share(&self, frames: Span<Pfn>) {
        for pfn in frames.start.0..frames.end.0 {
            self.states()[pfn as usize].fetch_add(1, Relaxed);
        }
    }

    /// One reference less to each frame. Frames without any are poisoned and free.
    pub(crate) fn put(&self, frames: Span<Pfn>) {
        let mut free = Span::sized(frames.start, 0);
        for pfn in (frames.start.0..frames.end.0).map(Pfn) {
            // ORDER(refs): Release: whatever its owner did to the frame comes before; pairs with the fence below
            // and with `references`.
            let state = self.states()[pfn.0 as usize].fetch_sub(1, Release);
            let before = state & REFERENCES;
            debug_assert!(before > 0, "{pfn:?} is free already");
            if before == 2 && state & CACHED != 0 && !seeded!(UnmappedUnsaid) {
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

    /// A frame has lost its last reference.
    fn end_use(&self, pfn: Pfn) {
        self.credit(pfn);
        if let Some(byte) = self.poison {
            // SAFETY: a frame of this arena, whose last reference is gone.
            unsafe { self.frame(pfn).write_bytes(byte, PAGE_SIZE as usize) };
        }
        self.states()[pfn.0 as usize].store(USED, Relaxed);
    }

    /// Neighbours may belong to different nodes.
    fn give(&self, mut frames: Span<Pfn>) {
        while !frames.is_empty() {
            let node = self.node(self.node_of(frames.start));
            let part = Span::new(frames.start, frames.end.min(node.frames().end));
            node.give(part);
            frames.start = part.end;
        }
    }

    /// Copies a page to a page of the same level. The caller has a right to both.
    pub(crate) fn copy(&self, from: Pfn, to: Pfn, level: Level) {
        let len = level.bytes() as usize;
        let end = from.0.max(to.0) + level.pages();
        assert!(
            end <= self.frames + BLOCK && from.0.abs_diff(to.0) >= level.pages(),
            "two pages of this arena"
        );
        // SAFETY: both lie in the mapping and do not overlap.
        unsafe { self.frame(from).copy_to_nonoverlapping(self.frame(to), len) };
    }
}

#[cfg(test)]
mod tests;
