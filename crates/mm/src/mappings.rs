//! The mappings of an address space: versions, ranges that changes claim, and which thread waits for which.
//!
//! Faults read the mappings and take only their page lock. Each structure change (mmap, munmap, mprotect,
//! mremap, fork, exit, registration of handlers, advice) publishes a new version.
//!
//! ```text
//! fault F on page p                             change C of range R
//!                                               claims R                  changes of overlapping ranges wait
//!                                               publishes a version       it holds the new state of R
//! takes the page lock of p                      outlasts                  takes each page lock of R once
//! reads the current version                     edits the entries of R    inside a notification, under page locks
//! edits the entry of p by that version          publishes once more       if the first version reserved R
//! releases the page lock                        releases its claim        waiting threads continue
//! ```
//!
//! **Why no fault installs a page by an old version.** F reads the version under the page lock of p. If F
//! releases that lock before C outlasts it, C finds what F did: the entry, and the table that F linked, since C
//! reads them after it has held the lock. If F takes the lock later, F finds C's version. So when C begins to
//! edit, C will find every entry of R, and no thread makes another by the old version. C does not have to look
//! for F, nor F for C. This is the engine's rule 1, with the page lock in place of the region's number: C
//! announces, then reads entries.
//!
//! **F's behaviour meanwhile** depends on the version's state of R ([`Stage`](crate::vma::Stage)):
//!
//! | change | while it edits, the version says |
//! |---|---|
//! | munmap | gone: F finds nothing mapped, and no mapping is placed there until the entries are empty |
//! | mprotect to less, madvise, (un)register | the new permissions: F follows those |
//! | mremap | the old range is gone; at the new range F waits |
//! | fork | private mappings are busy: F waits, so the child gets the state of one moment |
//! | munmap, mprotect to less, mremap whose ends may cut a huge page | busy at first: F waits until the page is split, or the change is refused |
//!
//! **Late stores by vCPUs** are handled by the notification: C edits inside it, with its reason, and frees or
//! copies a frame only after the flush. The engine's own rules find an engine fault that called the host before
//! C's version. The notification begins after the version was published, so an engine fault with a newer stamp
//! calls a host that has changed.
//!
//! **Operations that name no mapping** (aging, eviction, merging, balancing, dontneed, migrate) claim nothing.
//! They edit entries under their page locks. Where the mapping matters, they read the version under that lock
//! at the moment of the edit.
//!
//! **Memory.** Threads read a version under a page lock, or while they hold the listeners for reading
//! ([`crate::state`]). Nodes that versions have replaced are collected. They are freed after each page lock has been free
//! once and no thread was found to hold the listeners ([`Mappings::take_retired`]).
//!
//! The lock here is the innermost of the order. While a thread holds it, it takes no other lock, and waits only
//! on the condition variable.

use crate::error::MmError;
use crate::prim::{AtomicPtr, AtomicU64, Condvar, Mutex};
use crate::vma::{EVERYWHERE, Stage, Vma};
use crate::vmas::{RetiredVmas, VmaEdit, VmaRef, Vmas};
use slat::{Hva, Idle, Span};
use slat_slots::ranges::{RangeMap, RangeRoot};
use std::mem;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

/// Number of versions whose replaced parts are freed together: each time takes every page lock once.
const TOGETHER: usize = 64;

/// Fields that every fault reads and few operations write, on their own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Shown {
    /// The root of the current version.
    root: AtomicPtr<()>,
    /// Number of forks under way.
    forks: AtomicU64,
    /// Set by [`AddressSpace::exit`](crate::AddressSpace::exit).
    exited: AtomicBool,
}

/// The mappings of one address space.
#[derive(Debug)]
pub(crate) struct Mappings {
    shown: Shown,
    writer: Mutex<Writer>,
    /// Signalled when a claim is released or a version is published.
    moved_on: Condvar,
}

