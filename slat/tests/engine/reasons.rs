//! Reasons that are decided page by page (the NUMA protection and change-pte series), listeners that may not wait, and
//! young pages, over every format.

use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae};
use slat::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

const RAM: Hva = Hva(0x40_0000_0000);
const PAGES: u64 = 1024;
/// The frame that replaces a page which is taken away while the host answers.
const LATER: Pfn = Pfn(77);

/// A host with a settable table; other pages are at frame = address, writable.
#[derive(Default)]
struct Told {
    pages: Mutex<BTreeMap<u64, HostPage>>,
    /// The next question about this page has it taken away before the answer; and whether that is told.
    late: Mutex<Option<(u64, bool)>>,
    listener: OnceLock<Weak<dyn SecondaryMmu>>,
}

impl Host for Told {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        if self.late.lock().unwrap().is_some_and(|(late, _)| at(late).contains(hva)) {
            return None;
        }
        Some(self.pages.lock().unwrap().get(&hva.0).copied().unwrap_or(page(hva.0 >> PAGE_SHIFT, true)))
    }

    fn resolve(&self, idle: &mut Idle, _: Hva, access: Access) -> Result<HostPage, HostError> {
        let (late, tells) = self.late.lock().unwrap().take().ok_or(HostError::Fault)?;
        let before = self.lookup(at(late).start, access);
        let listener = self.listener.get().and_then(Weak::upgrade).unwrap();
        let event = Event::new(Span::sized(RAM, PAGES * PAGE_SIZE), Reason::Numa);
        let change = &mut |idle: &mut Idle, told: &mut dyn Pages| {
            self.pages.lock().unwrap().insert(at(late).start.0, page(LATER.0, true));
            if tells {
                told.changed(idle, at(late), None);
            }
        };
        listener.around(idle, event, change).unwrap();
        before.ok_or(HostError::Fault)
    }
}

fn page(pfn: u64, writable: bool) -> HostPage {
    HostPage { pfn: Pfn(pfn), writable, ..HostPage::PLAIN }
}

fn at(page: u64) -> Span<Hva> {
    Span::sized(RAM + page * PAGE_SIZE, PAGE_SIZE)
}

struct Machine<F: Format> {
    idle: Idle,
    vm: Arc<Vm<F, Told>>,
}

impl<F: Format> Machine<F> {
    fn new() -> Self {
        Self::built(|builder| builder)
    }

    fn built(with: impl FnOnce(Builder<F, Told>) -> Builder<F, Told>) -> Self {
        let mut idle = Idle::take().unwrap();
        let vm = Arc::new(with(Vm::<F, _>::builder(Told::default())).build().unwrap());
        let listener: Weak<Vm<F, Told>> = Arc::downgrade(&vm);
        vm.host().listener.set(listener).expect("once");
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, RAM))).unwrap();
        Self { idle, vm }
    }

    /// Sets what the host maps at a page.
    fn host_maps(&self, at: u64, page: HostPage) {
        self.vm.host().pages.lock().unwrap().insert((RAM + at * PAGE_SIZE).0, page);
    }

    fn touch(&mut self, gfn: u64, access: Access) -> Next {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        vcpu.fault(&mut self.idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap()
    }

    fn leaf(&mut self, gfn: u64) -> Option<Leaf> {
        self.vm.memory().translate(&mut self.idle, Gfn(gfn)).map(|found| found.leaf)
    }

    /// Changes pages in one event, each as given. Returns what the leaves were inside.
    fn change(&mut self, why: Reason, pages: &[(u64, Option<HostPage>)]) -> Vec<Option<Leaf>> {
        let Self { idle, vm } = self;
        let mut inside = Vec::new();
        let event = Event::new(Span::sized(RAM, PAGES * PAGE_SIZE), why);
        vm.around(idle, event, &mut |idle, told| {
            for &(number, to) in pages {
                if let Some(to) = to {
                    vm.host().pages.lock().unwrap().insert(at(number).start.0, to);
                }
                told.changed(idle, at(number), to);
                inside.push(vm.memory().translate(idle, Gfn(number)).map(|found| found.leaf));
            }
        })
        .unwrap();
        inside
    }
}

fn pfn(page: u64) -> Pfn {
    Pfn((RAM.0 >> PAGE_SHIFT) + page)
}

