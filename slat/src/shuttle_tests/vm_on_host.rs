//! A VM on its host, and the properties of both that hold at any instant.
//!
//! * A guest uses a frame only while its host has the page there, and stores only while it may. Checked in the step of
//!   each access.
//! * No thread loads an entry of a table page that was given back.
//! * A guest access is emulated only where no memslot is.
//! * After the last harvest, the copies have all stores of guests.
//! * At the end the tables map only what the host has, every table page is accounted for, and all memory goes back.

use super::host::{Change, Handle, Primary, REGION, hva, page_of, pages};
use super::memory::Memory;
use super::software_vcpu;
use crate::sync::prim::{AtomicU64, Relaxed, spin_loop, step};
use crate::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// The host's pages in the guest: the first frame of each range, and its pages.
pub(super) type Layout = Vec<(u64, Range<u64>)>;

/// Messages of failures.
pub(super) const FRAME: &str = "a guest uses a frame that is not there, or not so";
pub(super) const STRAYED: &str = "a thread looks at a table page that was given back";
pub(super) const UNTOLD: &str = "a guest stores by itself to a frame whose stores are tracked";
pub(super) const EMULATED: &str = "an access to memory was emulated";
pub(super) const MAPPED: &str = "a frame is mapped that is not there, or not so";
pub(super) const LOST: &str = "a store is missing from the copy";
pub(super) const PAGES: &str = "table pages were lost";
pub(super) const LEAVES: &str = "leaves were miscounted";
pub(super) const LENT: &str = "memory for tables did not come back";

/// A VM on its host. See the module's header.
pub(super) struct World<F: Format> {
    pub(super) vm: Vm<F, Handle>,
    pub(super) host: Arc<Primary>,
    /// All layouts so far, and those that running transactions will make; and the index of the present one.
    layouts: Mutex<(usize, Vec<Layout>)>,
    wrong: Mutex<Option<&'static str>>,
    /// Number of guests that have not ended.
    running: AtomicU64,
    /// Frames whose stores are tracked.
    tracked: Mutex<Range<u64>>,
    /// Number of stores to each page of the host when it was copied.
    copies: Mutex<BTreeMap<u64, u64>>,
}

/// Runs all threads at once.
pub(super) fn at_once(threads: &[&(dyn Fn() + Sync)]) {
    shuttle::thread::scope(|scope| {
        for thread in threads {
            scope.spawn(thread);
        }
    });
}

/// Calls `work` with this thread's token.
pub(super) fn idle<R>(work: impl FnOnce(&mut Idle) -> R) -> R {
    work(&mut Idle::take().expect("one on each thread"))
}

