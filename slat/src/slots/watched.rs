//! The guest frames whose stores go to listeners: the part of [`crate::writes`] for one address space.
//!
//! ```text
//! directories, 512 pointers each   [ · | ● | · ]
//!                                       └──▶ counts of 2 MiB: number of watched frames; 16 bits for each frame
//! ```
//! Faults read the counts without a lock. Counts are allocated when a frame is first watched, and live as long as the
//! VM. Changes are made under the lock of the list. A fault reads the count when it asks its host whether a page may be
//! written: after its stamp, or with the entry frozen. So an invalidation of the frames must follow when a count rises.
//! When it falls, no permission is taken, and none must follow.

use super::SpaceId;
use crate::fallible;
use crate::sync::prim::{AtomicPtr, AtomicU64, Mutex, Relaxed};
use crate::{Gfn, Gpa, Idle, Span};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::null_mut;

const FAN_BITS: u32 = if cfg!(loom) { 1 } else { 9 };
const FAN: usize = 1 << FAN_BITS;
/// Number of directory levels above the counts, for frame numbers of 54 bits.
const DEPTH: u32 = if cfg!(loom) { 1 } else { 5 };
/// Number of frames in a word, with 16 bits each.
const LANES: u64 = 4;
const WORDS: usize = if cfg!(loom) { 1 } else { 128 };
const FRAMES: u64 = LANES * WORDS as u64;
/// Maximum number of watches of one frame.
const MAX_WATCHES: u64 = 0xffff;

/// A store to watched frames, as listeners see it.
#[derive(Clone, Copy, Debug)]
pub struct TrackedStore<'a> {
    /// The address space.
    pub space: SpaceId,
    /// The address of the store.
    pub gpa: Gpa,
    /// The bytes stored, all in one page.
    pub bytes: &'a [u8],
}

