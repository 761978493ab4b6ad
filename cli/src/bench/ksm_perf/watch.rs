//! A VM as its address space sees it, watched: how long it keeps those who change a page, and whose pages are changing.
//!
//! **Time in MMU code** is what a notification takes, less what the host itself does inside it: from the call until
//! the host's change begins, what the change tells page by page, and from its end until the call returns. Only threads
//! that ask for it count ([`count_here`]): a vCPU's notifications, for its breaks of copy-on-write, are part of its
//! fault time.

use slat::table::formats::Npt4;
use slat::{Again, Event, Gfn, HostPage, Hva, Idle, PAGE_SHIFT, Pages, SecondaryMmu, Span, Vm, Why};
use slat_mm::HostView;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Instant;

/// The VMs here.
pub type Guest = Vm<Npt4, HostView>;

thread_local! { static COUNTS: Cell<bool> = const { Cell::new(false) }; }

/// From now on notifications by this thread count.
pub fn count_here() {
    COUNTS.set(true);
}

/// See the module's header. Register it in the VM's place.
pub struct Watched {
    vm: Arc<Guest>,
    /// Where guest memory begins.
    base: Hva,
    /// For each page: how many changes of its entry have begun and not ended.
    changing: Box<[AtomicU32]>,
    mmu_ns: AtomicU64,
    windows: AtomicU64,
}

impl Watched {
    /// `vm`, whose only memslot has `pages` pages from `base` on, and frame 0 first.
    pub fn new(vm: &Arc<Guest>, base: Hva, pages: u64) -> Arc<Self> {
        let changing = (0..pages).map(|_| AtomicU32::new(0)).collect();
        let (mmu_ns, windows) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { vm: vm.clone(), base, changing, mmu_ns, windows })
    }

    /// The VM.
    pub fn vm(&self) -> &Arc<Guest> {
        &self.vm
    }

    /// Whether a change of the page's entry has begun and not ended.
    pub fn is_changing(&self, gfn: Gfn) -> bool {
        // ORDER(window): SeqCst: whoever finds the translation missing on account of a change finds the change
        // here too; pairs with the store before the VM is told.
        self.changing.get(gfn.0 as usize).is_some_and(|count| count.load(SeqCst) > 0)
    }

    /// Nanoseconds in MMU code, and changes of an entry, counted so far.
    pub fn counted(&self) -> (u64, u64) {
        (self.mmu_ns.load(Relaxed), self.windows.load(Relaxed))
    }

    fn pages(&self, hvas: Span<Hva>) -> &[AtomicU32] {
        let number = |hva: Hva| ((hva.0.saturating_sub(self.base.0)) >> PAGE_SHIFT) as usize;
        &self.changing[number(hvas.start).min(self.changing.len())..number(hvas.end).min(self.changing.len())]
    }

    fn timed(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let mut host_ns = 0;
        let began = Instant::now();
        let result = self.vm.around(idle, event, &mut |idle, told| {
            let mut told = Timed { told, ns: 0 };
            let began = Instant::now();
            change(idle, &mut told);
            host_ns += began.elapsed().as_nanos() as u64 - told.ns;
        });
        self.mmu_ns.fetch_add(began.elapsed().as_nanos() as u64 - host_ns, Relaxed);
        result
    }
}

impl SecondaryMmu for Watched {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let changing = if event.why == Why::ChangePte { self.pages(event.hvas) } else { &[] };
        for page in changing {
            // ORDER(window): SeqCst: before the VM takes anything away; pairs with `is_changing`.
            page.fetch_add(1, SeqCst);
            self.windows.fetch_add(1, Relaxed);
        }
        let result =
            if COUNTS.get() { self.timed(idle, event, change) } else { self.vm.around(idle, event, change) };
        for page in changing {
            page.fetch_sub(1, SeqCst);
        }
        result
    }

    fn heeds_pages(&self) -> bool {
        self.vm.heeds_pages()
    }
}

/// What the VM does when it is told of a page is its own time.
struct Timed<'a> {
    told: &'a mut dyn Pages,
    ns: u64,
}

impl Timed<'_> {
    fn time(&mut self, tell: impl FnOnce(&mut dyn Pages)) {
        let began = Instant::now();
        tell(self.told);
        self.ns += began.elapsed().as_nanos() as u64;
    }
}

impl Pages for Timed<'_> {
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        self.time(|told| told.changed(idle, hvas, to));
    }

    fn flush(&mut self, idle: &mut Idle) {
        self.time(|told| told.flush(idle));
    }
}
