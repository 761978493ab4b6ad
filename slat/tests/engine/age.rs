//! Aging (the MGLRU aging series): accessed pages, reported without a lock or a flush, over every format.

use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae};
use slat::table::{Entry, Word};
use slat::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const RAM: Hva = Hva(0x40_0000_0000);
const PAGES: u64 = 4096;

/// A host that maps everything at frame = address; in pages of 2 MiB from [`HUGE`] to [`PAGES`].
struct Identity;
const HUGE: u64 = 2048;

impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let huge = (HUGE..PAGES).contains(&((hva.0 - RAM.0) >> PAGE_SHIFT));
        let level = if huge { Level::M2 } else { Level::K4 };
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level, ..HostPage::PLAIN })
    }
}

struct Machine<F: Format> {
    idle: Idle,
    vm: Vm<F, Identity>,
}

impl<F: Format> Machine<F> {
    /// Memory at guest address 0, in two slots, the second of which does not adjoin the first on the host.
    fn new() -> Self {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<F, _>::builder(Identity).build().unwrap();
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, RAM))).unwrap();
        Self { idle, vm }
    }

    /// Acts as a vCPU: faults if necessary, and walks, setting the bits that a walker sets.
    fn access(&mut self, gfn: u64, access: Access) {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut self.idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap();
        drop(vcpu);
        walk(&self.vm, Gfn(gfn), F::touch(access), true);
    }

    fn age(&mut self, gfns: Span<Gfn>) -> Vec<u64> {
        let mut young = Vec::new();
        self.vm
            .memory()
            .lockless(&mut self.idle)
            .age(gfns, |seen| young.extend(seen.pages().map(|gfn| gfn.0)));
        young
    }

    fn dirty(&mut self) -> BTreeSet<u64> {
        let mut dirty = BTreeSet::new();
        self.vm.memory().lockless(&mut self.idle).for_each(ALL, |found| {
            if found.leaf.dirty {
                dirty.extend(found.gfns.start.0..found.gfns.end.0);
            }
        });
        dirty
    }
}

const ALL: Span<Gfn> = Span::new(Gfn(0), Gfn(PAGES));

/// Sets `bits` in the leaf of `gfn` and, with `links`, a walker's bits on the way.
fn walk<F: Format>(vm: &Vm<F, Identity>, gfn: Gfn, bits: u64, links: bool) {
    let entry = leaf_entry(vm, gfn, |level| if links { F::touch_link(level) } else { 0 });
    let word = entry.load();
    // SAFETY: what a walker sets in a leaf.
    assert!(F::is_present(word) && unsafe { entry.touch_raw(word, bits) });
}

/// Returns the lowest entry for `gfn`, after setting `bits` of its level in each link on the way.
fn leaf_entry<F: Format>(vm: &Vm<F, Identity>, gfn: Gfn, bits: impl Fn(Level) -> u64) -> &Entry {
    let (mut table, mut level) = (vm.memory().root(), F::ROOT_LEVEL);
    loop {
        let page = vm.tables().at(table).cast::<Entry>();
        // SAFETY: a table of a VM from which nothing is unlinked in these tests.
        let entry = unsafe { page.add(F::index(gfn, level)).as_ref() };
        let word = entry.load();
        if !F::is_table(word, level) {
            return entry;
        }
        // SAFETY: what a walker sets in a link.
        if unsafe { entry.touch_raw(word, bits(level)) } {
            (table, level) = (F::pfn(word), level.down());
        }
    }
}

fn told_apart<F: Format>() {
    let mut machine = Machine::<F>::new();
    let touched = [0, 1, 63, 64, 511, 512, 700, 1535];
    for gfn in 0..1536 {
        machine.access(gfn, Access::Write);
    }
    let before = machine.vm.stats();
    assert_eq!(machine.age(ALL), (0..1536).collect::<Vec<_>>(), "{}", F::NAME);
    assert_eq!(machine.age(ALL), [], "{}", F::NAME);
    for gfn in touched {
        machine.access(gfn, Access::Read);
    }
    assert!(machine.vm.memory().lockless(&mut machine.idle).is_young(ALL), "looking changes nothing");
    // Ends of a range are exact, wherever they lie in a table.
    assert_eq!(machine.age(Span::new(Gfn(64), Gfn(700))), [64, 511, 512], "{}", F::NAME);
    assert_eq!(machine.age(Span::new(Gfn(700), Gfn(701))), [700]);
    assert_eq!(machine.age(ALL), [0, 1, 63, 1535], "{}", F::NAME);
    assert!(!machine.vm.memory().lockless(&mut machine.idle).is_young(ALL));
    assert_eq!(machine.dirty(), (0..1536).collect(), "{}: nothing written is forgotten", F::NAME);
    let after = machine.vm.stats();
    assert_eq!((after.flushes.paid, after.leaves), (before.flushes.paid, before.leaves));
    assert_eq!(machine.age(Span::new(Gfn(1 << 60), Gfn(1 << 61))), [], "past the end of the format");
}