/// The three transitions that the change-pte series calls safe leave no hole; the others do.
fn safe_transitions<F: Format>() {
    let name = F::NAME;
    let mut machine = Machine::<F>::new();
    for gfn in 0..6 {
        let writable = gfn >= 4;
        machine.host_maps(gfn, page(pfn(gfn).0, writable));
        let _ = machine.touch(gfn, if writable { Access::Write } else { Access::Read });
    }
    let before = machine.vm.stats();
    let changes = [
        (0, Some(page(100, false))),      // read-only to read-only, another page
        (1, Some(page(pfn(1).0, true))),  // read-only to writable, the same page
        (2, Some(page(102, true))),       // read-only to writable, another page
        (3, None),                        // gone
        (4, Some(page(pfn(4).0, false))), // writable to read-only, the same page
        (5, Some(page(105, true))),       // writable to another page
    ];
    let inside = machine.change(Reason::ChangePte, &changes);
    let frames: Vec<_> = inside.iter().map(|leaf| leaf.map(|leaf| leaf.pfn)).collect();
    assert_eq!(frames, [Some(Pfn(100)), Some(pfn(1)), Some(Pfn(102)), None, Some(pfn(4)), None], "{name}");
    assert!(inside.iter().flatten().all(|leaf| !leaf.perms.allows(Access::Write)), "{name}");
    let after = machine.vm.stats();
    assert_eq!(after.flushes.paid - before.flushes.paid, 1, "{name}: one for all");
    assert_eq!(after.leaves[0], before.leaves[0] - 2);
    // Stores ask the host, which gives or refuses.
    for (gfn, frame) in [(1, pfn(1)), (2, Pfn(102))] {
        assert_eq!(machine.touch(gfn, Access::Write), Next::Resume(Resume::Fixed), "{name} {gfn}");
        let leaf = machine.leaf(gfn).unwrap();
        assert_eq!((leaf.pfn, leaf.perms.allows(Access::Write)), (frame, true));
    }
    assert_eq!(machine.touch(5, Access::Read), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(machine.leaf(5).unwrap().pfn, Pfn(105));
}

/// Of a range that NUMA balancing announces, only told pages are zapped; table pages never are.
fn numa<F: Format>() {
    let mut machine = Machine::<F>::new();
    (0..PAGES).for_each(|gfn| {
        let _ = machine.touch(gfn, Access::Write);
    });
    let tables = machine.vm.table_pages(&mut machine.idle).reachable;
    machine.change(Reason::Numa, &[(3, None), (700, None)]);
    let after = machine.vm.table_pages(&mut machine.idle).reachable;
    assert_eq!((machine.vm.stats().leaves[0], after), (PAGES - 2, tables), "{}", F::NAME);
    assert_eq!((machine.leaf(3), machine.leaf(700)), (None, None));
    assert!(machine.leaf(4).is_some());
    let before = machine.vm.stats().flushes.paid;
    machine.change(Reason::Numa, &[]);
    machine.change(Reason::Numa, &[(3, None)]);
    assert_eq!(machine.vm.stats().flushes.paid, before, "nothing was mapped there: nothing is flushed");
}

/// An engine that ignores reasons unmaps the whole range at begin, whatever is told.
fn context_off<F: Format>() {
    let mut machine = Machine::<F>::built(|builder| builder.baseline(Baseline::NONE.contexts(false)));
    machine.host_maps(0, page(pfn(0).0, false));
    let _ = machine.touch(0, Access::Read);
    let _ = machine.touch(9, Access::Write);
    let inside = machine.change(Reason::ChangePte, &[(0, Some(page(100, false)))]);
    assert_eq!((inside, machine.leaf(9)), (vec![None], None), "{}", F::NAME);
    let _ = machine.touch(9, Access::Write);
    machine.change(Reason::WriteProtect, &[]);
    assert_eq!(machine.leaf(9), None);
}

/// A fault that asked the host before a page was told as unmapped does not map the old page again: the hole is too new,
/// in a table or above it. For a page that is not told, the answer stands: the negative control.
fn answers_that_come_late<F: Format>() {
    for (gfn, tells) in [(0, true), (0, false), (600, true), (600, false)] {
        let mut machine = Machine::<F>::new();
        let _ = machine.touch(1, Access::Read); // its table is there, the other's is not
        *machine.vm.host().late.lock().unwrap() = Some((gfn, tells));
        assert_eq!(machine.touch(gfn, Access::Read), Next::Resume(Resume::Mapped(Level::K4)));
        let found = machine.leaf(gfn).unwrap().pfn;
        assert_eq!(found, if tells { LATER } else { pfn(gfn) }, "{} {gfn} {tells}", F::NAME);
    }
}

fn who_is_young<F: Format>() {
    let mut machine = Machine::<F>::new();
    for gfn in 0..4 {
        let _ = machine.touch(gfn, Access::Write);
    }
    let Machine { idle, vm } = &mut machine;
    let all = Span::sized(RAM, PAGES * PAGE_SIZE);
    let before = vm.stats();
    assert!(!vm.young(idle, at(9), Young::Test), "{}: not there", F::NAME);
    assert!(vm.young(idle, at(2), Young::Test) && vm.young(idle, at(2), Young::Clear));
    assert!(!vm.young(idle, at(2), Young::Test), "cleared");
    assert!(vm.young(idle, all, Young::Test), "the others are not");
    assert_eq!(vm.stats().flushes.paid, before.flushes.paid);
    assert!(vm.young(idle, all, Young::ClearAndFlush) && !vm.young(idle, all, Young::Test));
    assert_eq!(vm.stats().flushes.paid, before.flushes.paid + 1);
    assert_eq!(vm.stats().leaves, before.leaves, "nothing is taken away");
    // No written page is lost, and the next access is seen.
    let done = machine.touch(2, Access::Write);
    if F::HARDWARE_AD {
        assert_eq!(done, Next::Resume(Resume::Spurious), "{}", F::NAME);
    } else {
        assert_eq!(done, Next::Resume(Resume::Fixed));
        assert!(machine.vm.young(&mut machine.idle, at(2), Young::Test));
    }
    assert!(machine.leaf(2).unwrap().dirty);
}

#[test]
fn every_format_does_the_same() {
    fn all<F: Format>() {
        safe_transitions::<F>();
        numa::<F>();
        context_off::<F>();
        answers_that_come_late::<F>();
        who_is_young::<F>();
    }
    all::<Ept4>();
    all::<Ept5>();
    all::<Npt4>();
    all::<Npt5>();
    all::<Pae>();
    all::<Ept4NoAd>();
}

/// A store to a page that is being replaced waits for the end, and takes nothing from readers meanwhile.
#[test]
fn a_store_that_waits_for_a_change_leaves_no_hole() {
    let mut machine = Machine::<Npt4>::new();
    machine.host_maps(0, page(pfn(0).0, false));
    let _ = machine.touch(0, Access::Read);
    let Machine { idle, vm } = &mut machine;
    let (vm, waits) = (&*vm, vm.stats().retries);
    let event = Event::new(at(0), Reason::ChangePte);
    let writer = std::thread::scope(|scope| {
        let mut writer = None;
        vm.around(idle, event, &mut |idle, told| {
            writer = Some(scope.spawn(|| {
                let mut idle = Idle::take().unwrap();
                let fault = Fault { gpa: Gpa(0), access: Access::Write };
                vm.vcpu(VcpuId(0)).unwrap().fault(&mut idle, fault)
            }));
            while vm.stats().retries == waits {
                std::thread::yield_now();
            }
            let there = |idle: &mut Idle| vm.memory().translate(idle, Gfn(0)).is_some();
            assert!((0..10_000).all(|_| there(idle)));
            vm.host().pages.lock().unwrap().insert(RAM.0, page(100, true));
            told.changed(idle, at(0), Some(page(100, true)));
            assert!((0..10_000).all(|_| there(idle)));
        })
        .unwrap();
        writer.unwrap().join().unwrap()
    });
    assert_eq!(writer, Ok(Next::Resume(Resume::Fixed)));
    let leaf = machine.leaf(0).unwrap();
    assert_eq!((leaf.pfn, leaf.perms.allows(Access::Write)), (Pfn(100), true));
}

/// If everything that it could wait for is taken, it answers at once, and nothing has changed.
#[test]
fn a_listener_that_may_not_wait_says_again() {
    let mut machine = Machine::<Npt4>::new();
    let _ = machine.touch(0, Access::Write);
    let event = Event { may_block: false, ..Event::new(at(0), Reason::Unmap) };
    let Machine { idle, vm } = &mut machine;
    // As many as can be in flight at once.
    let mut open = Vec::new();
    let full = loop {
        let mut ran = false;
        match vm.around(idle, event, &mut |_, _| ran = true) {
            Ok(()) => assert!(ran, "once"),
            Err(Again) => break !ran,
        }
        assert!(open.len() < 1000, "there is an end to it");
        open.push(vm.invalidate(at(500), Reason::Clear));
    };
    assert!(full && !open.is_empty());
    drop(open);
    assert_eq!(vm.around(idle, event, &mut |_, _| {}), Ok(()));
    assert_eq!(
        machine.touch(0, Access::Read),
        Next::Resume(Resume::Mapped(Level::K4)),
        "balanced: faults go on"
    );
    assert_eq!(machine.leaf(0).unwrap().pfn, pfn(0));
}

#[test]
fn a_lock_that_sleeps_is_not_waited_for() {
    for lock in [MmuLock::Exclusive, MmuLock::ReadWrite] {
        let mut machine = Machine::<Npt4>::built(|builder| builder.baseline(Baseline::NONE.mmu_lock(lock)));
        let _ = machine.touch(0, Access::Write);
        let event = Event { may_block: false, ..Event::new(at(0), Reason::Unmap) };
        let Machine { idle, vm } = &mut machine;
        assert_eq!(vm.around(idle, event, &mut |_, _| panic!("nothing changes")), Err(Again));
        assert!(machine.leaf(0).is_some(), "{lock:?}");
    }
}

/// Slots may share host addresses; the engine then goes through them in the order of their ids. A walk that rested
/// inside one begins the next at its beginning.
#[test]
fn a_walk_that_rests_in_a_slot_leaves_out_nothing_of_the_next() {
    // More entries than a walk visits between two rests.
    const MANY: u64 = 12 * 512;
    let mut machine = Machine::<Npt4>::new();
    let Machine { idle, vm } = &mut machine;
    let ram = RAM + PAGES * PAGE_SIZE;
    let slot = |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id) << 20), MANY, ram);
    vm.memory().commit(idle, |tx| (1..4).try_for_each(|id| tx.create(slot(id)))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for id in 1..4 {
        assert_eq!(vcpu.prefault(idle, slot(id).gfns, Prefault::OLD), Ok(MANY));
    }
    drop(vm.invalidate(Span::sized(ram, MANY * PAGE_SIZE), Reason::Clear).apply(idle).settle());
    let left = (1..4).flat_map(|id| (0..MANY).map(move |page| slot(id).gfns.start + page));
    assert_eq!(left.filter(|&gfn| vm.memory().translate(idle, gfn).is_some()).count(), 0);
}