/// A listener for stores to tracked frames ([`GuestSpace::track_writes`](crate::guest_space::GuestSpace::track_writes)). The
/// thread that makes the store calls it; the listener may sleep. By default both functions do nothing. Listeners of one
/// frame are called in the order in which they were registered.
pub trait WriteListener: Send + Sync {
    /// Called before the store: the memory still has its old contents.
    fn before(&self, _idle: &mut Idle, _store: &TrackedStore<'_>) {}
    /// Called after the store, and after it was marked dirty if the memslot logs.
    fn after(&self, _idle: &mut Idle, _store: &TrackedStore<'_>) {}
}

/// One listener and its frames.
struct Watch {
    id: u64,
    gfns: Span<Gfn>,
    listener: Arc<dyn WriteListener>,
}

/// All watches, and the id of the next.
#[derive(Default)]
struct Watches {
    list: Vec<Watch>,
    next: u64,
}

struct Directory([AtomicPtr<()>; FAN]);

struct Counts {
    /// Number of frames whose count is not zero.
    watched: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The watched frames of an address space; see the module's header.
#[derive(Default)]
pub(crate) struct Watched {
    /// Number of watched frames. If zero, nothing else is read.
    frames: AtomicU64,
    /// The highest directory, or null.
    top: AtomicPtr<()>,
    watches: Mutex<Watches>,
}

impl Watched {
    /// Whether no frame is watched.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.load(Relaxed) == 0
    }

    /// Whether `gfn` is watched.
    #[inline(always)]
    pub(crate) fn has(&self, gfn: Gfn) -> bool {
        !self.is_empty() && self.any_of(Span::sized(gfn, 1))
    }

    /// Whether `gfn`, to which a store was made outside the tables, is watched. False only if no watch had begun before
    /// the store.
    pub(crate) fn has_after_store(&self, gfn: Gfn) -> bool {
        // The store before the counts are read; pairs with the fence of the invalidation that
        // follows each watch (`announce`). Either this thread sees the watch, or its listener finds the store made.
        fence!(watched_store.look);
        self.has(gfn)
    }

    /// Whether any of `gfns` is watched. If any frame of the space is, this checks each 2 MiB of `gfns`.
    #[inline(always)]
    pub(crate) fn any(&self, gfns: Span<Gfn>) -> bool {
        !self.is_empty() && self.any_of(gfns)
    }

    #[cold]
    fn any_of(&self, gfns: Span<Gfn>) -> bool {
        parts(gfns).any(|(first, part)| {
            let Some(counts) = self.counts(first) else { return false };
            let whole = part.len() == FRAMES;
            let watched = counts.watched.load(Relaxed) != 0;
            watched && (whole || (part.start.0..part.end.0).any(|gfn| counts.of(gfn) != 0))
        })
    }

    /// Adds a watch of each of `gfns`, and returns its id. Returns `None`, and adds nothing, if a frame has the maximum
    /// number of watches or memory is missing. An invalidation of the frames must follow before the watch counts as
    /// begun.
    pub(crate) fn watch(&self, gfns: Span<Gfn>, listener: Arc<dyn WriteListener>) -> Option<u64> {
        let mut watches = self.watches.lock();
        fallible::reserve(&mut watches.list, 1).ok()?;
        for (first, part) in parts(gfns) {
            let counts = self.make_counts(first)?;
            if (part.start.0..part.end.0).any(|gfn| counts.of(gfn) == MAX_WATCHES) {
                return None;
            }
        }
        self.count(gfns, |count| count + 1);
        let id = watches.next;
        watches.next += 1;
        watches.list.push(Watch { id, gfns, listener });
        Some(id)
    }

    /// Ends watch `id`; returns false if there is none. The next store to a frame without other watches may get
    /// through.
    pub(crate) fn unwatch(&self, id: u64) -> bool {
        let mut watches = self.watches.lock();
        let Some(index) = watches.list.iter().position(|watch| watch.id == id) else { return false };
        let watch = watches.list.remove(index);
        self.count(watch.gfns, |count| count - 1);
        drop(watches);
        // The listener is dropped without the lock.
        drop(watch);
        true
    }

    /// Returns the listeners of `gfn`.
    pub(crate) fn listeners(&self, gfn: Gfn) -> Vec<Arc<dyn WriteListener>> {
        if !self.has(gfn) {
            return Vec::new();
        }
        let watches = self.watches.lock();
        let of = watches.list.iter().filter(|watch| watch.gfns.contains(gfn));
        of.map(|watch| watch.listener.clone()).collect()
    }

    /// Changes the count of each of `gfns`, for which counts exist. The caller holds the lock.
    fn count(&self, gfns: Span<Gfn>, change: impl Fn(u64) -> u64) {
        for (first, part) in parts(gfns) {
            let Some(counts) = self.counts(first) else { continue };
            for gfn in part.start.0..part.end.0 {
                let (word, shift) = counts.place(gfn);
                let (old, all) = (counts.of(gfn), word.load(Relaxed));
                let new = change(old);
                word.store(all & !(MAX_WATCHES << shift) | new << shift, Relaxed);
                let (before, after) = (u64::from(old != 0), u64::from(new != 0));
                counts.watched.store(counts.watched.load(Relaxed) + after - before, Relaxed);
                self.frames.store(self.frames.load(Relaxed) + after - before, Relaxed);
            }
        }
    }

    /// Returns the counts of `gfn`, if they exist.
    fn counts(&self, gfn: Gfn) -> Option<&Counts> {
        let mut cell = &self.top;
        for level in (0..DEPTH).rev() {
            // SAFETY: a cell above the counts leads to a directory.
            cell = unsafe { follow::<Directory>(cell) }?.cell(gfn, level);
        }
        // SAFETY: a cell of the lowest directory leads to counts.
        unsafe { follow(cell) }
    }

    /// Returns the counts of `gfn`, and allocates them if needed. `None` if memory is missing. The caller holds the
    /// lock.
    fn make_counts(&self, gfn: Gfn) -> Option<&Counts> {
        let mut cell = &self.top;
        for level in (0..DEPTH).rev() {
            // SAFETY: as in `counts`.
            let directory = unsafe { follow_or_make(cell, Directory::new) };
            cell = directory?.cell(gfn, level);
        }
        // SAFETY: as in `counts`.
        unsafe { follow_or_make(cell, Counts::new) }
    }
}

impl Directory {
    fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicPtr::new(null_mut())))
    }

    fn cell(&self, gfn: Gfn, level: u32) -> &AtomicPtr<()> {
        &self.0[(gfn.0 / FRAMES >> (level * FAN_BITS)) as usize % FAN]
    }
}

