//! A VM on slat-mm whose host balances its nodes.
//!
//! ```text
//! arena       the frames of all nodes
//! └── space   one mapping from `BASE` on; a device may have pages pinned: the scanner leaves them alone
//!     ├── balancer  protects pages by a policy of slat-mm
//!     └── vm        one memslot, as large as the mapping; unmaps ranges by a [`RangeWalk`]
//! ```

use crate::scenarios::prelude::*;
use core::sync::atomic::{AtomicU64, Ordering};
use slat::trace::{Observer, RetryCause, TraceEvent};
use slat::{Again, Pages};
use slat_mm::{Balancer, NumaStats, Policy, Settings};

/// See the module's header.
pub struct Balanced<F: Format> {
    /// The VM.
    pub vm: Arc<Vm<F, HostView<Events>>>,
    /// The primary MMU.
    pub space: Arc<AddressSpace>,
    /// The VM as the primary MMU tells it: registered as long as it lives.
    _walked: Arc<Walked<F>>,
    balancer: Option<Balancer>,
    /// In atomics of `core`: counts cost no time.
    scans: AtomicU64,
    scan_ns: AtomicU64,
}

/// A builder of such a VM.
pub type BalancedBuilder<F> = Builder<F, HostView<Events>>;

/// The counts of balancing since the VM was made.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Calls that took something away from the guest: of ranges under [`Policy::Range`], of pages and runs under the others.
    pub unmaps: u64,
    /// Shootdowns. Nothing but the balancer takes pages away; where a page moves, the scan owed the shootdown.
    pub flushes: u64,
    /// Faults of the guest.
    pub faults: u64,
    /// slat-mm's own counts.
    pub balancing: NumaStats,
    /// How often table pages of the guest were freed, or are to be.
    pub tables_freed: u64,
    /// The time of all scans, in nanoseconds.
    pub scan_ns: u64,
}

impl<F: Format> Balanced<F> {
    /// A VM whose guest memory is so many new bytes of `space`. Without `settings` its host does not balance; if it `is_silent`, a
    /// negative control, it says of each flush that it was broadcast, and does none. `with` says what else the VM has.
    pub fn new(
        space: Arc<AddressSpace>,
        bytes: u64,
        (settings, walk, is_silent): (Option<Settings>, RangeWalk, bool),
        with: impl FnOnce(BalancedBuilder<F>) -> BalancedBuilder<F>,
    ) -> Result<Self> {
        let mapped = space.mmap(Place::Fixed(BASE), bytes, Prot::ReadWrite, Backing::Anonymous);
        mapped.map_err(|error| error.to_string())?;
        let host = HostView::observed(&space, Events::default()).with_kick(|vcpu| kick(vcpu.0));
        let host = host.with_broadcast(move |_| is_silent);
        let lock = if walk == RangeWalk::Kvm { MmuLock::ReadWrite } else { MmuLock::None };
        let vm = Arc::new(with_one_slot(
            with(Vm::builder(host).baseline(Baseline::NONE.mmu_lock(lock))),
            bytes / PAGE_SIZE,
        )?);
        let walked = Arc::new(Walked { vm: vm.clone(), walk });
        space.register(&walked);
        let balancer = settings.map(|settings| Balancer::new(&space, settings));
        Ok(Self { vm, space, _walked: walked, balancer, scans: 0.into(), scan_ns: 0.into() })
    }