/// A host that is about to copy a page pays the open debt of another change of that page, and nothing else.
#[test]
fn settling_pays_the_open_debts_of_a_page_and_only_those() {
    for lock in [MmuLock::None, MmuLock::ReadWrite] {
        let mut machine = Machine::<Npt4>::built(|builder| builder.baseline(Baseline::NONE.mmu_lock(lock)));
        let _ = machine.touch(0, Access::Write);
        let _ = machine.touch(9, Access::Write);
        let Machine { idle, vm } = &mut machine;
        let settle = |idle: &mut Idle, page: u64| {
            let before = vm.stats().flushes.paid;
            let event = Event::new(at(page), Reason::ChangePte);
            vm.around(idle, event, &mut |idle, told| told.settle(idle, at(page))).unwrap();
            vm.stats().flushes.paid - before
        };
        assert_eq!(settle(idle, 0), 0, "no other change is open");
        let event = Event::new(Span::new(RAM, at(8).start), Reason::Reclaim);
        vm.around(idle, event, &mut |idle, told| {
            told.changed(idle, at(0), None);
            assert_eq!((settle(idle, 0), settle(idle, 9)), (1, 0), "{lock:?}");
            told.flush(idle);
            assert_eq!(settle(idle, 0), 0, "it is paid");
        })
        .unwrap();
        assert_eq!(settle(idle, 0), 0);
    }
}

