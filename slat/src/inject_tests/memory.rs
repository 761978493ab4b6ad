//! Memory runs out in each operation. See the folder's header.

use super::leak::leaked;
use crate::inject::{self, Point};
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::formats::Npt4;
use crate::table::{Heap, Own, TableMemory, TablesOf};
use crate::*;
use core::ptr::NonNull;
use std::boxed::Box;
use std::error::Error;
use std::vec::Vec;

const HVA: Hva = Hva(0x7f00_0000_0000);
const RAM: SlotId = SlotId(0);
/// Pages of slot 0: two large pages, of which the second is mapped page by page.
const PAGES: u64 = 1024;
/// Pages that are stored to if a log is kept.
const STORED: [u64; 4] = [0, 64, 511, 600];

/// A host with large pages at first; counts the chunks that it has lent.
#[derive(Default)]
struct Lender {
    lent: AtomicU64,
}

// SAFETY: the heap's own functions, counted.
unsafe impl TableMemory for Lender {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.lent.fetch_add(1, Relaxed);
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        self.lent.fetch_sub(1, Relaxed);
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

impl Host for Lender {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let level = if hva < HVA + 512 * PAGE_SIZE { Level::M2 } else { Level::K4 };
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

type TestVm<'h> = Vm<Npt4, &'h Lender>;
type Said = Result<(), Box<dyn Error>>;

/// An operation, and the VM on which it runs.
struct Case {
    name: &'static str,
    log: DirtyLog,
    /// Whether slot 0 logs before, with [`STORED`] in its log.
    logs: bool,
    operation: fn(&TestVm<'_>, &mut Idle, &mut Vec<u64>) -> Said,
}

fn store(vm: &TestVm<'_>, idle: &mut Idle, gfn: Gfn) -> Result<Next, FaultError> {
    vm.vcpu(VcpuId(0)).unwrap().fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write })
}

/// Commits a harvest, and records its pages.
fn take<H: Host>(harvest: Harvest<'_, Npt4, H>, told: &mut Vec<u64>) {
    told.extend(harvest.iter().map(|page| page.page));
    harvest.commit();
}

fn cases() -> Vec<Case> {
    let bits = DirtyLog::bitmap();
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    let case = |name, log, logs, operation| Case { name, log, logs, operation };
    vec![
        case("fault", bits, false, |vm, idle, _| Ok(store(vm, idle, Gfn(700)).map(drop)?)),
        case("pre-fault", bits, false, |vm, idle, _| {
            Ok(vm
                .vcpu(VcpuId(0))
                .unwrap()
                .prefault(idle, Span::new(Gfn(0), Gfn(PAGES)), Prefault::OLD)
                .map(drop)?)
        }),
        case("create slots", bits, false, |vm, idle, _| {
            let slot = |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id) << 10), 1024, HVA).log_dirty();
            Ok(vm.memory().commit(idle, |tx| (1..40).try_for_each(|id| tx.create(slot(id))))?)
        }),
        case("delete and move slots", bits, true, |vm, idle, _| {
            let slot = Slot::new(SlotId(1), Gfn(5000), 8, HVA);
            vm.memory().commit(idle, |tx| tx.create(slot))?;
            vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(8192)).map(drop))?;
            vm.memory().commit(idle, |tx| tx.delete(SlotId(1)).map(drop))?;
            Ok(vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(0)).map(drop))?)
        }),
        case("begin a log", bits, false, |vm, idle, _| {
            vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, true))?;
            Ok(STORED.into_iter().try_for_each(|page| store(vm, idle, Gfn(page)).map(drop))?)
        }),
        case("harvest", bits, true, |vm, idle, told| {
            take(vm.memory().harvest(idle, RAM)?, told);
            Ok(())
        }),
        case("harvest by D bits", bits.track(Track::DirtyBits), true, |vm, idle, told| {
            take(vm.memory().harvest_all(idle)?, told);
            Ok(())
        }),
        case("harvest what was dirty from the start", bits.initially_set(), true, |vm, idle, told| {
            take(vm.memory().harvest(idle, RAM)?, told);
            Ok(())
        }),
        case("clear a part", bits.initially_set(), true, |vm, idle, told| {
            vm.memory().clear_dirty(idle, RAM, 64, 64, &[1])?;
            told.push(64);
            Ok(())
        }),
        case("harvest a ring", ring, true, |vm, idle, told| {
            take(vm.harvest_ring(idle, VcpuId(0))?, told);
            Ok(())
        }),
        case("harvest all rings", ring, true, |vm, idle, told| {
            take(vm.memory().harvest_all(idle)?, told);
            Ok(())
        }),
        case("end a log", bits, false, |vm, idle, _| {
            vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, true))?;
            Ok(vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, false).map(drop))?)
        }),
        case("split", bits, false, |vm, idle, _| {
            let _ = store(vm, idle, Gfn(0))?;
            Ok(vm.memory().split(idle, Span::new(Gfn(0), Gfn(PAGES)), Level::K4).map(drop)?)
        }),
        case("zap all", bits, true, |vm, idle, _| Ok(vm.zap_all(idle)?)),
    ]
}