fn large_pages<F: Format>() {
    let mut machine = Machine::<F>::new();
    machine.access(HUGE + 5, Access::Write);
    let page = HUGE..HUGE + 512;
    assert_eq!(machine.age(ALL), page.clone().collect::<Vec<_>>(), "{}", F::NAME);
    machine.access(HUGE + 99, Access::Read);
    assert_eq!(machine.age(Span::new(Gfn(HUGE + 3), Gfn(HUGE + 5))), [HUGE + 3, HUGE + 4]);
    assert_eq!(machine.age(ALL), [], "one bit for all of it");
    assert_eq!(machine.dirty(), page.clone().collect());
    machine.access(HUGE + 7, Access::Read);
    assert_eq!(machine.vm.memory().split(&mut machine.idle, ALL, Level::K4), Ok(1));
    assert_eq!(
        machine.age(ALL),
        page.collect::<Vec<_>>(),
        "{}: young before it was split, and after",
        F::NAME
    );
}

/// A pass skips a table if no walk came through its link; it misses a walker that has the link in its cache.
fn parents<F: Format>() {
    let mut machine = Machine::<F>::new();
    machine.access(3, Access::Read);
    machine.access(600, Access::Read);
    assert_eq!(machine.age(ALL), [3, 600]);
    walk(&machine.vm, Gfn(3), F::touch(Access::Read), false);
    machine.access(600, Access::Read);
    assert_eq!(machine.age(ALL), [600], "{}", F::NAME);
    assert!(machine.vm.memory().lockless(&mut machine.idle).is_young(ALL), "asked page by page it is");
    machine.access(4, Access::Read);
    assert_eq!(machine.age(ALL), [3, 4], "and the next one who comes through brings it along");
}

fn as_a_secondary_mmu<F: Format>() {
    let mut machine = Machine::<F>::new();
    // The same host memory once more, elsewhere: aging sees both.
    let slots = machine.vm.memory();
    let alias = Slot::new(SlotId(1), Gfn(PAGES + 100), 64, RAM + 512 * PAGE_SIZE);
    slots.commit(&mut machine.idle, |tx| tx.create(alias)).unwrap();
    for gfn in [500, 513, PAGES + 100, PAGES + 163] {
        machine.access(gfn, Access::Read);
    }
    let Machine { idle, vm } = &mut machine;
    let mmu: &dyn SecondaryMmu = vm;
    assert!(mmu.ages());
    let mut young = BTreeSet::new();
    mmu.age(idle, Span::sized(RAM, PAGES * PAGE_SIZE), &mut |seen| {
        young.extend(seen.pages().map(|hva| (hva.0 - RAM.0) / PAGE_SIZE));
    });
    assert_eq!(young.into_iter().collect::<Vec<_>>(), [500, 512, 513, 575], "{}", F::NAME);
    forgetting(vm, idle);
}

/// The flushes that a vCPU was asked for.
#[derive(Default)]
struct Told(Vec<Span<Gfn>>);

impl Translations for Told {
    fn flush_all(&mut self) {
        self.0.push(ALL);
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0.push(gfns);
    }
}

/// A pass asks TLBs to flush, in the guest and out of it, and waits for no thread: there is only one.
fn forgetting<F: Format>(vm: &Vm<F, Identity>, idle: &mut Idle) {
    let (page, nothing) = (Span::sized(RAM + PAGE_SIZE, PAGE_SIZE), Span::sized(Hva(0x1000), PAGE_SIZE));
    let (mut told, mut vcpu) = (Told::default(), vm.vcpu(VcpuId(0)).unwrap());
    drop(vcpu.enter(idle, &mut told));
    told.0.clear(); // the first entry flushes everything
    vm.forget(idle, page);
    drop(vcpu.enter(idle, &mut told));
    assert_eq!(told.0, [Span::new(Gfn(1), Gfn(2))], "out of the guest: when it enters");
    std::thread::scope(|scope| {
        let mut guest = vcpu.enter(idle, &mut told).poll();
        let ask = || vm.forget(&mut Idle::take().unwrap(), page);
        scope.spawn(ask).join().unwrap();
        assert!(guest.kicked());
        guest.answer(&mut told);
        scope.spawn(|| vm.forget(&mut Idle::take().unwrap(), nothing)).join().unwrap();
        assert!(!guest.kicked(), "nothing of it is mapped");
    });
    assert_eq!(told.0.len(), 2);
}

