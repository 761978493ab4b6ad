//! The machine of the cases: a host whose table, memory and kicks the case controls, and its VM.

use slat::oracle::{Checks, Rule};
use slat::table::{Heap, Own, TableMemory, TablesOf, formats::Ept4};
use slat::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The address of guest frame 0.
pub const RAM: Hva = Hva(0x4000_0000);

/// The addresses of a guest frame.
pub fn hvas(gfn: u64) -> Span<Hva> {
    Span::sized(RAM + gfn * PAGE_SIZE, PAGE_SIZE)
}

/// A small page of this frame.
pub fn page(pfn: u64) -> HostPage {
    HostPage { pfn: Pfn(pfn), ..HostPage::PLAIN }
}

/// A page of table memory, by address.
#[derive(Clone, Copy)]
struct At(NonNull<u8>);

// SAFETY: the engine says which thread uses a page.
unsafe impl Send for At {}
// SAFETY: as above.
unsafe impl Sync for At {}

/// A host that does what its case says.
#[derive(Default)]
pub struct Machine {
    pages: Mutex<BTreeMap<u64, HostPage>>,
    tables: Mutex<BTreeMap<Pfn, At>>,
    /// The frame of the next page that is lent.
    pub lends: Mutex<Option<Pfn>>,
    /// The next page that is lent is misaligned by so many bytes.
    pub lends_beside: Mutex<usize>,
    /// Table pages are seen at another address.
    pub at_is_wrong: AtomicBool,
    /// Answers without sleeping are possible.
    pub sleeps: AtomicBool,
    /// Answers whatever the access is.
    pub answers_all: AtomicBool,
    pub broadcasts: AtomicBool,
    /// Number of table pages that were given back.
    pub given_back: Arc<AtomicUsize>,
}

impl Machine {
    fn answer(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let page = self.pages.lock().unwrap().get(&(hva.0 >> PAGE_SHIFT)).copied()?;
        let allows = match access {
            Access::Read => true,
            Access::Write => page.writable,
            Access::Fetch => page.execute,
        };
        (allows || self.answers_all.load(Relaxed)).then_some(page)
    }

    /// Number of table pages that were lent.
    pub fn lent(&self) -> usize {
        self.tables.lock().unwrap().len()
    }

    pub fn set(&self, gfn: u64, page: impl Into<Option<HostPage>>) {
        let (number, mut pages) = ((RAM.0 >> PAGE_SHIFT) + gfn, self.pages.lock().unwrap());
        match page.into() {
            Some(page) => pages.insert(number, page),
            None => pages.remove(&number),
        };
    }
}

// SAFETY: pages of the heap; `at` leads from a frame to its page, but where a case is about that. Then the oracle's panic
// comes before the page is used.
unsafe impl TableMemory for Machine {
    const SINGLE_PAGES: bool = true;

    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let first = Heap.lend(pages)?.0;
        let mut tables = self.tables.lock().unwrap();
        let next = Pfn(0x7_0000 + tables.len() as u64);
        let pfn = self.lends.lock().unwrap().take().unwrap_or(next);
        tables.entry(pfn).or_insert(At(first));
        let beside = std::mem::take(&mut *self.lends_beside.lock().unwrap());
        // SAFETY: inside the page.
        Some((unsafe { first.add(beside) }, pfn))
    }

    // Leaked: a case may lend a page that it must not.
    unsafe fn take_back(&self, _: NonNull<u8>, _: Pfn, pages: usize) {
        self.given_back.fetch_add(pages, Relaxed);
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        if self.at_is_wrong.load(Relaxed) { NonNull::dangling() } else { self.tables.lock().unwrap()[&pfn].0 }
    }
}

impl Host for Machine {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        if self.sleeps.load(Relaxed) { None } else { self.answer(hva, access) }
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.answer(hva, access).ok_or(HostError::Fault)
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        self.broadcasts.load(Relaxed)
    }
}

/// A TLB that forgets nothing, on a processor of choice.
#[derive(Default)]
pub struct Tlb(pub u64);

impl Translations for Tlb {
    fn cpu(&self) -> CpuId {
        CpuId(self.0)
    }
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

/// A VM, and what it needs.
pub struct Fixture<'a> {
    pub vm: &'a Vm<Ept4, Machine>,
    pub idle: &'a mut Idle,
}

