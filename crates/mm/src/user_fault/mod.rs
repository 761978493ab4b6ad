//! Faults that a user's thread serves: demand paging, post-copy migration, lazy restore. The semantics are
//! those of Linux's userfaultfd, except for the differences in the table.
//!
//! ```text
//! a faulting thread (a vCPU, or this process)              a handler's thread
//!   the mapping is registered and the page is missing
//!   posts an event, under the page lock ─────────────────▶ read
//!   releases every lock, sleeps                            copy │ zero_page │ continue_ │ wake
//!   wakes up ◀──────────────────────────────────────────── each wakes the threads that sleep on its pages
//!   faults again, from the start
//! ```
//!
//! | | userfaultfd | here |
//! |---|---|---|
//! | registered | per mapping, one descriptor | the same: [`UserFaults::register`]; else [`MmError::ServedByOther`] |
//! | **missing**, anonymous | no entry | the same; registered memory gets no huge pages at faults |
//! | **missing**, shared file | no page in the page cache | the same; a file's initial contents count as in the cache |
//! | **minor** | a page in the cache, no entry; shmem | the same; shared mappings of a [`File`](crate::File) |
//! | private file mappings | refused, except shmem's | refused: [`MmError::Unservable`] |
//! | an event | read once, by one reader | the same; a wake before the read removes it |
//! | two threads on one page | one event each | the same |
//! | `UFFDIO_COPY`, `ZEROPAGE`, `CONTINUE` | all or nothing for a page; a short count says where it stopped | the same; [`Stopped`] says where and why |
//! | `EEXIST` | a page is present; no sleeper is woken | [`MmError::AlreadyThere`]; the page's sleepers are woken |
//! | `ENOENT` | the mapping went away, or is not registered | [`MmError::NotServed`] |
//! | `EFAULT` of `CONTINUE` | no page in the cache | [`MmError::NotInFile`] |
//! | `UFFDIO_WAKE` | woken threads fault again, and post again | the same: [`UserFaults::wake`] |
//! | `UFFDIO_UNREGISTER`, close | wake all sleepers; faults are served as usual | the same: [`UserFaults::unregister`], [`close`](UserFaults::close), drop |
//! | munmap, mremap elsewhere | ends registration; sleepers need a wake | ends registration, and wakes the sleepers |
//! | mremap in place, mprotect | keep it | the same |
//! | fork | the child is not registered | the same |
//! | write protection, events of forks and unmaps | yes | no |
//!
//! **No wakeup is lost.** A fault reads the entry and posts under the page lock. A handler installs a page
//! under that lock and wakes sleepers afterwards. So the fault sees the page, or the wake finds the sleeper. A
//! registration is part of the mapping, which a fault reads under the page lock. A fault that posts by the old
//! version is outlasted before the sleepers are woken; later faults find the new version. A sleeper holds no
//! lock, so its page may be resolved, unmapped or moved meanwhile; it then faults again, by the current
//! mappings.
//!
//! This process faults too: a handler that reads a missing page of registered memory waits for itself.

mod resolve;

pub use resolve::Stopped;

use crate::change::end_service;
use crate::error::MmError;
use crate::fault_queue::{Asleep, FaultKind, NoFault, Queue, Serve, Served, UserFault};
use crate::mappings::Claim;
use crate::pages::{page_of, pages_of};
use crate::space::AddressSpace;
use crate::vma::{Backing, Vma, aligned};
use slat::{Access, Gfn, Hva, Idle, Span};
use std::sync::Arc;
use std::time::Duration;

/// A handler of faults with its queue, like userfaultfd's file descriptor. Any number of threads may read and
/// resolve faults through it. Dropping it closes it.
///
/// ```
/// use slat::{Hva, Idle, PAGE_SIZE};
/// use slat_mm::*;
///
/// let arena = Arena::builder().limit(64 << 20).build()?;
/// let space = AddressSpace::builder(&arena).build()?;
/// let memory = space.mmap(Place::Fixed(Hva(0x40_0000)), 1 << 20, Prot::ReadWrite, Backing::Anonymous)?;
/// let faults = UserFaults::new(&space);
/// faults.register(memory, Serve::Missing)?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let mut idle = Idle::take().unwrap();
///         while let Ok(fault) = faults.read(&mut idle, None) {
///             faults.copy(&mut idle, fault.page, &[7; PAGE_SIZE as usize]).unwrap();
///         }
///     });
///     let (mut idle, mut byte) = (Idle::take().unwrap(), [0]);
///     space.read(&mut idle, memory.start + 5, &mut byte).unwrap(); // sleeps until the page has been copied
///     assert_eq!(byte, [7]);
///     faults.close(&mut idle);
/// });
/// # Ok::<(), MmError>(())
/// ```
#[derive(Debug)]
pub struct UserFaults {
    space: Arc<AddressSpace>,
    queue: Arc<Queue>,
}