impl<F: Format> World<F> {
    /// A VM with `vcpus` vCPUs and one memslot, from frame 0 on, of both regions of `host`.
    pub(super) fn new(
        vcpus: u32,
        host: Arc<Primary>,
        build: impl FnOnce(Builder<F, Handle>) -> Builder<F, Handle>,
    ) -> Self {
        let vm = build(Vm::builder(Handle(host.clone())).vcpus(vcpus)).build().expect("there is memory");
        let slot = Slot::new(SlotId(0), Gfn(0), 2 * REGION, hva(0));
        let mut idle = Idle::take().expect("one on each thread");
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).expect("a good slot");
        let layouts = Mutex::new((0, [[(0, 0..2 * REGION)].into()].into()));
        let running = AtomicU64::new(vcpus.into());
        let (wrong, copies) = Default::default();
        Self { vm, host, layouts, wrong, running, tracked: Mutex::new(0..0), copies }
    }

    /// Runs the accesses of `program` on vCPU `id`.
    pub(super) fn guest(&self, id: u32, program: &[(u64, Access)]) {
        software_vcpu::run(self, id, program);
        self.running.fetch_sub(1, Relaxed);
    }

    /// Begins the memslot's log.
    pub(super) fn begin_log(&self) {
        idle(|idle| {
            self.vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(0), true)).expect("it is there")
        });
    }

    /// Begins the memslot's log, and copies everything.
    pub(super) fn log(&self) {
        self.begin_log();
        for page in pages() {
            step();
            self.copies().insert(page, self.host.stores(page));
        }
    }

    fn copies(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, u64>> {
        self.copies.lock().expect("no thread panics")
    }

    /// Harvests the log `rounds` times while the guests run, and once more when all of them have ended.
    pub(super) fn migrate(&self, rounds: u32) {
        self.harvests(rounds);
        self.outlast_guests();
        self.harvests(1);
        let copies = self.copies();
        if pages().any(|page| copies.get(&page).copied().unwrap_or(0) != self.host.stores(page)) {
            self.wrong(LOST);
        }
    }

    /// Waits until all guests have ended.
    pub(super) fn outlast_guests(&self) {
        while self.running.load(Relaxed) > 0 {
            spin_loop();
        }
    }

    /// Harvests the log, if there is one, `rounds` times.
    pub(super) fn harvests(&self, rounds: u32) {
        idle(|idle| {
            for _ in 0..rounds {
                let harvest = self.vm.memory().harvest_all(idle).expect("there is memory");
                for page in harvest.iter() {
                    step();
                    let page = page_of(page.hva);
                    self.copies().insert(page, self.host.stores(page));
                }
                harvest.commit();
            }
        });
    }

    /// Changes `pages` on the host.
    pub(super) fn change(&self, pages: Range<u64>, (change, why): (Change, impl Into<Reason>)) {
        idle(|idle| self.host.change(idle, &self.vm, pages, (change, why.into())));
    }

    /// Changes pages in any number of regions, while others change them.
    pub(super) fn change_beside(&self, pages: Range<u64>, (change, why): (Change, impl Into<Reason>)) {
        idle(|idle| self.host.change_beside(idle, &self.vm, pages, (change, why.into())));
    }

    /// Ages the pages `times` times, without a lock.
    pub(super) fn age(&self, times: u32) {
        let gfns = Span::new(Gfn(0), Gfn(2 * REGION));
        idle(|idle| (0..times).for_each(|_| self.vm.memory().lockless(idle).age(gfns, |_| ())));
    }

    /// Runs `work`, after which the memslots are as `layout` says.
    pub(super) fn slots(&self, layout: Layout, work: impl FnOnce(&mut Idle)) {
        self.layouts().1.push(layout);
        idle(work);
        self.layouts().0 += 1;
    }

    fn layouts(&self) -> std::sync::MutexGuard<'_, (usize, Vec<Layout>)> {
        self.layouts.lock().expect("no thread panics")
    }

    /// Returns the pages that a frame may have shown since layout number `from`.
    fn pages(&self, gfn: Gfn, from: usize) -> Vec<Option<u64>> {
        let page = |layout: &Layout| {
            let inside = |(first, pages): &&(u64, Range<u64>)| {
                (*first..first + pages.end - pages.start).contains(&gfn.0)
            };
            layout.iter().find(inside).map(|(first, pages)| pages.start + gfn.0 - first)
        };
        self.layouts().1[from..].iter().map(page).collect()
    }

    /// Tracks stores to `gfns` for a while, `times` times; if `nests`, by two trackers of which one ends first.
    pub(super) fn track(&self, gfns: Range<u64>, times: u32, nests: bool) {
        struct Unheard;
        impl WriteListener for Unheard {}
        idle(|idle| {
            for _ in 0..times {
                let span = Span::new(Gfn(gfns.start), Gfn(gfns.end));
                let first =
                    self.vm.memory().track_writes(idle, span, Arc::new(Unheard)).expect("there is memory");
                let second = nests.then(|| self.vm.memory().track_writes(idle, span, Arc::new(Unheard)));
                *self.tracked.lock().expect("no thread panics") = gfns.clone();
                let first = (!nests).then_some(first);
                (0..4).for_each(|_| step());
                *self.tracked.lock().expect("no thread panics") = 0..0;
                drop((first, second));
            }
        });
    }

    /// Returns the number of the oldest layout that a thread may see now.
    pub(super) fn layout(&self) -> usize {
        self.layouts().0
    }

    fn allows(&self, gfn: Gfn, access: Access, pfn: Pfn) -> bool {
        self.pages(gfn, self.layout()).into_iter().flatten().any(|page| self.host.allows(page, pfn, access))
    }

    /// Checks that a guest may use `pfn` at this instant.
    pub(super) fn used(&self, (gfn, access): (Gfn, Access), pfn: Pfn) {
        if !self.allows(gfn, access, pfn) {
            self.wrong(FRAME);
        }
        if access == Access::Write {
            if self.tracked.lock().expect("no thread panics").contains(&gfn.0) {
                self.wrong(UNTOLD);
            }
            self.host.stored(pfn);
        }
    }

    /// Checks a guest's access, begun when layout number `from` was the oldest, that was said to go to no memory.
    pub(super) fn emulated(&self, gfn: Gfn, from: usize) {
        if self.pages(gfn, from).iter().all(Option::is_some) {
            self.wrong(EMULATED);
        }
    }

    /// Records the first failure, reported at the end: other threads could wait for one that panics here.
    pub(super) fn wrong(&self, what: &'static str) {
        self.wrong.lock().expect("no thread panics").get_or_insert(what);
    }

    /// Final checks, when all threads have ended.
    pub(super) fn end(self) {
        let (mut idle, vm) = (Idle::take().expect("one on each thread"), &self.vm);
        vm.collect(&mut idle);
        let mut leaves = [0; 3];
        vm.memory().lockless(&mut idle).for_each(Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)), |found| {
            leaves[usize::from(found.level.number()) - 1] += 1;
            let leaf = found.leaf;
            let access = if leaf.perms.allows(Access::Write) { Access::Write } else { Access::Read };
            // Of a large page, the pages that the host's table has.
            if !self.allows(found.gfns.start, access, leaf.pfn) {
                self.wrong(MAPPED);
            }
        });
        let pages = vm.table_pages(&mut idle);
        if pages.reachable + pages.waiting + pages.free != pages.allocated || pages.waiting != 0 {
            self.wrong(PAGES);
        }
        if vm.stats().leaves != leaves {
            self.wrong(LEAVES);
        }
        let Self { vm, host, wrong, .. } = self;
        drop(vm);
        let mut wrong = wrong.into_inner().expect("no thread panics");
        if host.memory.lent() != 0 {
            wrong.get_or_insert(LENT);
        }
        if Memory::strayed() {
            wrong = Some(STRAYED);
        }
        assert!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    }
}
