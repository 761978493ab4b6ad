//! A VM on a host that a test controls, for one thread: the starting state of an operation.

use crate::sync::prim::{AtomicBool, AtomicU64, Relaxed};
use crate::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::vec::Vec;

/// The host address of [`RAM`].
pub(super) const HVA: Hva = Hva(0x7f00_0000_0000);
/// The frames of slot 0: two leaf tables.
pub(super) const ALL: Span<Gfn> = Span::new(Gfn(0), Gfn(1024));
/// Some of these frames, in both tables.
pub(super) const PART: Span<Gfn> = Span::new(Gfn(64), Gfn(576));
/// One of these frames.
pub(super) const ONE: Span<Gfn> = Span::new(Gfn(65), Gfn(66));
/// The frames that are mapped in most rows: the edges of words, of tables, and of [`PART`].
pub(super) const EDGES: [u64; 16] =
    [0, 1, 63, 64, 65, 127, 128, 510, 511, 512, 513, 575, 576, 640, 1022, 1023];
/// The frames of slot 1, if the format has pages of 1 GiB: one such page.
pub(super) const GIB: Span<Gfn> = Span::new(Gfn(1 << 18), Gfn(2 << 18));
/// The host's frame for host page 0.
const FRAMES: u64 = 1 << 20;

/// A host whose frames follow from addresses, except for pages that a test has placed elsewhere.
pub(super) struct Backing {
    pub(super) level: AtomicU64,
    pub(super) writable: AtomicBool,
    /// Whether it answers without sleeping.
    pub(super) answers: AtomicBool,
    elsewhere: Mutex<BTreeMap<Hva, HostPage>>,
}

impl Backing {
    fn page(&self, hva: Hva) -> HostPage {
        let usual = HostPage {
            pfn: Pfn(FRAMES + ((hva.0 - HVA.0) >> PAGE_SHIFT)),
            level: Level::new(self.level.load(Relaxed) as u8).unwrap(),
            writable: self.writable.load(Relaxed),
            ..HostPage::PLAIN
        };
        self.elsewhere.lock().unwrap().get(&hva).copied().unwrap_or(usual)
    }
}

impl Host for Backing {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        self.answers.load(Relaxed).then(|| self.page(hva))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(self.page(hva))
    }
}

/// A VM and its host. See the module's header.
pub(super) struct World<F: Format> {
    pub(super) vm: Vm<F, Backing>,
    /// Pages that harvests have returned.
    told: Mutex<BTreeSet<Gfn>>,
}

impl<F: Format> World<F> {
    pub(super) fn new(
        idle: &mut Idle,
        built: impl FnOnce(Builder<F, Backing>) -> Builder<F, Backing>,
    ) -> Self {
        let host = Backing {
            level: AtomicU64::new(1),
            writable: AtomicBool::new(true),
            answers: AtomicBool::new(true),
            elsewhere: Mutex::default(),
        };
        let vm = built(Vm::<F, _>::builder(host).vcpus(2)).build().unwrap();
        let ram = |id, gfns: Span<Gfn>| Slot::new(SlotId(id), gfns.start, gfns.len(), hva(gfns.start));
        vm.memory().commit(idle, |tx| tx.create(ram(0, ALL))).unwrap();
        if F::MAX_LEAF >= Level::G1 {
            vm.memory().commit(idle, |tx| tx.create(ram(1, GIB))).unwrap();
        }
        Self { vm, told: Mutex::default() }
    }

    /// Sets the size of the host's pages.
    pub(super) fn host_maps(&self, level: Level) {
        self.vm.host().level.store(level.number().into(), Relaxed);
    }

    /// Sets whether the host lets the guest write.
    pub(super) fn host_lets_write(&self, writable: bool) {
        self.vm.host().writable.store(writable, Relaxed);
    }

    /// The guest accesses `gfn`, by a fault.
    pub(super) fn fault(&self, idle: &mut Idle, gfn: Gfn, access: Access) -> Next {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        vcpu.fault(idle, Fault { gpa: gfn.gpa(), access }).unwrap()
    }