impl Counts {
    fn new() -> Self {
        Self { watched: AtomicU64::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Returns the word with the count of frame `gfn`, and the count's position in it.
    fn place(&self, gfn: u64) -> (&AtomicU64, u64) {
        (&self.words[(gfn % FRAMES / LANES) as usize], gfn % LANES * 16)
    }

    fn of(&self, gfn: u64) -> u64 {
        let (word, shift) = self.place(gfn);
        word.load(Relaxed) >> shift & MAX_WATCHES
    }
}

/// Divides `gfns` by their counts: a frame of each, and the part.
fn parts(gfns: Span<Gfn>) -> impl Iterator<Item = (Gfn, Span<Gfn>)> {
    let (first, end) = (gfns.start.0 / FRAMES, gfns.end.0.div_ceil(FRAMES));
    let all = if gfns.is_empty() { 0..0 } else { first..end };
    all.map(move |number| {
        let part = Span::sized(Gfn(number * FRAMES), FRAMES).clamp(&gfns);
        (part.start, part)
    })
}

/// # Safety
/// `cell` is null, or leads to a `T` from `follow_or_make` that lives as long as the cell.
unsafe fn follow<T>(cell: &AtomicPtr<()>) -> Option<&T> {
    // Pairs with the Release in `follow_or_make`, so the target is complete.
    let found = cell.load(order!(watched.follow, Acquire)).cast::<T>();
    // SAFETY: the caller guarantees it.
    unsafe { found.as_ref() }
}

/// # Safety
/// As [`follow`]; and no other thread allocates here meanwhile.
unsafe fn follow_or_make<T>(cell: &AtomicPtr<()>, make: impl FnMut() -> T) -> Option<&T> {
    // SAFETY: the caller guarantees it.
    if let Some(found) = unsafe { follow(cell) } {
        return Some(found);
    }
    let fresh = Box::into_raw(fallible::boxed(1, make).ok()?).cast::<T>();
    // It is complete before another thread finds it.
    cell.store(fresh.cast(), order!(watched.link, Release));
    // SAFETY: made just now; it lives until the cell is dropped.
    unsafe { fresh.as_ref() }
}

/// Frees the target of `cell`.
///
/// # Safety
/// As [`follow`]; and nothing borrows the target.
unsafe fn free<T>(cell: &AtomicPtr<()>) {
    let found = cell.load(Relaxed).cast::<T>();
    if !found.is_null() {
        // SAFETY: from `into_raw` of a slice of one; the caller guarantees the rest.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(found, 1)) });
    }
}

/// Frees everything below `cell`, `levels` directories deep.
///
/// # Safety
/// As [`free`].
unsafe fn free_below(cell: &AtomicPtr<()>, levels: u32) {
    if levels == 0 {
        // SAFETY: counts are below the lowest directory; the caller guarantees the rest.
        unsafe { free::<Counts>(cell) };
        return;
    }
    // SAFETY: as above, of directories.
    if let Some(directory) = unsafe { follow::<Directory>(cell) } {
        for below in &directory.0 {
            // SAFETY: as above.
            unsafe { free_below(below, levels - 1) };
        }
    }
    // SAFETY: as above; everything below is freed.
    unsafe { free::<Directory>(cell) };
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: `&mut self`, so nothing borrows any of it.
        unsafe { free_below(&self.top, DEPTH) };
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    struct Nothing;

    impl WriteListener for Nothing {}

    #[test]
    fn counts_nest_and_are_found_in_any_range() {
        let watched = Watched::default();
        let watch = |start, end| watched.watch(Span::new(Gfn(start), Gfn(end)), Arc::new(Nothing)).unwrap();
        let any = |start, end| watched.any(Span::new(Gfn(start), Gfn(end)));
        assert!(watched.is_empty() && !any(0, 1 << 20));
        let far = 1 << 40;
        let (a, b) = (watch(510, 1030), watch(far + 5, far + 6));
        let c = watch(600, 601);
        assert!(
            any(0, 511)
                && !any(0, 510)
                && any(512, 1024)
                && any(1029, 5000)
                && !any(1030, 1 << 20)
                && !any(far, far + 5)
        );
        assert!(watched.has(Gfn(far + 5)) && !watched.has(Gfn(far + 6)));
        assert_eq!((watched.listeners(Gfn(600)).len(), watched.listeners(Gfn(601)).len()), (2, 1));
        assert!(watched.unwatch(a) && !watched.unwatch(a));
        assert!(watched.has(Gfn(600)) && !watched.has(Gfn(601)) && !any(601, 1 << 20));
        assert!(watched.unwatch(b) && watched.unwatch(c) && watched.is_empty());
    }

    #[test]
    fn a_frame_with_the_maximum_number_of_watches_is_refused() {
        let watched = Watched::default();
        let gfns = Span::sized(Gfn(3), 1);
        for _ in 0..MAX_WATCHES {
            watched.watch(gfns, Arc::new(Nothing)).unwrap();
        }
        assert!(watched.watch(Span::sized(Gfn(2), 3), Arc::new(Nothing)).is_none());
        assert!(!watched.has(Gfn(2)) && !watched.has(Gfn(4)), "all of it, or nothing");
    }
}