    /// A vCPU's thread, which is out of the guest, scans [`Settings::scan_bytes`]; the other vCPUs are in the guest. As in Linux, the
    /// scanner has no thread of its own. So as many accesses lie between two scans under every policy, and what a policy costs shows
    /// in the time, not in the number of scans.
    pub fn scan(&self, idle: &mut Idle) -> Result<()> {
        let Some(balancer) = &self.balancer else { return Ok(()) };
        let began = now();
        balancer.scan(idle, balancer.settings().scan_bytes).map_err(|error| error.to_string())?;
        self.scan_ns.fetch_add(now() - began, Ordering::Relaxed);
        // ORDER(scans): Release pairs with the Acquire in `scans`: a guest that knows of a scan finds what the scan took away.
        self.scans.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Scans that are over.
    pub fn scans(&self) -> u64 {
        // ORDER(scans): Acquire pairs with the Release in `scan`.
        self.scans.load(Ordering::Acquire)
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let (stats, balancing) = (self.vm.stats(), self.space.numa_stats());
        let is_range = |balancer: &Balancer| balancer.settings().policy == Policy::Range;
        Counts {
            unmaps: if self.balancer.as_ref().is_some_and(is_range) {
                balancing.notified
            } else {
                balancing.told
            },
            flushes: stats.flushes.paid,
            faults: stats.mapped_faults + stats.permission_faults + stats.spurious_faults,
            balancing,
            tables_freed: self.vm.host().observer().tables_freed.load(Ordering::Relaxed)
                + stats.tables_waiting,
            scan_ns: self.scan_ns.load(Ordering::Relaxed),
        }
    }
}

// KVM's walk over a range that is invalidated, on a VM of this engine.
//
// ```text
// lock ─▶ unmap page by page ─▶ flush ─▶ unlock ─▶ the host changes its entries
//          └─ a thread waits for the lock: flush what is owed, unlock, let the thread in, lock, go on
// ```
// This is x86 as it was when the NUMA protection series was posted. Each fault takes the lock, and a walk must not unlock before it has
// flushed. So a walk flushes once, or as often as a fault comes while it walks, up to once for each page that is mapped.
//
// The lock is the engine's [`MmuLock::ReadWrite`](slat::baselines::MmuLock::ReadWrite), which it takes for one page at a time. The walk flushes after a page if a fault has
// come since the page before. That is where KVM's walk finds that a thread waits; the thread does not wait for this flush here.

/// How a VM unmaps a range that its host changes as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeWalk {
    /// slat's: without a lock, with one flush at the end.
    Slat,
    /// KVM's: with a lock, and with one more flush wherever a fault comes meanwhile.
    Kvm,
    /// KVM's where a thread always waits: with a flush after each page, and without a lock, so that nothing but the flushes costs.
    KvmContended,
}

/// Counts of events in a VM. Atomics of `core` cost no time.
#[derive(Debug, Default)]
pub struct Events {
    /// A fault has come.
    fault: AtomicBool,
    /// How often table pages of the guest were freed.
    pub tables_freed: AtomicU64,
}

impl Observer for Events {
    #[inline]
    fn observe(&self, event: TraceEvent) {
        match event {
            // A fault in the range that is walked waits for the walk's end: of such a fault the retry is told first. KVM's walk alone
            // clears the word, so that faults do not fight over its line.
            TraceEvent::Fault { .. } | TraceEvent::Retry { cause: RetryCause::Covered, .. }
                if !self.fault.load(Relaxed) =>
            {
                self.fault.store(true, Relaxed);
            }
            TraceEvent::TablesFreed { .. } => _ = self.tables_freed.fetch_add(1, Relaxed),
            _ => {}
        }
    }
}

/// A VM as its address space sees it. Register it in the VM's place.
pub struct Walked<F: Format> {
    /// The VM.
    pub vm: Arc<Vm<F, HostView<Events>>>,
    /// How it unmaps.
    pub walk: RangeWalk,
}

impl<F: Format> SecondaryMmu for Walked<F> {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        if self.walk == RangeWalk::Slat || event.why != Reason::Clear {
            return self.vm.around(idle, event, change);
        }
        // For a reason that is told page by page the engine unmaps nothing by itself.
        self.vm.around(idle, Event { why: Reason::Numa, ..event }, &mut |idle, pages| {
            self.unmap(idle, event.hvas, pages);
            change(idle, pages);
        })
    }

    fn heeds_pages(&self) -> bool {
        self.vm.heeds_pages()
    }
}