/// Invalidates all of a VM's memory.
type Way = fn(&Vm<Npt4, Plain>, &mut Idle, Reason);

const WAYS: [Way; 4] = [
    |vm, idle, why| drop(vm.invalidate(MEMORY, why).apply(idle).settle()),
    |vm, idle, why| drop(vm.memory().invalidate(Span::sized(Gfn(0), 1), why).apply(idle).settle()),
    |vm, idle, why| drop(vm.invalidate(MEMORY, why).changed(idle, MEMORY, None)),
    |vm, idle, why| drop(vm.memory().invalidate(Span::sized(Gfn(0), 1), why).changed(idle, MEMORY, None)),
];

const MEMORY: Span<Hva> = Span::new(RAM, Hva(RAM.0 + PAGE_SIZE));

/// A host of one page.
struct Plain;

impl Host for Plain {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage::PLAIN)
    }
}

#[test]
fn no_reason_and_no_order_of_calls_leaves_the_guest_a_page_that_it_may_store_to() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Plain).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1, RAM))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for why in Reason::ALL {
        for (number, invalidate) in WAYS.into_iter().enumerate() {
            let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
            invalidate(&vm, &mut idle, why);
            let mapped = vm.memory().translate(&mut idle, Gfn(0));
            assert!(
                !mapped.is_some_and(|found| found.leaf.perms.allows(Access::Write)),
                "{why:?}, way {number}"
            );
        }
    }
}