#[derive(Debug, Default)]
struct Writer {
    map: RangeMap<VmaRef>,
    /// Claims by number; the ranges of each are in order.
    claims: Vec<(u64, Vec<Span<Hva>>)>,
    claimed: u64,
    retired: RetiredVmas,
    /// Number of versions published since `retired` was last taken.
    versions: usize,
}

/// Ranges that one change of the mappings has claimed, until this is dropped. No other change alters mappings
/// there.
#[must_use = "the ranges are claimed only while this lives"]
pub(crate) struct Claim<'a> {
    mappings: &'a Mappings,
    number: u64,
}

/// A fork under way: while this lives, faults on private mappings wait.
#[must_use = "faults wait only while this lives"]
pub(crate) struct Forking<'a>(&'a Mappings);

impl Mappings {
    pub(crate) fn new() -> Self {
        let shown = Shown {
            root: AtomicPtr::new(RangeRoot::<VmaRef>::EMPTY.into_raw()),
            forks: AtomicU64::new(0),
            exited: AtomicBool::new(false),
        };
        Self { shown, writer: Mutex::default(), moved_on: Condvar::new() }
    }

    /// Returns the current version of the mappings.
    ///
    /// # Safety
    /// During `'g` the thread holds a page lock, or the listeners, of this address space.
    #[inline]
    pub(crate) unsafe fn read<'g>(&self) -> Vmas<'g> {
        // ORDER(vmas): Acquire pairs with the Release in `edit`: the nodes and mappings of the version are
        // read after its root.
        let raw = self.shown.root.load(Acquire);
        // SAFETY: made by `into_raw`. A node that is retired from now on is freed after the caller has released its
        // lock.
        Vmas::new(unsafe { RangeRoot::from_raw(raw).read() })
    }

    /// Whether the address space has exited.
    pub(crate) fn exited(&self) -> bool {
        self.shown.exited.load(Relaxed)
    }

    /// Whether a fault on this mapping must [wait](Self::wait).
    #[inline]
    pub(crate) fn is_busy(&self, vma: &Vma) -> bool {
        // Relaxed: a fork raises the count, and then outlasts the page lock that the caller holds.
        vma.stage == Stage::Busy || self.shown.forks.load(Relaxed) > 0 && !vma.is_shared()
    }

    /// Waits until the mapping at `hva` is not busy. The caller holds no lock.
    #[cold]
    pub(crate) fn wait(&self, _idle: &mut Idle, hva: Hva) {
        let mut writer = self.writer.lock();
        while Vmas::new(writer.map.view()).find(hva).is_some_and(|vma| self.is_busy(vma)) {
            self.moved_on.wait(&mut writer);
        }
    }

    /// Claims the ranges that `decide` returns, in order, and returns its second value. Calls `decide` again
    /// after each wait for another change, and first when no change is under way in `first`. The caller holds
    /// no lock and no claim. May sleep.
    pub(crate) fn claim<R>(
        &self,
        first: &[Span<Hva>],
        mut decide: impl FnMut(Vmas<'_>) -> Result<(Vec<Span<Hva>>, R), MmError>,
    ) -> Result<(Claim<'_>, R), MmError> {
        let mut writer = self.writer.lock();
        loop {
            if !writer.is_claimed(first) {
                let (spans, decided) = decide(Vmas::new(writer.map.view()))?;
                if !writer.is_claimed(&spans) {
                    writer.claimed += 1;
                    let number = writer.claimed;
                    writer.claims.push((number, spans));
                    return Ok((Claim { mappings: self, number }, decided));
                }
            }
            self.moved_on.wait(&mut writer);
        }
    }

    /// Claims one range, mapped or not.
    pub(crate) fn claim_one(&self, span: Span<Hva>) -> Claim<'_> {
        let claimed = self.claim(&[span], |_| Ok((vec![span], ())));
        claimed.unwrap_or_else(|_| unreachable!("nothing is refused")).0
    }

    /// Whether anything is mapped in a claimed range.
    pub(crate) fn any_over(&self, _claim: &Claim<'_>, span: Span<Hva>) -> bool {
        Vmas::new(self.writer.lock().map.view()).over(span).next().is_some()
    }

