//! KVM's lock around the same engine, and its walk over a range: what a flush for each page came from.
//!
//! ```text
//! fault         ask the host ─▶ lock, shared ─▶ map
//! invalidation  lock ─▶ unmap page by page ─▶ flush ─▶ unlock ─▶ the host changes its entries
//!                        └─ a thread wants the lock: flush what is owed, let it in, go on
//! ```
//! As on x86 when the NUMA protection series was posted. A walk whose lock is contended may not let go of it before it has flushed.
//! A fault inside the range that is walked took the lock only to find that it had to come again; here the engine makes that fault
//! wait, and [`Host::observe`] tells the walk of it once. So the walk yields less often than KVM's, where such a fault came back at once.
//! A fault maps its page just after it has left the lock: the engine's own rules keep that right.

use parking_lot::{RwLock, RwLockWriteGuard};
use slat::table::formats::Npt4;
use slat::trace::{RetryCause, TraceEvent};
use slat::{Access, Again, Event, Host, HostError, HostPage, Hva, Idle, Level, Pages, SecondaryMmu, Span};
use slat::{TableMemory, Vm, Why};
use slat_mm::HostView;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::{hint, thread};

/// The VMs here.
pub type Guest = Vm<Npt4, Behind>;

/// The lock. Threads spin for it, as in KVM. A walk looks at the rest after each page.
#[derive(Default)]
struct Lock {
    lock: RwLock<()>,
    /// Threads that want it.
    waiting: AtomicU32,
    /// Threads that have got it, so far.
    entered: AtomicU32,
    /// A fault met the range that is walked.
    met: AtomicBool,
}

type Held<'l> = Option<RwLockWriteGuard<'l, ()>>;

impl Lock {
    fn wait<'l, G>(&'l self, take: impl Fn(&'l RwLock<()>) -> Option<G>) -> G {
        self.waiting.fetch_add(1, Relaxed);
        let guard = spin(|| take(&self.lock));
        self.waiting.fetch_sub(1, Relaxed);
        self.entered.fetch_add(1, Relaxed);
        guard
    }

    fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.wait(RwLock::try_write)
    }

    fn is_contended(&self) -> bool {
        self.met.swap(false, Relaxed) || self.waiting.load(Relaxed) > 0
    }

    /// Lets in as many threads as wait.
    fn let_in<'l>(&'l self, held: &mut Held<'l>) {
        let due = self.entered.load(Relaxed).wrapping_add(self.waiting.load(Relaxed));
        *held = None;
        spin(|| (self.entered.load(Relaxed).wrapping_sub(due).cast_signed() >= 0).then_some(()));
        *held = Some(self.write());
    }
}

/// Until there is something.
fn spin<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        for _ in 0..1 << 10 {
            if let Some(found) = look() {
                return found;
            }
            hint::spin_loop();
        }
        thread::yield_now();
    }
}

/// An address space whose VM's faults take the lock, if there is one.
pub struct Behind {
    view: HostView,
    lock: Option<Lock>,
}

impl Behind {
    pub fn new(view: HostView, locked: bool) -> Self {
        Self { view, lock: locked.then(Lock::default) }
    }
}

// SAFETY: all of it is the default.
unsafe impl TableMemory for Behind {}

impl Host for Behind {
    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        // Without an answer the fault goes to `resolve`.
        if self.lock.is_some() { None } else { self.view.lookup(hva, access) }
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        // First the host, as in KVM: it may invalidate, which takes the lock.
        let page = self.view.resolve(idle, hva, access);
        if let Some(lock) = &self.lock {
            drop(lock.wait(RwLock::try_read));
        }
        page
    }

    #[inline]
    fn observe(&self, event: TraceEvent) {
        if let (Some(lock), TraceEvent::Retry { cause: RetryCause::Covered, .. }) = (&self.lock, event) {
            lock.met.store(true, Relaxed);
        }
    }
}

/// A VM as its address space sees it. Register it in the VM's place.
pub struct Walked(pub Arc<Guest>);

