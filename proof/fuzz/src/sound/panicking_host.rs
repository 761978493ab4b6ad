//! A host that panics, and calls back, on request. Its answers are always right.

use super::step::Nested;
use crate::vm::plain_host::{Changed, PAGES, PlainHost, hva, number};
use slat::{
    Access, Event, Fault, Format, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SIZE, Pfn, Prefault,
    Reason, SecondaryMmu, SpaceId, Span, VcpuId, Vm,
};
use std::mem::forget;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::panicking;

type Neighbours<F> = Vec<Weak<Vm<F, Crafty<F>>>>;

/// The payload of a callback's panic.
pub struct Injected;

/// Number of callbacks until one panics; none at 0.
#[derive(Debug, Default)]
pub struct Fuse(AtomicU32);

impl Fuse {
    pub fn light(&self, callbacks: u32) {
        self.0.store(callbacks, Relaxed);
    }

    /// Called in each callback. A second panic would end the process.
    pub fn burn(&self) {
        let left = self.0.load(Relaxed);
        if left == 0 || panicking() {
            return;
        }
        self.0.store(left - 1, Relaxed);
        if left == 1 {
            // Without the panic hook, at which a fuzzer ends.
            resume_unwind(Box::new(Injected));
        }
    }
}

/// A host that panics and calls back.
#[derive(Debug)]
pub struct Crafty<F: Format> {
    pub pages: PlainHost,
    /// The largest size of unchanged pages.
    pub largest: Level,
    fuse: Arc<Fuse>,
    /// All VMs, including this one.
    vms: OnceLock<Neighbours<F>>,
    /// The engine call that the next call of `resolve` makes first.
    pub next: Mutex<Option<Nested>>,
    /// Whether it may call back: no flush would wait forever.
    pub quiet: AtomicBool,
}

impl<F: Format> Crafty<F> {
    pub fn new(largest: Level, sleeps: bool, fuse: Arc<Fuse>) -> Self {
        let (next, quiet) = (Mutex::new(None), AtomicBool::new(false));
        Self { pages: PlainHost::new(largest, sleeps), largest, fuse, vms: OnceLock::new(), next, quiet }
    }

    pub fn meet(&self, vms: &[Arc<Vm<F, Self>>]) {
        self.vms.set(vms.iter().map(Arc::downgrade).collect()).expect("they meet once");
    }

    /// Returns the current page at `hva`.
    pub fn page(&self, hva: Hva) -> Option<HostPage> {
        let first = crate::vm::plain_host::hva(0);
        (first..first + PAGES * PAGE_SIZE).contains(&hva).then(|| self.pages.page(number(hva)))?
    }

    /// Moves or removes pages.
    pub fn change(&self, pages: Span<Gfn>, to_nothing: bool) {
        for page in pages.start.0..pages.end.0 {
            self.pages.change(page, self.another(to_nothing));
        }
    }

    fn another(&self, to_nothing: bool) -> Option<Changed> {
        (!to_nothing).then(|| Changed { pfn: self.pages.frame(), writable: true })
    }

    /// Changes pages as a host does that reports each of them.
    pub fn change_told(vm: &Vm<F, Self>, idle: &mut Idle, event: Event, pages: Span<Gfn>, to_nothing: bool) {
        let host = vm.host();
        let whole = pages.len() == Level::M2.pages() && pages.start.base(Level::M2) == pages.start;
        let _ = vm.around(idle, event, &mut |idle, told| {
            if whole && !to_nothing {
                host.pages.restore(pages);
                if let Some(page) = host.page(hva(pages.start.0)).filter(|page| page.level >= Level::M2) {
                    return told.changed(idle, bytes(pages), Some(page));
                }
            }
            for page in pages.start.0..pages.end.0 {
                host.fuse.burn();
                let to = host.another(to_nothing);
                host.pages.change(page, to);
                let to = to.map(|Changed { pfn, writable }| HostPage { pfn, writable, ..HostPage::PLAIN });
                told.changed(idle, Span::sized(hva(page), PAGE_SIZE), to);
            }
        });
    }

    /// Calls the engine from inside a fault.
    fn call_back(&self, idle: &mut Idle) {
        let Some(nested) = self.next.lock().unwrap().take().filter(|_| self.quiet.load(Relaxed)) else {
            return;
        };
        assert!(Idle::take().is_none(), "the thread's token is out");
        let vm = self.vms.get().and_then(|vms| vms[nested.vm].upgrade());
        let Some(vm) = vm else { return };
        let (gfn, pages) = (nested.gfn, nested.pages);
        match nested.what {
            0 => take_back(&vm, idle, pages, Reason::Unmap, nested.flag),
            1 => take_back(&vm, idle, pages, Reason::Clear, nested.flag),
            2 => {
                let event = Event::new(bytes(pages), Reason::ChangePte);
                Self::change_told(&vm, idle, event, pages, nested.flag);
            }
            3 => drop(vm.memory().commit(idle, |tx| tx.delete(nested.slot.id))),
            4 => drop(vm.memory().commit(idle, |tx| tx.create(nested.slot))),
            5 => drop(vm.memory().commit(idle, |tx| tx.move_to(nested.slot.id, gfn))),
            6 => drop(vm.memory().commit(idle, |tx| tx.set_log_dirty(nested.slot.id, nested.flag))),
            7 => drop(vm.zap_all(idle)),
            8 => vm.collect(idle),
            9 => drop(vm.memory().harvest_all(idle)),
            10 => drop(vm.memory().recover(idle, Span::sized(gfn.min(Gfn(1 << 20)), 1024))),
            11 => forget(vm.memory().harvest_all(idle)),
            nth => {
                // Another vCPU's fault, or prefault; none if this number is taken.
                let Some(mut vcpu) = vm.vcpu(VcpuId(u32::from(nested.flag))) else { return };
                vcpu.switch_to(SpaceId(nth & 1));
                let _ = match nth & 2 {
                    0 => vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write }).is_ok(),
                    _ => vcpu.prefault(idle, Span::sized(gfn.min(Gfn(1 << 20)), 70), Prefault::OLD).is_ok(),
                };
            }
        }
    }
}

impl<F: Format> Host for Crafty<F> {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.fuse.burn();
        self.page(hva)?;
        self.pages.at_once(number(hva), access)
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.fuse.burn();
        self.call_back(idle);
        self.fuse.burn();
        self.page(hva).ok_or(HostError::Fault)?;
        self.pages.in_the_end(number(hva), access).ok_or(HostError::Fault)
    }

    fn kick(&self, _: VcpuId) {
        self.fuse.burn();
    }
}

/// Returns the bytes of host pages.
pub fn bytes(pages: Span<Gfn>) -> Span<Hva> {
    Span::new(hva(pages.start.0), hva(pages.end.0))
}

/// Takes pages back as the contract requires.
pub fn take_back<F: Format>(
    vm: &Vm<F, Crafty<F>>,
    idle: &mut Idle,
    pages: Span<Gfn>,
    why: Reason,
    to_nothing: bool,
) {
    let _change = vm.invalidate(bytes(pages), why).apply(idle).settle();
    vm.host().change(pages, to_nothing);
}

/// Returns the host's frame behind a frame of a leaf.
pub fn pfn_in(first: Pfn, leaf: Span<Gfn>, gfn: Gfn) -> Pfn {
    first + (gfn.0 - leaf.start.0)
}