    /// Publishes the next version. Returns whether it is time to [free](Self::take_retired) what versions have
    /// replaced.
    pub(crate) fn edit(&self, _claim: &Claim<'_>, with: impl FnOnce(&mut VmaEdit<'_>)) -> bool {
        let mut guard = self.writer.lock();
        let writer = &mut *guard;
        let mut edit = VmaEdit::new(writer.map.edit());
        with(&mut edit);
        let (root, retired) = edit.publish();
        // ORDER(vmas): Release: see `read`.
        self.shown.root.store(root.into_raw(), Release);
        writer.retired.append(retired);
        writer.versions += 1;
        let full = writer.versions >= TOGETHER;
        self.moved_on.notify_all();
        full
    }

    /// Marks the address space as exited. Called before the version without mappings is published.
    pub(crate) fn set_exited(&self) {
        self.shown.exited.store(true, Relaxed);
    }

    /// Makes faults on private mappings wait, as soon as page locks have been outlasted.
    pub(crate) fn begin_fork(&self) -> Forking<'_> {
        self.shown.forks.fetch_add(1, Relaxed);
        Forking(self)
    }

    /// Takes what versions have replaced so far. The caller passes it to [`free`](Self::free) after it has
    /// outlasted all readers.
    pub(crate) fn take_retired(&self) -> RetiredVmas {
        let mut writer = self.writer.lock();
        writer.versions = 0;
        mem::take(&mut writer.retired)
    }

    /// Keeps what could not be freed now; the next edit tries again.
    pub(crate) fn keep_retired(&self, retired: RetiredVmas) {
        let mut writer = self.writer.lock();
        writer.retired.append(retired);
        writer.versions = TOGETHER;
    }

    /// Frees what versions have replaced.
    ///
    /// # Safety
    /// Every thread that held a page lock or the listeners when `retired` was taken has released them since.
    pub(crate) unsafe fn free(&self, retired: RetiredVmas) {
        let RetiredVmas { nodes, vmas } = retired;
        // SAFETY: from this map; the caller has outlasted all readers.
        unsafe { self.writer.lock().map.reclaim(nodes) };
        // Files and handlers may be dropped here, so no lock is held.
        for vma in vmas {
            // SAFETY: as above.
            unsafe { vma.free() };
        }
    }
}

impl Writer {
    /// Whether another change has claimed any part of these ranges.
    fn is_claimed(&self, spans: &[Span<Hva>]) -> bool {
        let over = |claimed: &[Span<Hva>], span: &Span<Hva>| {
            let next = claimed.partition_point(|claimed| claimed.end <= span.start);
            claimed.get(next).is_some_and(|claimed| claimed.start < span.end)
        };
        self.claims.iter().any(|(_, claimed)| spans.iter().any(|span| over(claimed, span)))
    }
}

impl RetiredVmas {
    fn append(&mut self, other: Self) {
        self.nodes.append(other.nodes);
        self.vmas.extend(other.vmas);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let number = self.number;
        self.mappings.writer.lock().claims.retain(|&(other, _)| other != number);
        self.mappings.moved_on.notify_all();
    }
}

impl Drop for Forking<'_> {
    fn drop(&mut self) {
        // Under the lock, so that no thread misses the wakeup between its look and its wait.
        let writer = self.0.writer.lock();
        self.0.shown.forks.fetch_sub(1, Relaxed);
        drop(writer);
        self.0.moved_on.notify_all();
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        let retired = self.take_retired();
        // SAFETY: nothing is borrowed any more.
        unsafe { self.free(retired) };
        let writer = self.writer.get_mut();
        let mut edit = VmaEdit::new(writer.map.edit());
        edit.cut(EVERYWHERE);
        let (_, RetiredVmas { nodes, vmas }) = edit.publish();
        // SAFETY: as above.
        unsafe { writer.map.reclaim(nodes) };
        for vma in vmas {
            // SAFETY: as above.
            unsafe { vma.free() };
        }
    }
}
