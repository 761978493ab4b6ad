//! Instructions of the hot paths: `cargo xtask gate` runs this under callgrind, which counts only inside [`measured`].
//! `gate` alone lists the paths, and `gate PATH` runs one of them [`TIMES`] times.

use slat::entry::Go;
use slat::slots::Hint;
use slat::table::formats::Ept4;
use slat::{
    Access, Fault, Gfn, Host, HostError, HostPage, Hva, Idle, Next, PAGE_SHIFT, PAGE_SIZE, Pfn, Reason,
    SecondaryMmu, Slot, SlotId, Span, Translations, Vcpu, VcpuId, Vm, Why, Young,
};
use std::hint::black_box;

/// Operations of each path, on as many pages: eight tables of them.
const TIMES: u64 = 4096;
const HVA: Hva = Hva(1 << 40);

/// A host whose frame is the address, writable, and known without sleeping.
struct Identity;

impl Host for Identity {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

/// An empty TLB.
struct Nothing;

impl Translations for Nothing {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

type Machine = Vm<Ept4, Identity>;

/// A path: its preparation, and the operation that is counted.
type Path = fn(&mut Idle, &Machine);

const PATHS: &[(&str, Path)] = &[
    ("fault-install", |idle, vm| {
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        // Usually the tables exist already.
        for gfn in (0..TIMES).step_by(512) {
            touch(&mut vcpu, idle, gfn, Access::Write);
        }
        measured(|gfn| touch(&mut vcpu, idle, gfn, Access::Write));
    }),
    ("fault-present", |idle, vm| {
        let mut vcpu = mapped(idle, vm);
        measured(|gfn| touch(&mut vcpu, idle, gfn, Access::Read));
    }),
    ("fault-write-again", |idle, vm| {
        let mut vcpu = mapped(idle, vm);
        vm.memory().write_protect(idle, Span::sized(Gfn(0), TIMES)).settle();
        measured(|gfn| touch(&mut vcpu, idle, gfn, Access::Write));
    }),
    ("slot-hint-hit", |idle, vm| find(idle, vm, |number| Gfn(number % 64))),
    ("slot-hint-miss", |idle, vm| find(idle, vm, |number| Gfn(number % 64 * 64))),
    ("translate", |idle, vm| {
        drop(mapped(idle, vm));
        let walk = vm.memory().lockless(idle);
        measured(|gfn| _ = black_box(walk.translate(Gfn(gfn))));
    }),
    ("invalidate-empty", invalidate),
    ("invalidate-present", |idle, vm| {
        drop(mapped(idle, vm));
        invalidate(idle, vm);
    }),
    ("change-empty", |idle, vm| {
        measured(|gfn| vm.change(idle, Span::sized(HVA + gfn * PAGE_SIZE, PAGE_SIZE), Why::Migrate, |_| ()));
    }),
    ("age-leaf", |idle, vm| {
        drop(mapped(idle, vm));
        // One call reads every leaf: the leaves are the operations.
        let hvas = Span::sized(HVA, TIMES * PAGE_SIZE);
        counted(|| assert!(vm.young(idle, hvas, Young::Clear)));
    }),
    ("harvest-page", |idle, vm| {
        // One log for all pages: the cost of each log is not counted.
        let slot = Slot::new(SlotId(0), Gfn(0), TIMES, HVA).log_dirty();
        vm.memory()
            .commit(idle, |tx| {
                (0..64).try_for_each(|id| tx.delete(SlotId(id)).map(drop))?;
                tx.create(slot)
            })
            .unwrap();
        drop(mapped(idle, vm));
        counted(|| {
            let harvest = vm.memory().harvest_all(idle).unwrap();
            assert_eq!(harvest.pages(), TIMES);
            harvest.commit();
        });
    }),
    ("enter-and-leave", |idle, vm| {
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        measured(|_| match vcpu.enter(idle, &mut Nothing).go(|| ()) {
            Go::In(guest, ()) => drop(black_box(guest)),
            Go::Back => unreachable!("nothing is flushed"),
        });
    }),
];

/// The function that callgrind finds by name and counts.
#[inline(never)]
fn counted(work: impl FnOnce()) {
    work();
}

/// Runs `operation` on each page.
fn measured(mut operation: impl FnMut(u64)) {
    counted(|| (0..TIMES).for_each(&mut operation));
}

fn touch(vcpu: &mut Vcpu<'_, Ept4, Identity>, idle: &mut Idle, gfn: u64, access: Access) {
    // As a run loop does.
    let Next::Resume(_) = vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap() else {
        panic!("the page is memory")
    };
}

/// A vCPU, after it has stored to every page.
fn mapped<'vm>(idle: &mut Idle, vm: &'vm Machine) -> Vcpu<'vm, Ept4, Identity> {
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    (0..TIMES).for_each(|gfn| touch(&mut vcpu, idle, gfn, Access::Write));
    vcpu
}

fn find(idle: &mut Idle, vm: &Machine, gfn: impl Fn(u64) -> Gfn) {
    let (slots, hint) = (vm.memory(), Hint::default());
    let snapshot = slots.snapshot(idle);
    measured(|number| _ = black_box(snapshot.find_with(&hint, gfn(number))));
}

/// An invalidation of each page, from begin to end.
fn invalidate(idle: &mut Idle, vm: &Machine) {
    measured(|gfn| {
        let hvas = Span::sized(HVA + gfn * PAGE_SIZE, PAGE_SIZE);
        drop(vm.invalidate(hvas, Reason::Migrate).apply(idle).settle());
    });
}

fn main() {
    let Some(name) = std::env::args().nth(1) else {
        for (name, _) in PATHS {
            println!("{name} {TIMES}");
        }
        return;
    };
    let (_, path) = PATHS.iter().find(|(path, _)| *path == name).expect("a path of that name");
    let mut idle = Idle::take().expect("this thread's only one");
    let vm = Machine::builder(Identity).vcpus(1).build().unwrap();
    // 64 slots, so that finding one takes a search.
    let slot = |id: u32| {
        let first = u64::from(id) * (TIMES / 64);
        Slot::new(SlotId(id), Gfn(first), TIMES / 64, HVA + first * PAGE_SIZE)
    };
    vm.memory().commit(&mut idle, |tx| (0..64).try_for_each(|id| tx.create(slot(id)))).unwrap();
    path(&mut idle, &vm);
}
