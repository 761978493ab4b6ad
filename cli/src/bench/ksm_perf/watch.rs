//! A VM as its address space sees it, watched: how long it keeps those who change pages, and which are changing.
//!
//! The time is from the VM's being told until it returns: its own work, its wait for vCPUs, and the host's change of its
//! entries in between, which is the same whatever the VM does, and too short to be timed by itself, page after page.
//! Only threads that ask for it count ([`count_here`]): a vCPU's notifications, for its breaks of copy-on-write, are
//! part of its fault time.

use slat::table::formats::Npt4;
use slat::{Again, Event, Gfn, Hva, Idle, PAGE_SHIFT, Pages, SecondaryMmu, Span, Vm, Why};
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
    notified_ns: AtomicU64,
    windows: AtomicU64,
}

impl Watched {
    /// `vm`, whose only memslot has `pages` pages from `base` on, and frame 0 first.
    pub fn new(vm: &Arc<Guest>, base: Hva, pages: u64) -> Arc<Self> {
        let changing = (0..pages).map(|_| AtomicU32::new(0)).collect();
        let (notified_ns, windows) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { vm: vm.clone(), base, changing, notified_ns, windows })
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

    /// Nanoseconds in notifications, and changes of an entry, counted so far.
    pub fn counted(&self) -> (u64, u64) {
        (self.notified_ns.load(Relaxed), self.windows.load(Relaxed))
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
            self.windows.fetch_add(1, Relaxed);
        }
        let began = COUNTS.get().then(Instant::now);
        let result = self.vm.around(idle, event, change);
        if let Some(began) = began {
            self.notified_ns.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
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
