//! A VM whose host a test controls when it is asked for a page; and the final checks.

use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::Npt4;
use slat::table::{Heap, Own, TableMemory, TablesOf};
use slat::*;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};

pub const HVA: Hva = Hva(0x7f00_0000_0000);
pub const RAM: SlotId = SlotId(0);
/// The frames of [`RAM`].
pub const ALL: Span<Gfn> = Span::new(Gfn(0), Gfn(2048));
pub const POLICIES: [MmuLock; 3] = [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive];

/// The host's reaction to a question for a page.
pub enum When {
    /// It has no page.
    Refuses(HostError),
    /// It panics.
    Panics,
    /// It signals that it was asked, and waits.
    Waits(Sender<()>, Receiver<()>),
}

/// The host. See the module's header.
#[derive(Default)]
pub struct Staged {
    /// For the next question for the page that may sleep.
    asked: Mutex<HashMap<Gfn, When>>,
    /// Pages that it has elsewhere.
    moved: Mutex<HashMap<Gfn, Pfn>>,
    /// The host panics at the next question for this page without sleeping.
    pub looked_up: Mutex<Option<Gfn>>,
    pub large: AtomicBool,
    pub read_only: AtomicBool,
    pub kicks: AtomicU64,
    /// Chunks that are lent for tables.
    lent: AtomicU64,
}

// SAFETY: the heap's own functions, counted.
unsafe impl TableMemory for Staged {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.lent.fetch_add(1, SeqCst);
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        self.lent.fetch_sub(1, SeqCst);
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

impl Staged {
    fn page(&self, gfn: Gfn) -> HostPage {
        let moved = self.moved.lock().unwrap().get(&gfn).copied();
        let level = if self.large.load(SeqCst) && moved.is_none() { Level::M2 } else { Level::K4 };
        let pfn = moved.unwrap_or(Pfn(0x10_0000 + gfn.0));
        HostPage { pfn, level, writable: !self.read_only.load(SeqCst), ..HostPage::PLAIN }
    }

    /// Sets the reaction to the next question for `gfn`.
    pub fn will(&self, gfn: Gfn, when: When) {
        self.asked.lock().unwrap().insert(gfn, when);
    }

    /// The next question for `gfn` signals the first channel, and waits for the second.
    pub fn will_wait(&self, gfn: Gfn) -> (Receiver<()>, Sender<()>) {
        let ((says, asked), (go, goes)) = (channel(), channel());
        self.will(gfn, When::Waits(says, goes));
        (asked, go)
    }

    pub fn moves(&self, gfn: Gfn, to: Pfn) {
        self.moved.lock().unwrap().insert(gfn, to);
    }
}

/// By reference, so that the host can be inspected when the VM is dropped.
pub struct Lent<'h>(pub &'h Staged);

// SAFETY: by way of the host's own.
unsafe impl TableMemory for Lent<'_> {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.0.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { self.0.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

fn gfn_of(hva: Hva) -> Gfn {
    Gfn((hva.0 - HVA.0) >> PAGE_SHIFT)
}

impl Host for Lent<'_> {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let gfn = gfn_of(hva);
        if self.0.looked_up.lock().unwrap().take_if(|panics| *panics == gfn).is_some() {
            resume_unwind(Box::new("the host's look-up"));
        }
        let page = self.0.page(gfn);
        let staged = self.0.asked.lock().unwrap().contains_key(&gfn);
        (!staged && (page.writable || access != Access::Write)).then_some(page)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let gfn = gfn_of(hva);
        let when = self.0.asked.lock().unwrap().remove(&gfn);
        let page = self.0.page(gfn);
        match when {
            Some(When::Refuses(error)) => return Err(error),
            Some(When::Panics) => resume_unwind(Box::new("the host")),
            Some(When::Waits(says, goes)) => {
                says.send(()).unwrap();
                goes.recv().unwrap();
            }
            None => {}
        }
        // The value from before the wait, which makes late answers dangerous.
        if access == Access::Write && !page.writable { Err(HostError::Fault) } else { Ok(page) }
    }

    fn kick(&self, _: VcpuId) {
        self.0.kicks.fetch_add(1, SeqCst);
    }
}

pub type TestVm<'h> = Vm<Npt4, Lent<'h>>;

/// Runs a test on a VM with four vCPUs, then checks the VM, and that all of its memory comes back.
pub fn on_a_vm(lock: MmuLock, test: impl FnOnce(&TestVm<'_>, &mut Idle)) {
    let host = Staged::default();
    super::watchdog::guarded("a test of failures", || {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::builder(Lent(&host)).vcpus(4).baseline(Baseline::NONE.mmu_lock(lock)).build().unwrap();
        let slot = Slot::new(RAM, ALL.start, ALL.len(), HVA);
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        test(&vm, &mut idle);
        is_sound(&vm, &mut idle);
    });
    assert_eq!(host.lent.load(SeqCst), 0, "the host has its memory back");
}

/// Every vCPU can fault, every page can be unmapped, no table page is missing.
fn is_sound(vm: &TestVm<'_>, idle: &mut Idle) {
    let host = vm.host().0;
    host.read_only.store(false, SeqCst);
    for id in 0..4 {
        for gfn in (ALL.start.0..ALL.end.0).step_by(61) {
            let _ = store(vm, idle, VcpuId(id), Gfn(gfn)).unwrap();
        }
    }
    for gfn in (ALL.start.0..ALL.end.0).step_by(61).map(Gfn) {
        let found = vm.memory().translate(idle, gfn).unwrap();
        let pfn = found.leaf.pfn + (gfn.0 - found.gfns.start.0);
        assert_eq!(pfn, host.page(gfn).pfn, "{gfn:?} is mapped to what the host has");
        assert!(found.leaf.perms.allows(Access::Write));
    }
    unmap(vm, idle, ALL);
    vm.collect(idle);
    assert_eq!(vm.stats().mapped_bytes(), 0);
    let pages = vm.table_pages(idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated, "{pages:?}");
}

/// A store of the guest's, by a fault.
pub fn store(vm: &TestVm<'_>, idle: &mut Idle, id: VcpuId, gfn: Gfn) -> Result<Next, FaultError> {
    let mut vcpu = vm.vcpu(id).expect("it is free");
    vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write })
}

/// The host unmaps `gfns`, and maps them again.
pub fn unmap(vm: &TestVm<'_>, idle: &mut Idle, gfns: Span<Gfn>) {
    let _change = vm.invalidate(hvas(gfns), Reason::Unmap).apply(idle).settle();
}

pub fn hvas(gfns: Span<Gfn>) -> Span<Hva> {
    Span::new(HVA + gfns.start.0 * PAGE_SIZE, HVA + gfns.end.0 * PAGE_SIZE)
}

pub fn one(gfn: Gfn) -> Span<Gfn> {
    Span::sized(gfn, 1)
}

/// An empty TLB.
pub struct NoTlb;

impl Translations for NoTlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}