impl<F: Format> Walked<F> {
    /// Unmaps all of a range, page by page.
    fn unmap(&self, idle: &mut Idle, hvas: Span<Hva>, pages: &mut dyn Pages) {
        let host = self.vm.host();
        let fault = &host.observer().fault;
        fault.store(false, Relaxed);
        let mut at = hvas.start;
        while at < hvas.end {
            let page = host.lookup(at, Access::Read);
            let bytes = page.map_or(Level::K4, |page| page.level).bytes();
            let end = Hva((at.0 / bytes + 1) * bytes).min(hvas.end);
            pages.changed(idle, Span::new(at, end), None);
            if self.walk == RangeWalk::KvmContended || fault.swap(false, Relaxed) {
                pages.flush(idle);
            }
            at = end;
        }
        pages.flush(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 64;

    /// A VM with 64 pages, of which 16 are mapped, on a host that balances by ranges.
    fn balanced(walk: RangeWalk) -> Balanced<Ept4> {
        let arena = Arena::builder().limit(16 << 20).build().unwrap();
        let space = AddressSpace::builder(&arena).build().unwrap();
        let settings = Settings { policy: Policy::Range, ..Settings::default() };
        let balanced =
            Balanced::new(space, PAGES * PAGE_SIZE, (Some(settings), walk, false), |vm| vm).unwrap();
        let (mut idle, mut vcpu) = (idle().unwrap(), balanced.vm.vcpu(VcpuId(0)).unwrap());
        for gfn in (0..PAGES).step_by(4).map(Gfn) {
            let _ = vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access: Access::Write }).unwrap();
        }
        drop(vcpu);
        balanced
    }

    #[test]
    fn a_walk_flushes_once_or_for_each_mapped_page_where_a_thread_always_waits() {
        let walks = [RangeWalk::Slat, RangeWalk::Kvm, RangeWalk::KvmContended].map(|walk| {
            let balanced = balanced(walk);
            balanced.scan(&mut idle().unwrap()).unwrap();
            let counts = balanced.counts();
            assert_eq!((counts.unmaps, counts.balancing.protnone, counts.tables_freed), (1, 16, 0));
            assert_eq!(balanced.vm.stats().mapped_bytes(), 0);
            counts.flushes
        });
        assert_eq!(walks, [1, 1, 16]);
    }

    /// After each page that is unmapped something happens in the VM.
    struct After<'a>(&'a Events, TraceEvent, &'a mut dyn Pages);

    impl Pages for After<'_> {
        fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
            self.2.changed(idle, hvas, to);
            self.0.observe(self.1);
        }

        fn flush(&mut self, idle: &mut Idle) {
            self.2.flush(idle);
        }

        fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
    }

    #[test]
    fn kvms_walk_flushes_wherever_a_fault_comes() {
        let (vcpu, gfn) = (VcpuId(0), Gfn(0));
        let result = slat::trace::FaultResult::Spurious;
        let elsewhere = TraceEvent::Fault { vcpu, gfn, access: Access::Read, result };
        let inside = TraceEvent::Retry { vcpu, gfn, cause: RetryCause::Covered };
        let flushes = [elsewhere, inside, TraceEvent::GracePeriod].map(|event| {
            let balanced = balanced(RangeWalk::Kvm);
            let walked = Walked { vm: balanced.vm.clone(), walk: RangeWalk::Kvm };
            let memory = Span::sized(BASE, PAGES * PAGE_SIZE);
            let unmap = &mut |idle: &mut Idle, pages: &mut dyn Pages| {
                walked.unmap(idle, memory, &mut After(balanced.vm.host().observer(), event, pages));
            };
            balanced.vm.around(&mut idle().unwrap(), Event::new(memory, Reason::Numa), unmap).unwrap();
            balanced.vm.stats().flushes.paid
        });
        assert_eq!(flushes, [16, 16, 1]);
    }
}