#[test]
fn every_format_ages() {
    fn all<F: Format>() {
        told_apart::<F>();
        large_pages::<F>();
        if F::HARDWARE_AD {
            parents::<F>();
        }
        as_a_secondary_mmu::<F>();
    }
    all::<Ept4>();
    all::<Ept5>();
    all::<Npt4>();
    all::<Npt5>();
    all::<Pae>();
    all::<Ept4NoAd>();
}

/// A long pass rests, and continues where it was; holes, however old, are no pages.
#[test]
fn a_long_pass_finds_every_page_once() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept4, _>::builder(Identity).build().unwrap();
    let (pages, small) = (64 << 18, RAM + PAGES * PAGE_SIZE);
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), pages, small))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let touched: Vec<u64> = (0..pages).step_by(257).filter(|gfn| gfn % 2048 < 1024).collect();
    for &gfn in &touched {
        let fault = Fault { gpa: Gfn(gfn).gpa(), access: Access::Write };
        let _ = vcpu.fault(&mut idle, fault).unwrap();
        walk(&vm, Gfn(gfn), 0, true);
        // Many invalidations cover every hole, so its bits take many values.
        if gfn % 64 == 0 {
            drop(
                vm.memory()
                    .invalidate(Span::sized(Gfn(gfn + 1), 64), Reason::Clear)
                    .apply(&mut idle)
                    .settle(),
            );
        }
    }
    let (mut young, mut pass) = (Vec::new(), vm.memory().lockless(&mut idle));
    pass.age(Span::new(Gfn(0), Gfn(pages)), |seen| young.extend(seen.pages().map(|gfn| gfn.0)));
    assert_eq!(young.len(), touched.len());
    assert_eq!(young, touched);
}

/// A walker writes every page once while another thread ages. Returns whether all of them are dirty.
fn dirty_is_kept<F: Format>() -> bool {
    let mut machine = Machine::<F>::new();
    for gfn in 0..512 {
        machine.access(gfn, Access::Read);
    }
    let (vm, done) = (&machine.vm, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            while !done.load(Relaxed) {
                vm.memory().lockless(&mut idle).age(ALL, |_| ());
            }
        });
        for gfn in (0..512).map(|page| Gfn(page * 7 % 512)) {
            let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
            // Without a Dirty bit, the fault that restores a withdrawn leaf marks it.
            while !store(vm, gfn) {
                let _ =
                    vcpu.fault(&mut machine.idle, Fault { gpa: gfn.gpa(), access: Access::Write }).unwrap();
            }
        }
        done.store(true, Relaxed);
    });
    machine.dirty().len() == 512
}

/// A store's walk; false if it faults.
fn store<F: Format>(vm: &Vm<F, Identity>, gfn: Gfn) -> bool {
    loop {
        let entry = leaf_entry(vm, gfn, F::touch_link);
        let word = entry.load();
        if !F::is_present(word) {
            return false;
        }
        // SAFETY: what a walker sets in a leaf.
        if unsafe { entry.touch_raw(word, F::touch(Access::Write)) } {
            return true;
        }
    }
}

#[test]
fn dirty_survives_aging_beside_a_store() {
    for _ in 0..20 {
        assert!(dirty_is_kept::<Ept4>());
        assert!(dirty_is_kept::<Npt4>());
        assert!(dirty_is_kept::<Ept4NoAd>());
    }
}

/// A load clears Accessed and a store follows, with a walker's store in between: the look then finds that Dirty is
/// lost.
#[test]
fn negative_control_a_clear_that_loses_dirty_is_found_out() {
    let mut machine = Machine::<Ept4>::new();
    machine.access(5, Access::Read);
    let entry = leaf_entry(&machine.vm, Gfn(5), |_| 0);
    let word = entry.load();
    assert!(store(&machine.vm, Gfn(5)));
    assert!(machine.dirty().contains(&5));
    let entry = leaf_entry(&machine.vm, Gfn(5), |_| 0);
    // SAFETY: the same leaf, not accessed.
    unsafe { entry.store_raw(Word(word.0 & !Ept4::ACCESSED)) };
    assert!(!machine.dirty().contains(&5));
}
