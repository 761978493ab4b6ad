//! An address space as the host of a VM: answers what the engine asks.

use crate::arena::ArenaHandle;
use crate::space::AddressSpace;
use slat::table::Word;
use slat::table::{Own, TableMemory, TablesOf};
use slat::trace::{Observer, TraceEvent};
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Pfn, Span, VcpuId};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// An [`AddressSpace`] as a [`Host`]. Build a [`Vm`](slat::Vm) on it, then register the VM with the address
/// space:
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// use slat_mm::*;
/// use std::sync::Arc;
///
/// let arena = Arena::builder().limit(64 << 20).build()?;
/// let space = AddressSpace::builder(&arena).build()?;
/// let vm: Arc<Vm<Npt4, HostView>> = Arc::new(Vm::<Npt4, _>::builder(HostView::new(&space)).build()?);
/// space.register(&vm);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `O` observes events of the VM ([`slat::trace`]). `()` observes nothing and costs nothing.
///
/// ```
/// # use slat::{table::formats::Npt4, trace::{Observer, TraceEvent}, *};
/// # use slat_mm::*;
/// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// #[derive(Default)]
/// struct Faults(AtomicU64);
/// impl Observer for Faults {
///     fn observe(&self, event: TraceEvent) {
///         self.0.fetch_add(u64::from(matches!(event, TraceEvent::Fault { .. })), Relaxed);
///     }
/// }
/// # let arena = Arena::builder().limit(64 << 20).build()?;
/// # let space = AddressSpace::builder(&arena).build()?;
/// let vm = Vm::<Npt4, _>::builder(HostView::observed(&space, Faults::default())).build()?;
/// let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(0)).unwrap());
/// vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Read })?;
/// assert_eq!(vm.host().observer().0.load(Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// vCPUs that do not poll need a kick, for example a signal to the thread that is in `KVM_RUN`:
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// use slat_mm::*;
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// # let arena = Arena::builder().limit(64 << 20).build()?;
/// # let space = AddressSpace::builder(&arena).build()?;
/// static KICKS: AtomicU32 = AtomicU32::new(0);
/// let host = HostView::new(&space).with_kick(|_vcpu| {
///     KICKS.fetch_add(1, Relaxed); // pthread_kill
/// });
/// host.kick(VcpuId(0));
/// assert_eq!(KICKS.load(Relaxed), 1);
/// # Ok::<(), MmError>(())
/// ```
///
/// A panic of the observer, of `kick` or of `broadcast` is printed, and goes no further: the change of the address space
/// goes on. Such a broadcast counts as refused, and the VM waits for the vCPU that such a kick did not reach.
///
/// Where another MMU holds the translations of all processors, [broadcast](Self::with_broadcast) flushes to it.
#[derive(Clone)]
pub struct HostView<O = ()> {
    space: Arc<AddressSpace>,
    tables: ArenaHandle,
    kick: Option<Arc<dyn Fn(VcpuId) + Send + Sync>>,
    broadcast: Option<Arc<dyn Fn(Span<Gfn>) -> bool + Send + Sync>>,
    observer: O,
}

impl<O> fmt::Debug for HostView<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostView").field("space", &self.space).finish_non_exhaustive()
    }
}

impl HostView {
    /// Builds a view of `space`, and keeps `space` alive.
    pub fn new(space: &Arc<AddressSpace>) -> Self {
        Self::observed(space, ())
    }
}

impl<O> HostView<O> {
    /// Like `new`, with an observer of the VM that is built on it.
    pub fn observed(space: &Arc<AddressSpace>, observer: O) -> Self {
        Self {
            space: space.clone(),
            tables: ArenaHandle::from(space.arena()),
            kick: None,
            broadcast: None,
            observer,
        }
    }

    /// [Kicks](Host::kick) vCPUs by calling `kick`. Without this, vCPUs poll.
    #[must_use]
    pub fn with_kick(self, kick: impl Fn(VcpuId) + Send + Sync + 'static) -> Self {
        Self { kick: Some(Arc::new(kick)), ..self }
    }

    /// [Broadcasts](Host::broadcast_flush) flushes by calling `broadcast`. Without this, flushes kick vCPUs.
    ///
    /// ```
    /// # use slat::{table::formats::Npt4, *};
    /// # use slat_mm::*;
    /// # let arena = Arena::builder().limit(64 << 20).build()?;
    /// # let space = AddressSpace::builder(&arena).build()?;
    /// let host = HostView::new(&space).with_broadcast(|gfns| {
    ///     // Only KVM's tables hold translations: remove `gfns` from the mapping that its memslots point at.
    ///     true
    /// });
    /// assert!(host.broadcast_flush(Span::new(Gfn(0), Gfn(9))));
    /// # Ok::<(), MmError>(())
    /// ```
    #[must_use]
    pub fn with_broadcast(self, broadcast: impl Fn(Span<Gfn>) -> bool + Send + Sync + 'static) -> Self {
        Self { broadcast: Some(Arc::new(broadcast)), ..self }
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// The address space.
    pub fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }
}

// SAFETY: forwards to the arena's handle, which keeps the contract.
unsafe impl<O: Observer> TableMemory for HostView<O> {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.tables.lend(pages).inspect(|_| self.space.lru_lend(1))
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        self.space.lru_lend(-1);
        // SAFETY: required of the caller.
        unsafe { self.tables.take_back(first, pfn, pages) }
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        self.tables.at(pfn)
    }
}

impl<O: Observer> Host for HostView<O> {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.space.lookup(hva, access)
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        Ok(self.space.fault(idle, hva, access)?)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        // ORDER(guest): Acquire, as in a walker: memory that an entry names is read after the entry.
        self.space.with_words(hva, 1, Access::Read, |words| Word(u64::from_le(words[0].load(Acquire))))
    }

    // One page lookup for all words; the default takes one for each of 512.
    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        // ORDER(guest): Acquire, each, as in `read`.
        let read = |(word, from): (&mut Word, &AtomicU64)| *word = Word(u64::from_le(from.load(Acquire)));
        let all = self.space.with_words(hva, words.len(), Access::Read, |from| {
            words.iter_mut().zip(from).for_each(read);
        });
        all.is_some()
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        self.space.with_words(hva, 1, Access::Write, |words| {
            // ORDER(guest): AcqRel, as a walker's update of A and D.
            let old = words[0].compare_exchange(current.0.to_le(), new.0.to_le(), AcqRel, Acquire);
            let native = |word| Word(u64::from_le(word));
            old.map(native).map_err(native)
        })
    }

    fn kick(&self, vcpu: VcpuId) {
        if let Some(kick) = &self.kick {
            _ = caught(|| kick(vcpu));
        }
    }

    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        self.broadcast.as_ref().is_some_and(|broadcast| caught(|| broadcast(gfns)).unwrap_or(false))
    }

    #[inline(always)]
    fn observe(&self, event: TraceEvent) {
        _ = caught(|| self.observer.observe(event));
    }
}

/// Returns the answer of the embedder's code; `None` if it panicked, which its thread has printed. A VM calls this code
/// while an address space changes: a panic must not unwind through the middle of the change.
#[inline(always)]
fn caught<R>(code: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(code)).ok()
}
