//! The mappings of an address space: versions, the ranges that changes have to themselves, and which thread waits for what.
//!
//! Faults read the mappings and take no lock but their page lock. Structure changes (mmap, munmap, mprotect, mremap, fork, exit,
//! registrations of handlers, advice) each make a new version.
//!
//! ```text
//! fault F on page p                             change C of range R
//!                                               claims R                  changes of ranges that overlap wait
//!                                               publishes a version       in it R says what holds from now on
//! takes the page lock of p                      outlasts                  takes each page lock of R once
//! reads the version that is current             edits the entries of R    inside a notification, under page locks
//! edits the entry of p by what it says          publishes once more       where R was kept
//! lets go                                       lets go of its claim      threads that wait go on
//! ```
//!
//! **Why no fault installs by a version that is over.** F reads the version under the page lock of p. If F has let go before C
//! outlasts that lock, C finds what F did: the entry, and the table that F linked, since C looks after it has held the lock. If
//! F takes the lock later, F finds C's version. So when C begins to edit, every entry of R is one that C will find, and no thread
//! makes another by the old version. C needs no look at F, and F none at C. This is the engine's rule 1 with the page lock
//! in the place of the region's number: C announces, then looks at entries.
//!
//! **What F does meanwhile** is what the version says of R ([`Stage`](crate::vma::Stage)):
//!
//! | change | while it edits, the version says |
//! |---|---|
//! | munmap | gone: F finds nothing mapped, and nothing is placed there until the entries are empty |
//! | mprotect to less, madvise, (un)register | the new permissions: F goes by those |
//! | mremap | the old range is gone; at the new range F waits |
//! | fork | private mappings are busy: F waits, so what the child gets is of one moment |
//! | munmap, mprotect to less, mremap whose ends may cut a huge page | busy at first: F waits until the page is split, or the change refused |
//!
//! **vCPUs that store late** are the notification's business, as before: C edits inside it, by its reason, and a frame is given
//! back, or copied, after the flush. A fault of the engine that asked before C's version is found by the engine's own rules: the
//! notification begins after the version was published, so a fault whose stamp is newer asks a host that has changed.
//!
//! **Work that names no mapping** (aging, eviction, merging, balancing, dontneed, migrate) claims nothing. It edits entries under their page
//! locks, and where a mapping decides it reads the version under that lock, at the moment of the edit.
//!
//! **Memory.** A version is read under a page lock, or under a reader's hold on the listeners ([`crate::state`]). What versions have
//! replaced is gathered, and freed when each page lock has been free once and no such hold was met ([`Mappings::take_retired`]).
//!
//! The lock here is the last of the order but for the condition's: nothing is taken, and nothing waited for, while it is held.

use crate::error::MmError;
use crate::prim::{AtomicPtr, AtomicU64};
use crate::vma::{EVERYWHERE, Stage, Vma};
use crate::vmas::{RetiredVmas, VmaEdit, VmaRef, Vmas};
use parking_lot::{Condvar, Mutex};
use slat::{Hva, Idle, Span};
use slat_slots::ranges::{RangeMap, RangeRoot};
use std::mem;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

/// Versions whose leftovers are freed together: each time costs a look at every page lock.
const TOGETHER: usize = 64;

/// What every fault reads, and hardly anything writes: on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shown {
    /// The root of the current version.
    root: AtomicPtr<()>,
    /// Forks under way.
    forks: AtomicU64,
    /// See [`AddressSpace::exit`](crate::AddressSpace::exit).
    exited: AtomicBool,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Mappings {
    shown: Shown,
    writer: Mutex<Writer>,
    /// A claim was let go of, or a version published.
    moved_on: Condvar,
}

#[derive(Debug, Default)]
struct Writer {
    map: RangeMap<VmaRef>,
    /// Ranges that changes have to themselves, each change's in order.
    claims: Vec<(u64, Vec<Span<Hva>>)>,
    claimed: u64,
    retired: RetiredVmas,
    /// Versions whose leftovers these are.
    versions: usize,
}

/// The ranges that a change of the mappings has to itself, until it is dropped. No other change alters what is mapped there.
#[must_use = "the ranges are claimed only while this lives"]
pub(crate) struct Claim<'a> {
    mappings: &'a Mappings,
    number: u64,
}

