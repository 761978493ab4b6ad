//! Faults that a user's thread serves: demand paging, post-copy migration, lazy restore. The semantics are
//! those of Linux's userfaultfd; the differences are in the table.
//!
//! ```text
//! a thread that faults (a vCPU, or this process)           a handler's thread
//!   registered, and the page is missing?
//!   post an event, under the page lock ──────────────────▶ read
//!   let go of every lock, sleep                            copy │ zero_page │ continue_ │ wake
//!   awake ◀─────────────────────────────────────────────── each wakes who sleeps on its pages
//!   fault again, from the start
//! ```
//!
//! | | userfaultfd | here |
//! |---|---|---|
//! | registered | per mapping, one descriptor | the same: [`UserFaults::register`]; else [`MmError::ServedByOther`] |
//! | **missing**, anonymous | no entry | the same; registered memory gets no huge pages at faults |
//! | **missing**, shared file | no page in the page cache | the same; what a file was made with is in it |
//! | **minor** | a page in the cache, no entry; shmem | the same; shared mappings of a [`File`](crate::File) |
//! | private file mappings | refused, shmem's excepted | refused: [`MmError::Unservable`] |
//! | an event | read once, by one reader | the same; a wake before it is read takes it back |
//! | two threads on one page | an event each | the same |
//! | `UFFDIO_COPY`, `ZEROPAGE`, `CONTINUE` | all or nothing for a page; a short count says where it stopped | the same; [`Stopped`] says where and why |
//! | `EEXIST` | there is a page; no sleeper is woken | [`MmError::AlreadyThere`]; its sleepers are woken, so that none is forgotten |
//! | `ENOENT` | the mapping went away, or is not registered | [`MmError::NotServed`] |
//! | `EFAULT` of `CONTINUE` | no page in the cache | [`MmError::NotInFile`] |
//! | `UFFDIO_WAKE` | woken threads fault again, and post again | the same: [`UserFaults::wake`] |
//! | `UFFDIO_UNREGISTER`, close | wake all sleepers; faults are served as usual | the same: [`UserFaults::unregister`], [`close`](UserFaults::close), drop |
//! | munmap, mremap elsewhere | ends registration; sleepers need a wake | ends registration, and wakes |
//! | mremap in place, mprotect | keep it | the same |
//! | fork | the child is not registered | the same |
//! | write protection, events of forks and unmaps | yes | no |
//!
//! **Nothing is lost.** A fault looks at the entry and posts under the page lock. A handler installs
//! a page under that lock and wakes afterwards: the fault sees the page, or the wake finds the sleeper.
//! Registration is a part of the mapping, which a fault reads under the page lock: it posts by the version before, which is outlasted
//! before sleepers are woken, or finds the one after.
//! A sleeper holds no lock, so pages may be resolved, unmapped and moved meanwhile; it then faults anew, by what
//! the mappings say by then.
//!
//! The process itself faults too: a handler that reads registered memory where a page is missing waits for itself.

mod queue;
mod resolve;

pub(crate) use queue::Asleep;
pub(crate) use queue::Served;
pub use queue::{FaultKind, NoFault, Serve, UserFault};
pub use resolve::Stopped;

use crate::change::end_service;
use crate::error::MmError;
use crate::mappings::Claim;
use crate::pte::{page_of, pages_of};
use crate::space::AddressSpace;
use crate::vma::{Backing, Vma, aligned};
use queue::Queue;
use slat::{Access, Gfn, Hva, Idle, Span};
use std::sync::Arc;
use std::time::Duration;

/// A handler of faults, with its queue: what userfaultfd's file descriptor is. Any number of threads may read and
/// resolve through one. Dropping it closes it.
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
    /// A handler of faults in `space`, registered nowhere.
    pub fn new(space: &Arc<AddressSpace>) -> Self {
        Self { space: space.clone(), queue: Arc::default() }
    }

    /// From now on faults of this kind in the range are posted here. All of it must be mapped, anonymous or shared
    /// (minor faults: shared), and registered by no other handler. What was registered here is registered anew. Pages that are there
    /// stay.
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

    /// Takes the registration back, and wakes who sleeps in the range: their faults are served as usual. What is
    /// not registered here is passed over.
    pub fn unregister(&self, _idle: &mut Idle, hvas: Span<Hva>) -> Result<(), MmError> {
        self.let_go(aligned(hvas)?);
        Ok(())
    }

    /// The next fault, in the order in which they happened; waits for one until `timeout` has passed (zero: not at
    /// all; `None`: for ever).
    pub fn read(&self, _idle: &mut Idle, timeout: Option<Duration>) -> Result<UserFault, NoFault> {
        self.queue.read(timeout)
    }

    /// Wakes who sleeps in the range, whether or not the pages are there now. Where they are not, the faults are
    /// posted again.
    pub fn wake(&self, hvas: Span<Hva>) {
        // A page that is touched is meant.
        self.queue.wake(Span::new(page_of(hvas.start), page_of(hvas.end) + u64::from(hvas.end.offset() > 0)));
    }

    /// Takes all registrations back, wakes all sleepers and sends all readers away.
    pub fn close(&self, _idle: &mut Idle) {
        self.shut();
    }

    /// How many threads sleep now, and how many events have not been read.
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

    /// Registers the mappings of the range anew that are registered here, or nowhere. What was registered before is served no more, so
    /// sleepers are woken: a fault of a kind that is served no more would sleep for ever.
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
    /// Claims ranges, and takes page locks, without an [`Idle`] to show: drop it where the thread holds none of the address space's
    /// locks, which is everywhere but in a notification.
    fn drop(&mut self) {
        self.shut();
    }
}

impl Vma {
    /// At a fault on an empty entry, under its page lock: if a handler is to serve it, posts the event. The caller
    /// lets go of its locks, and sleeps.
    pub(crate) fn post(&self, page: Gfn, access: Access) -> Option<Asleep> {
        let served = self.served.as_ref()?;
        let there = match &self.backing {
            Backing::Shared { file, offset } => file.holds(self.file_page(page, *offset))?,
            _ => false,
        };
        let kind = if there { FaultKind::Minor } else { FaultKind::Missing };
        served.what.covers(kind).then(|| served.queue.post(page, access, kind))
    }

    /// The mapping is no longer registered. Once the version before is outlasted, threads that sleep in it are to be
    /// [woken](end_service).
    pub(crate) fn end_service(&mut self) -> Option<(Served, Span<Gfn>)> {
        Some((self.served.take()?, pages_of(self.span)))
    }
}