impl UserFaults {
    /// Creates a handler of faults in `space`, without registrations.
    pub fn new(space: &Arc<AddressSpace>) -> Self {
        Self { space: space.clone(), queue: Arc::default() }
    }

    /// Posts later faults of this kind in the range to this handler. All of the range must be mapped, anonymous
    /// or shared (minor faults: shared), and registered with no other handler. Replaces earlier registrations
    /// with this handler. Present pages stay.
    pub fn register(&self, hvas: Span<Hva>, what: Serve) -> Result<(), MmError> {
        let hvas = aligned(hvas)?;
        let (claim, ()) = self.space.claim(&[hvas], |vmas| {
            vmas.covered(hvas)?;
            for vma in vmas.over(hvas) {
                let servable = match vma.backing {
                    Backing::Anonymous => what == Serve::Missing,
                    Backing::Shared { .. } => true,
                    Backing::Private { .. } => false,
                };
                if !servable {
                    return Err(MmError::Unservable(vma.span.clamp(&hvas)));
                }
                if vma.served.is_some() && !self.serves(vma) {
                    return Err(MmError::ServedByOther(vma.span.clamp(&hvas)));
                }
            }
            Ok((vec![hvas], ()))
        })?;
        let served = Served { queue: self.queue.clone(), what };
        self.serve_anew(&claim, hvas, || Some(served.clone()));
        Ok(())
    }

    /// Ends registrations in the range, and wakes threads that sleep there: their faults are served as usual.
    /// Skips parts that are not registered here.
    pub fn unregister(&self, _idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        self.let_go(aligned(hvas)?);
        Ok(())
    }

    /// Returns the next fault, in the order of posting. Waits up to `timeout` (zero: not at all; `None`:
    /// without limit).
    pub fn read(&self, _idle: &mut Idle, timeout: Option<Duration>) -> Result<UserFault, NoFault> {
        self.queue.read(timeout)
    }

    /// Wakes threads that sleep in the range, whether or not their pages are present. Faults on missing pages
    /// are posted again.
    pub fn wake(&self, hvas: Span<Hva>) {
        // Includes pages that the range covers in part.
        self.queue.wake(Span::new(page_of(hvas.start), page_of(hvas.end) + u64::from(hvas.end.offset() > 0)));
    }

    /// Ends all registrations, wakes all sleepers, and makes all reads return [`NoFault::Closed`].
    pub fn close(&self, _idle: &mut Idle) {
        self.shut();
    }

    /// Returns the number of sleeping threads, and of unread events.
    pub fn waiting(&self) -> (usize, usize) {
        self.queue.waiting()
    }

    fn shut(&self) {
        self.let_go(crate::vma::ADDRESSES);
        self.queue.close();
    }

    fn let_go(&self, hvas: Span<Hva>) {
        let claim = self.space.mappings().claim_one(hvas);
        self.serve_anew(&claim, hvas, || None);
    }

    /// Replaces the registrations of mappings in the range that are registered here or nowhere. Wakes sleepers
    /// of the earlier ones: a fault of a kind that is no longer served would sleep forever.
    fn serve_anew(&self, claim: &Claim<'_>, hvas: Span<Hva>, serve: impl Fn() -> Option<Served>) {
        let mut ended = Vec::new();
        self.space.edit(claim, |edit| {
            edit.change(hvas, |vma| {
                if vma.served.is_none() || self.serves(vma) {
                    ended.extend(vma.end_service());
                    vma.served = serve();
                }
            });
        });
        self.space.outlast(pages_of(hvas));
        end_service(ended.into_iter());
    }

    fn serves(&self, vma: &Vma) -> bool {
        vma.served.as_ref().is_some_and(|served| Arc::ptr_eq(&served.queue, &self.queue))
    }
}

impl Drop for UserFaults {
    /// Claims ranges and takes page locks, without an [`Idle`] as proof. Do not drop it inside a notification,
    /// where the thread holds locks of the address space.
    fn drop(&mut self) {
        self.shut();
    }
}

impl Vma {
    /// Posts an event if a handler serves this fault on an empty entry. The caller holds the page lock; it then
    /// releases its locks and sleeps.
    pub(crate) fn post(&self, page: Gfn, access: Access) -> Option<Asleep> {
        let served = self.served.as_ref()?;
        let there = match &self.backing {
            Backing::Shared { file, offset } => file.holds(self.file_page(page, *offset))?,
            _ => false,
        };
        let kind = if there { FaultKind::Minor } else { FaultKind::Missing };
        served.what.covers(kind).then(|| served.queue.post(page, access, kind))
    }

    /// Ends the mapping's registration. Once the earlier version is outlasted, the caller [wakes](end_service)
    /// the threads that sleep in it.
    pub(crate) fn end_service(&mut self) -> Option<(Served, Span<Gfn>)> {
        Some((self.served.take()?, pages_of(self.span)))
    }
}