/// While it lives, faults on private mappings wait.
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

    /// The mappings as they are now.
    ///
    /// # Safety
    /// During `'g` the thread holds a page lock, or the listeners, of this address space.
    #[inline]
    pub(crate) unsafe fn read<'g>(&self) -> Vmas<'g> {
        // ORDER(vmas): Acquire pairs with the Release in `edit`: the nodes and mappings of the version are read after its root.
        let raw = self.shown.root.load(Acquire);
        // SAFETY: made by `into_raw`. What is retired from now on is reclaimed after the caller has let go.
        Vmas::new(unsafe { RangeRoot::from_raw(raw).read() })
    }

    /// Whether the address space has exited.
    pub(crate) fn exited(&self) -> bool {
        self.shown.exited.load(Relaxed)
    }

    /// Whether a fault on this mapping has to [wait](Self::wait).
    #[inline]
    pub(crate) fn is_busy(&self, vma: &Vma) -> bool {
        // Relaxed: a fork shows itself, and then outlasts the page lock that the caller holds.
        vma.stage == Stage::Busy || self.shown.forks.load(Relaxed) > 0 && !vma.is_shared()
    }

    /// Waits until the mapping at `hva` is busy no more. The caller holds no lock.
    #[cold]
    pub(crate) fn wait(&self, _idle: &mut Idle, hva: Hva) {
        let mut writer = self.writer.lock();
        while Vmas::new(writer.map.view()).find(hva).is_some_and(|vma| self.is_busy(vma)) {
            self.moved_on.wait(&mut writer);
        }
    }

    /// Claims the ranges that `decide` names, in order, and returns what else it says. It is asked anew after a wait for another
    /// change; first when none is under way over `first`. The caller holds no lock, and no claim. May sleep.
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

    /// Claims one range, whatever is mapped there.
    pub(crate) fn claim_one(&self, span: Span<Hva>) -> Claim<'_> {
        let claimed = self.claim(&[span], |_| Ok((vec![span], ())));
        claimed.unwrap_or_else(|_| unreachable!("nothing is refused")).0
    }

    /// Whether anything is mapped in a range that is claimed.
    pub(crate) fn any_over(&self, _claim: &Claim<'_>, span: Span<Hva>) -> bool {
        Vmas::new(self.writer.lock().map.view()).over(span).next().is_some()
    }

    /// Makes the next version and publishes it. Whether it is time to [free](Self::take_retired) what versions have replaced.
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

    /// Says that the address space has exited: before the version without mappings is published.
    pub(crate) fn set_exited(&self) {
        self.shown.exited.store(true, Relaxed);
    }

    /// From now on, and once page locks have been outlasted, faults on private mappings wait.
    pub(crate) fn begin_fork(&self) -> Forking<'_> {
        self.shown.forks.fetch_add(1, Relaxed);
        Forking(self)
    }

    /// What versions have replaced so far. The caller frees it by [`free`](Self::free), after it has outlasted all readers.
    pub(crate) fn take_retired(&self) -> RetiredVmas {
        let mut writer = self.writer.lock();
        writer.versions = 0;
        mem::take(&mut writer.retired)
    }

    /// It could not be freed now: after the next edit it is tried again.
    pub(crate) fn keep_retired(&self, retired: RetiredVmas) {
        let mut writer = self.writer.lock();
        writer.retired.append(retired);
        writer.versions = TOGETHER;
    }

    /// Frees what versions have replaced.
    ///
    /// # Safety
    /// Every thread that held a page lock or the listeners when it was taken has let go since.
    pub(crate) unsafe fn free(&self, retired: RetiredVmas) {
        let RetiredVmas { nodes, vmas } = retired;
        // SAFETY: from this map; no reader is left, says the caller.
        unsafe { self.writer.lock().map.reclaim(nodes) };
        // Files and handlers may be dropped here: no lock is held.
        for vma in vmas {
            // SAFETY: as above.
            unsafe { vma.free() };
        }
    }
}

impl Writer {
    /// Whether another change is under way in any of these ranges.
    fn is_claimed(&self, spans: &[Span<Hva>]) -> bool {
        let over = |claimed: &[Span<Hva>], span: &Span<Hva>| {
            let next = claimed.partition_point(|claimed| claimed.end <= span.start);
            claimed.get(next).is_some_and(|claimed| claimed.start < span.end)
        };
        let is_claimed = self.claims.iter().any(|(_, claimed)| spans.iter().any(|span| over(claimed, span)));
        is_claimed && !seeded!(RangeNotKept)
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
        // Under the lock: a thread that is about to wait has not looked yet, or sleeps already.
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