impl Fixture<'_> {
    /// Sets the host's page at a guest frame.
    pub fn set(&self, gfn: u64, page: impl Into<Option<HostPage>>) {
        self.vm.host().set(gfn, page);
    }

    /// Makes the VM ask the host for a page.
    pub fn ask(&mut self, gfn: u64, access: Access) {
        self.vm.zap_all(self.idle).unwrap();
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(self.idle, Fault { gpa: Gfn(gfn).gpa(), access });
    }

    /// Changes pages in a change of one frame.
    pub fn change(&mut self, gfn: u64, why: Why, change: impl FnOnce(&Machine)) {
        self.vm.change(self.idle, hvas(gfn), why, |_| change(self.vm.host()));
    }

    /// Runs `work`, of which a report may be a panic.
    pub fn tries(&mut self, work: impl FnOnce(&mut Self)) {
        let _ = catch_unwind(AssertUnwindSafe(|| work(self)));
    }
}

/// The settings of a VM.
pub type Settings = fn(Builder<Ept4, Machine>) -> Builder<Ept4, Machine>;

fn with_vm(checks: Option<Checks>, settings: Settings, work: impl FnOnce(&mut Fixture<'_>)) {
    let mut idle = Idle::take().unwrap();
    let builder =
        Vm::<Ept4, _>::builder(Machine::default()).dirty_log(DirtyLog::bitmap().track(Track::DirtyBits));
    let builder = if let Some(checks) = checks { builder.checked_with(checks) } else { builder.checked() };
    let vm = settings(builder).build().unwrap();
    (0..1024).for_each(|gfn| vm.host().set(gfn, page(0x9000 + gfn)));
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1 << 18, RAM))).unwrap();
    work(&mut Fixture { vm: &vm, idle: &mut idle });
}

pub fn with_default_checks(work: impl FnOnce(&mut Fixture<'_>)) {
    with_vm(None, |vm| vm, work);
}

/// The time of a fault by one vCPU, in a new VM whose frames are the addresses.
pub fn nanoseconds_of_a_fault(is_checked: bool) -> f64 {
    const PAGES: u64 = if cfg!(debug_assertions) { 1 << 9 } else { 1 << 16 };
    let mut idle = Idle::take().unwrap();
    let builder = Vm::<Ept4, _>::builder(Linear);
    let builder = if is_checked { builder.checked() } else { builder };
    let vm = builder.build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, RAM))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let began = Instant::now();
    for gfn in 0..PAGES {
        vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }).map(|_| ()).unwrap();
    }
    began.elapsed().as_nanos() as f64 / PAGES as f64
}

/// A host whose frame is the address.
struct Linear;

impl Host for Linear {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(page(hva.0 >> PAGE_SHIFT))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

/// Runs `work`, and returns what the oracle has reported, also when the VM was dropped.
pub fn reports(work: impl FnOnce(&mut Fixture<'_>)) -> Vec<(Rule, &'static str)> {
    reports_of(Duration::from_secs(600), |vm| vm, work)
}

/// Like [`reports`], with a patience for kicks.
pub fn reports_after(patience: Duration, work: impl FnOnce(&mut Fixture<'_>)) -> Vec<(Rule, &'static str)> {
    reports_of(patience, |vm| vm, work)
}

/// Like [`reports`], in a VM with other settings.
pub fn reports_in(settings: Settings, work: impl FnOnce(&mut Fixture<'_>)) -> Vec<(Rule, &'static str)> {
    reports_of(Duration::from_secs(600), settings, work)
}

fn reports_of(
    patience: Duration,
    settings: Settings,
    work: impl FnOnce(&mut Fixture<'_>),
) -> Vec<(Rule, &'static str)> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let checks = Checks::default().patience(patience).report({
        let seen = seen.clone();
        move |violation| {
            seen.lock().unwrap().push((violation.rule, violation.call));
            assert!(!violation.rule.name().contains("lent"), "before the page is used");
        }
    });
    with_vm(Some(checks), settings, work);
    seen.lock().unwrap().clone()
}