/// Runs the operation of `case` on a VM of its own. Returns its result, and panics if anything is wrong afterwards.
fn run(case: &Case, injected: impl Fn(&mut dyn FnMut())) -> Said {
    let (mut idle, host) = (Idle::take().unwrap(), Lender::default());
    let vm = TestVm::builder(&host).dirty_log(case.log).build().unwrap();
    let slot = Slot::new(RAM, Gfn(0), PAGES, HVA);
    let slot = if case.logs { slot.log_dirty() } else { slot };
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    if case.logs {
        for page in STORED {
            let _ = store(&vm, &mut idle, Gfn(page)).unwrap();
        }
    }
    let (mut said, mut told) = (Ok(()), Vec::new());
    injected(&mut || said = (case.operation)(&vm, &mut idle, &mut told));

    let logs = vm.memory().get(&mut idle, RAM).unwrap().log_dirty;
    if logs {
        take(vm.memory().harvest_all(&mut idle).unwrap(), &mut told);
        let lost = STORED.into_iter().find(|page| case.logs && !told.contains(page));
        assert_eq!(lost, None, "{}: a store is in the log, or was told", case.name);
    }
    let at = vm.memory().get(&mut idle, RAM).unwrap().gfns.start;
    for gfn in [at, at + 511, at + 700] {
        let _ = store(&vm, &mut idle, gfn).unwrap();
        assert!(vm.memory().translate(&mut idle, gfn).is_some());
    }
    vm.collect(&mut idle);
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated, "{}: {pages:?}", case.name);
    drop(vm);
    assert_eq!(host.lent.load(Relaxed), 0, "{}: the host has its memory back", case.name);
    said
}

#[test]
fn memory_runs_out_at_every_place() {
    let (mut places, mut refused) = (0, 0);
    for case in cases() {
        let mut passed = 0;
        let count = core::cell::Cell::new(0);
        run(&case, |operation| count.set(inject::count(Point::Alloc, operation).1)).unwrap();
        passed += count.get();
        assert!(passed < 500, "{}: memory is asked for {passed} times", case.name);
        for nth in 0..passed {
            let leaks = leaked(|| {
                if let Err(error) = run(&case, |operation| inject::nth(Point::Alloc, nth, operation)) {
                    assert!(error.to_string().contains("memory"), "{}, {nth}: {error}", case.name);
                    refused += 1;
                }
            });
            assert_eq!(leaks, 0, "{}, without memory at place {nth}", case.name);
        }
        places += passed;
    }
    assert!(refused > 50 && refused < places, "{refused} of {places} said so, the others could do without");
    std::println!("EXECUTIONS Inject memory {places}");
}

/// A VM that cannot be built leaks nothing either.
#[test]
fn a_vm_that_cannot_be_built_leaves_nothing_behind() {
    let build = |nth| {
        let host = Lender::default();
        let log = DirtyLog::ring(RingSize::new(4096).unwrap());
        let builder = TestVm::builder(&host).vcpus(3).address_spaces(70).dirty_log(log);
        let built = inject::nth(Point::Alloc, nth, || builder.build().is_ok());
        assert_eq!(host.lent.load(Relaxed), 0, "without memory at place {nth}");
        built
    };
    let mut nth = 0;
    while !build(nth) {
        assert_eq!(leaked(|| assert!(!build(nth))), 0);
        nth += 1;
    }
    assert!(nth >= 70 + 3, "{nth} places");
}
