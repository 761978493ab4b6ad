//! A VM between its address space and the engine: how long notifications take, which pages are changing, what guests meet.
//!
//! The time of a notification is the VM's, less what the host does inside it: it edits its entries, and copies a page that a guest
//! writes. The host's calls of the VM, page by page, are the VM's time again. The clock is read equally often whatever the VM does,
//! and a reading has its price in virtual time, too: there are three or more in each notification.
//! Notifications by the scanner are counted apart from those by vCPUs, which break copy-on-write inside of their faults.

use crate::scenarios::prelude::*;
use crate::world::{clock, thread_local};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64};
use slat::{Again, Pages};

thread_local! { static SCANS: Cell<bool> = const { Cell::new(false) }; }

/// `f`, whose notifications are by the scanner.
pub fn as_scanner<R>(f: impl FnOnce() -> R) -> R {
    SCANS.with(|scans| scans.set(true));
    let done = f();
    SCANS.with(|scans| scans.set(false));
    done
}

/// The counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Notifications by the scanner.
    Notifications,
    /// Nanoseconds of VMs in these.
    NotifiedNs,
    /// Nanoseconds of the host in notifications by vCPUs.
    HostInFaultsNs,
    /// Changes of an entry.
    Changes,
    /// Faults.
    Faults,
    /// Nanoseconds in which these were served.
    FaultNs,
    /// Faults for want of a translation that mapped a page.
    Missing,
    /// Of these, inside of a change of the page's entry.
    InWindow,
}

/// So many of each, in the order of [`Counted`].
pub const COUNTED: usize = 8;

/// See the module's header. It is registered with the address space in the VM's place. All that it keeps is in atomics of `core`, which
/// cost no virtual time.
#[derive(Debug)]
pub struct NotifiedVm {
    /// The VM, whose only memslot has all pages from [`BASE`] on, and frame 0 first.
    pub vm: Vm<Ept4, HostView>,
    /// For each page: changes of its entry that have begun and not ended.
    changing: Box<[AtomicU32]>,
    counts: [AtomicU64; COUNTED],
}

impl NotifiedVm {
    /// A VM of so many pages.
    pub fn new(vm: Vm<Ept4, HostView>, pages: u64) -> Self {
        Self { vm, changing: (0..pages).map(|_| AtomicU32::new(0)).collect(), counts: Default::default() }
    }

    /// Whether a change of the page's entry has begun and not ended.
    pub fn is_changing(&self, gfn: Gfn) -> bool {
        // ORDER(window): SeqCst: a thread that finds the translation missing because of a change finds the change
        // here too; pairs with the increment before the VM is pages.
        self.changing.get(gfn.0 as usize).is_some_and(|count| count.load(SeqCst) > 0)
    }

    /// Counts so many more.
    pub fn add(&self, what: Counted, count: u64) {
        self.counts[what as usize].fetch_add(count, Relaxed);
    }

    /// The counts since the last call.
    pub fn take_counts(&self) -> [u64; COUNTED] {
        self.counts.each_ref().map(|count| count.swap(0, Relaxed))
    }
}

impl SecondaryMmu for NotifiedVm {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let page = |hva: Hva| (hva.0.saturating_sub(BASE.0) >> PAGE_SHIFT).min(self.changing.len() as u64);
        let pages = page(event.hvas.start) as usize..page(event.hvas.end) as usize;
        let changing = if event.why == Reason::ChangePte { &self.changing[pages] } else { &[] };
        for count in changing {
            // ORDER(window): SeqCst: before the VM takes anything away; pairs with `is_changing`.
            count.fetch_add(1, SeqCst);
        }
        let mut host_ns = 0;
        let began = clock();
        let result = self.vm.around(idle, event, &mut |idle, pages| {
            let mut pages = Timed { pages, ns: 0 };
            let began = clock();
            change(idle, &mut pages);
            host_ns += (clock() - began).saturating_sub(pages.ns);
        });
        let ns = clock() - began;
        if SCANS.with(Cell::get) {
            self.add(Counted::NotifiedNs, ns - host_ns);
            self.add(Counted::Notifications, 1);
        } else {
            self.add(Counted::HostInFaultsNs, host_ns);
        }
        self.add(Counted::Changes, changing.len() as u64);
        for count in changing {
            count.fetch_sub(1, SeqCst);
        }
        result
    }

    fn heeds_pages(&self) -> bool {
        self.vm.heeds_pages()
    }
}

/// The VM's own time while the host notifies it of a page.
struct Timed<'a> {
    pages: &'a mut dyn Pages,
    ns: u64,
}

impl Timed<'_> {
    fn time(&mut self, tell: impl FnOnce(&mut dyn Pages)) {
        let began = clock();
        tell(self.pages);
        self.ns += clock() - began;
    }
}

impl Pages for Timed<'_> {
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        self.time(|pages| pages.changed(idle, hvas, to));
    }

    fn flush(&mut self, idle: &mut Idle) {
        self.time(|pages| pages.flush(idle));
    }

    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        self.time(|pages| pages.settle(idle, hvas));
    }
}