    /// The guest stores to `gfn`: by the hardware, if the leaf allows it.
    pub(super) fn store(&self, idle: &mut Idle, gfn: Gfn) {
        // SAFETY: tables are given back by `collect`, which is not called meanwhile.
        let at = unsafe { self.vm.spaces[0].radix.descend(self.vm.tables(), gfn) };
        if F::is_present(at.word) && F::writable(at.word) {
            assert!(at.entry.touch(at.word, F::touch(Access::Write)));
        } else {
            let _ = self.fault(idle, gfn, Access::Write);
        }
    }

    /// The guest stores to each of [`EDGES`].
    pub(super) fn populate(&self, idle: &mut Idle) {
        for gfn in EDGES {
            self.store(idle, Gfn(gfn));
        }
    }

    /// Maps both tables of slot 0 by large leaves.
    pub(super) fn populate_large(&self, idle: &mut Idle) {
        self.host_maps(Level::M2);
        for gfn in [0, 512] {
            assert_eq!(self.fault(idle, Gfn(gfn), Access::Write), Next::Resume(Resume::Mapped(Level::M2)));
        }
    }

    pub(super) fn log(&self, idle: &mut Idle, on: bool) {
        self.vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(0), on)).unwrap();
    }

    pub(super) fn harvest(&self, idle: &mut Idle) {
        let harvest = self.vm.memory().harvest(idle, SlotId(0)).unwrap();
        self.told.lock().unwrap().extend(harvest.iter().map(|page| page.gfn));
        harvest.commit();
    }

    /// Records that a harvest returned `gfn`.
    pub(super) fn told(&self, gfn: Gfn) {
        self.told.lock().unwrap().insert(gfn);
    }

    /// Whether `gfn` is in its slot's log, or a harvest returned it.
    pub(super) fn knows_dirty(&self, idle: &mut Idle, gfn: Gfn) -> bool {
        let mut found = self.told.lock().unwrap().contains(&gfn);
        // A slot that does not log has no dirty pages.
        let _ = self.vm.memory().dirty(idle, SlotId(0), |dirty| found |= dirty == gfn);
        found
    }

    /// An invalidation from begin to end, in which the host changes nothing.
    pub(super) fn invalidate(&self, idle: &mut Idle, gfns: Span<Gfn>, why: Reason) {
        let _change = self.vm.invalidate(hvas(gfns), why).apply(idle).settle();
    }

    /// The host maps `gfns`, one by one, to these pages, and reports each.
    pub(super) fn change(&self, idle: &mut Idle, why: Reason, changes: &[(Gfn, Option<HostPage>)]) {
        let event = Event::new(hvas(ALL), why);
        let change = &mut |idle: &mut Idle, told: &mut dyn Pages| {
            for &(gfn, to) in changes {
                self.vm.host().elsewhere.lock().unwrap().extend(to.map(|page| (hva(gfn), page)));
                told.changed(idle, Span::sized(hva(gfn), PAGE_SIZE), to);
            }
        };
        self.vm.around(idle, event, change).unwrap();
    }

    /// The host's page may not be executed from now on.
    pub(super) fn host_forbids_fetches(&self, gfn: Gfn) {
        let page = HostPage { execute: false, ..self.vm.host().page(hva(gfn)) };
        self.vm.host().elsewhere.lock().unwrap().insert(hva(gfn), page);
    }

    /// Returns the published slots.
    pub(super) fn slots(&self) -> Vec<Slot> {
        let seat = self.vm.borrow_seat_without_idle();
        let reading = self.vm.spaces[0].memslots.read(&self.vm.reads, &seat);
        reading.version().range(Span::new(Gfn(0), Gfn(u64::MAX))).collect()
    }
}

/// Returns a small page of the host's.
pub(super) fn page(pfn: Pfn, writable: bool) -> HostPage {
    HostPage { pfn, writable, ..HostPage::PLAIN }
}

/// Returns the host's default frame for `gfn`.
pub(super) fn frame(gfn: Gfn) -> Pfn {
    Pfn(FRAMES + gfn.0)
}

/// The host address of `gfn`.
pub(super) fn hva(gfn: Gfn) -> Hva {
    HVA + gfn.0 * PAGE_SIZE
}

/// The host addresses of `gfns`.
pub(super) fn hvas(gfns: Span<Gfn>) -> Span<Hva> {
    Span::new(hva(gfns.start), hva(gfns.end))
}
