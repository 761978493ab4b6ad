//! A VM on slat-mm whose host balances its nodes.
//!
//! ```text
//! arena       the frames of all nodes
//! └── space   one mapping from `BASE` on; a device may have pages pinned: the scanner leaves them alone
//!     ├── balancer  protects pages by a policy of slat-mm
//!     └── vm        one memslot, as large as the mapping; unmaps ranges by a [`RangeWalk`]
//! ```

use super::kvm_walk::{Events, RangeWalk, Walked};
use crate::scenarios::prelude::*;
use core::sync::atomic::{AtomicU64, Ordering};
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
    ) -> Result<Self, String> {
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
    pub fn scan(&self, idle: &mut Idle) -> Result<(), String> {
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
