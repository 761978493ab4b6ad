//! A VM as its address space sees it, watched: how long it keeps threads that change pages, and which pages are changing.
//!
//! The time is what a notification takes, less what the host itself does inside it: changing its entries, copying a page
//! that is written. What the change tells the VM, page by page, is the VM's own time again. The clock is looked at as
//! often whatever the VM does. A scanner's notifications are counted as they are ([`scans`]); a vCPU's, for its breaks of
//! copy-on-write, are part of its fault time, from which the host's part is to be taken.

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

thread_local! { static SCANS: Cell<bool> = const { Cell::new(false) }; }

/// This thread is the scanner.
pub fn scans() {
    SCANS.set(true);
}

/// What is counted of a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Of the VM's in notifications by the scanner.
    NotifiedNs,
    /// Of the host's own in those of vCPUs.
    HostInFaultsNs,
    /// Changes of an entry.
    Changes,
    /// By the scanner.
    Notifications,
}

/// See the module's header. Register it in the VM's place.
pub struct Watched {
    vm: Arc<Guest>,
    /// Where guest memory begins.
    base: Hva,
    /// For each page: how many changes of its entry have begun and not ended.
    changing: Box<[AtomicU32]>,
    /// In the order of [`Counted`].
    counts: [AtomicU64; 4],
}

impl Watched {
    /// `vm`, whose only memslot has `pages` pages from `base` on, and frame 0 first.
    pub fn new(vm: &Arc<Guest>, base: Hva, pages: u64) -> Arc<Self> {
        let changing = (0..pages).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { vm: vm.clone(), base, changing, counts: Default::default() })
    }

    /// The VM.
    pub fn vm(&self) -> &Arc<Guest> {
        &self.vm
    }

    /// Whether a change of the page's entry has begun and not ended.
    pub fn is_changing(&self, gfn: Gfn) -> bool {
        // ORDER(window): SeqCst: a thread that finds the translation missing because of a change finds the change
        // here too; pairs with the store before the VM is told.
        self.changing.get(gfn.0 as usize).is_some_and(|count| count.load(SeqCst) > 0)
    }

    pub fn counted(&self, what: Counted) -> u64 {
        self.counts[what as usize].load(Relaxed)
    }

    fn add(&self, what: Counted, count: u64) {
        self.counts[what as usize].fetch_add(count, Relaxed);
    }

    fn pages(&self, hvas: Span<Hva>) -> &[AtomicU32] {
        let number = |hva: Hva| ((hva.0.saturating_sub(self.base.0)) >> PAGE_SHIFT) as usize;
        &self.changing[number(hvas.start).min(self.changing.len())..number(hvas.end).min(self.changing.len())]
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
            self.add(Counted::Changes, 1);
        }
        let mut host_ns = 0;
        let began = Instant::now();
        let result = self.vm.around(idle, event, &mut |idle, told| {
            let mut told = Timed { told, ns: 0 };
            let began = Instant::now();
            change(idle, &mut told);
            host_ns += nanoseconds(began).saturating_sub(told.ns);
        });
        if SCANS.get() {
            self.add(Counted::NotifiedNs, nanoseconds(began) - host_ns);
            self.add(Counted::Notifications, 1);
        } else {
            self.add(Counted::HostInFaultsNs, host_ns);
        }
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
        self.ns += nanoseconds(began);
    }
}

impl Pages for Timed<'_> {
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        self.time(|told| told.changed(idle, hvas, to));
    }

    fn flush(&mut self, idle: &mut Idle) {
        self.time(|told| told.flush(idle));
    }

    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        self.time(|told| told.settle(idle, hvas));
    }
}

fn nanoseconds(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