impl SecondaryMmu for Walked {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let Some(lock) = &self.0.host().lock else { return self.0.around(idle, event, change) };
        if !event.may_block {
            return Err(Again);
        }
        let mut held = Some(lock.write());
        // Told as what is unmapped page by page, so that the walk is ours.
        let walks = event.why == Why::Clear;
        let why = if walks { Why::Numa } else { event.why };
        self.0.around(idle, Event { why, ..event }, &mut |idle, told| {
            if walks {
                self.walk(idle, event.hvas, told, (lock, &mut held));
            }
            held = None;
            change(idle, &mut Locked(lock, told));
        })
    }

    fn heeds_pages(&self) -> bool {
        self.0.heeds_pages()
    }
}

impl Walked {
    /// Unmaps all of a range, with a flush wherever the lock is contended, and one at its end.
    fn walk<'l>(
        &self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        told: &mut dyn Pages,
        (lock, held): (&'l Lock, &mut Held<'l>),
    ) {
        lock.met.store(false, Relaxed);
        let mut at = hvas.start;
        while at < hvas.end {
            let page = self.0.host().view.lookup(at, Access::Read);
            let bytes = page.map_or(Level::K4, |page| page.level).bytes();
            let end = Hva((at.0 / bytes + 1) * bytes).min(hvas.end);
            told.changed(idle, Span::new(at, end), None);
            if lock.is_contended() {
                told.flush(idle);
                lock.let_in(held);
            }
            at = end;
        }
        told.flush(idle);
    }
}

/// What is told page by page takes the lock each time, and does not yield it: the series' callback may not block.
struct Locked<'a>(&'a Lock, &'a mut dyn Pages);

impl Pages for Locked<'_> {
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        let _held = self.0.write();
        self.1.changed(idle, hvas, to);
    }

    fn flush(&mut self, idle: &mut Idle) {
        let _held = self.0.write();
        self.1.flush(idle);
    }

    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        self.1.settle(idle, hvas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat::{Fault, Gfn, PAGE_SIZE, Slot, SlotId, VcpuId};
    use slat_mm::{AddressSpace, Arena, Backing, Place, Prot};

    /// A fault meets the walk at each page, or at none.
    struct Meeting<'a>(&'a Lock, bool, &'a mut dyn Pages);

    impl Pages for Meeting<'_> {
        fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
            self.2.changed(idle, hvas, to);
            self.0.met.store(self.1, Relaxed);
        }

        fn flush(&mut self, idle: &mut Idle) {
            self.2.flush(idle);
        }

        fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
    }

    /// Flushes of a walk over 64 pages of which 16 are mapped.
    fn flushes(met: bool) -> u64 {
        const BASE: Hva = Hva(0x1000_0000_0000);
        let mut idle = slat_cli::thread::idle().unwrap();
        let arena = Arena::builder().limit(16 << 20).build().unwrap();
        let space = AddressSpace::builder(&arena).build().unwrap();
        let memory =
            space.mmap(Place::Fixed(BASE), 64 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let vm = Arc::new(Guest::builder(Behind::new(HostView::new(&space), true)).build().unwrap());
        let walked = Walked(vm.clone());
        vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 64, BASE))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in (0..64).step_by(4).map(Gfn) {
            vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access: Access::Write }).unwrap();
        }
        let lock = vm.host().lock.as_ref().unwrap();
        let mut held = Some(lock.write());
        let walk = &mut |idle: &mut Idle, told: &mut dyn Pages| {
            walked.walk(idle, memory, &mut Meeting(lock, met, told), (lock, &mut held));
        };
        vm.around(&mut idle, Event::new(memory, Why::Numa), walk).unwrap();
        assert_eq!((held.is_some(), vm.stats().mapped_bytes()), (true, 0));
        vm.stats().flushes.paid
    }

    #[test]
    fn a_walk_flushes_once_or_for_each_mapped_page_where_a_thread_always_wants_its_lock() {
        assert_eq!([false, true].map(flushes), [1, 16]);
    }

    /// A walk that yields goes on when the thread that waits has had the lock, not before.
    #[test]
    fn all_who_wait_are_let_in() {
        let (lock, went) = (Lock::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let mut held = Some(lock.write());
            slat_cli::thread::start(scope, || {
                let _held = lock.write();
                went.store(true, Relaxed);
            });
            spin(|| lock.is_contended().then_some(()));
            lock.let_in(&mut held);
            assert!(held.is_some() && went.load(Relaxed));
        });
    }
}
