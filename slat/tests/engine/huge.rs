//! Huge pages: when they are mapped, split and recovered in place, and not executable on request.

use slat::table::formats::{Ept4, Npt4};
use slat::table::{Heap, Own, TableMemory, TablesOf};
use slat::*;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const RAM: Hva = Hva(0x40_0000_0000);
const GIB: u64 = Level::G1.pages();

/// Frame = address; pages of the level set; a limited number of chunks of table memory.
struct Sized {
    level: AtomicU8,
    chunks: AtomicU64,
}

// SAFETY: the heap's own functions.
unsafe impl TableMemory for Sized {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.chunks.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

impl Host for Sized {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage {
            pfn: Pfn(hva.0 >> 12),
            level: Level::new(self.level.load(Relaxed))?,
            ..HostPage::PLAIN
        })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// A VM of 2 GiB on a host with pages of `level` and `chunks` chunks.
fn vm<F: Format>(level: Level, chunks: u64, nx: bool) -> (Idle, Vm<F, Sized>) {
    let mut idle = Idle::take().unwrap();
    let host = Sized { level: AtomicU8::new(level.number()), chunks: AtomicU64::new(chunks) };
    let vm = Vm::<F, _>::builder(host).nx_huge_pages(nx).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 2 * GIB, RAM))).unwrap();
    (idle, vm)
}

fn touch(vcpu: &mut Vcpu<'_, impl Format, Sized>, idle: &mut Idle, gfn: u64, access: Access) -> Next {
    vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap()
}

fn frames(from: u64, to: u64) -> Span<Gfn> {
    Span::new(Gfn(from), Gfn(to))
}

#[test]
fn one_gib_is_split_to_any_size_and_comes_back() {
    let (mut idle, vm) = vm::<Ept4>(Level::G1, 64, false);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(touch(&mut vcpu, &mut idle, 5, Access::Write), Next::Resume(Resume::Mapped(Level::G1)));
    assert_eq!(
        vm.memory().split(&mut idle, frames(700, 701), Level::M2),
        Ok(1),
        "the leaf reaches out of the range"
    );
    assert_eq!(vm.stats().leaves, [0, 512, 0]);
    assert_eq!(vm.memory().split(&mut idle, frames(700, 1030), Level::K4), Ok(2), "two of 2 MiB lie there");
    assert_eq!(vm.stats().leaves, [1024, 510, 0]);
    assert_eq!(vm.memory().split(&mut idle, frames(0, GIB), Level::K4), Ok(510));
    assert_eq!((vm.stats().leaves, vm.stats().splits), ([GIB, 0, 0], [512, 1]));
    for gfn in [0, 511, 512, 700, GIB - 1] {
        let found = vm.memory().translate(&mut idle, Gfn(gfn)).unwrap();
        assert_eq!(
            (found.leaf.pfn.0, found.leaf.perms, found.leaf.dirty),
            ((RAM.0 >> 12) + gfn, Perms::RWX, true)
        );
    }

    assert_eq!(vm.memory().recover(&mut idle, frames(1, 511)), 0, "no table lies whole in it");
    assert_eq!(
        vm.memory().recover(&mut idle, frames(1, GIB)),
        511,
        "the host's page is larger, the range is not"
    );
    vm.host().level.store(Level::M2.number(), Relaxed);
    assert_eq!(vm.memory().recover(&mut idle, frames(0, GIB)), 1);
    assert_eq!(vm.stats().leaves, [0, 512, 0]);
    vm.host().level.store(Level::G1.number(), Relaxed);
    assert_eq!(vm.memory().recover(&mut idle, frames(0, 2 * GIB)), 1);
    assert_eq!((vm.stats().leaves, vm.stats().recovered), ([0, 0, 1], [512, 1]));
    assert_eq!(vm.memory().recover(&mut idle, frames(0, u64::MAX)), 0, "nothing left");
    drop(vcpu);
    let pages = vm.table_pages(&mut idle);
    assert_eq!((pages.reachable, pages.waiting), (2, 0));
    assert_eq!(pages.reachable + pages.free, pages.allocated);
}

#[test]
fn slots_decide_what_may_be_large() {
    let (mut idle, vm) = vm::<Npt4>(Level::M2, 64, false);
    let odd = Slot::new(SlotId(1), Gfn(4 * GIB), 2048, RAM + 4096);
    vm.memory().commit(&mut idle, |tx| tx.create(odd)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(
        touch(&mut vcpu, &mut idle, 4 * GIB, Access::Read),
        Next::Resume(Resume::Mapped(Level::K4)),
        "not congruent"
    );
    assert_eq!(vm.memory().recover(&mut idle, frames(0, u64::MAX)), 0);
    assert_eq!(touch(&mut vcpu, &mut idle, 600, Access::Read), Next::Resume(Resume::Mapped(Level::M2)));
    vm.memory().split(&mut idle, frames(512, 1024), Level::K4).unwrap();
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
    assert_eq!(vm.memory().recover(&mut idle, frames(0, 2 * GIB)), 0, "logged page by page");
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SlotId(0), false)).unwrap();
    assert_eq!(vm.memory().translate(&mut idle, Gfn(600)).unwrap().level, Level::M2, "back by itself");
    assert_eq!(vm.memory().recover(&mut idle, frames(0, 2 * GIB)), 0);
}

#[test]
fn a_fetch_splits_large_pages_that_do_not_execute() {
    let (mut idle, vm) = vm::<Ept4>(Level::G1, 64, true);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(touch(&mut vcpu, &mut idle, 5, Access::Write), Next::Resume(Resume::Mapped(Level::G1)));
    let perms = |idle: &mut Idle, gfn| vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf.perms;
    assert_eq!(perms(&mut idle, 5), Perms::RWX.without(Perms::EXECUTE));
    assert_eq!(
        touch(&mut vcpu, &mut idle, 700, Access::Fetch),
        Next::Resume(Resume::Fixed),
        "split down, not faulted again"
    );
    assert_eq!(perms(&mut idle, 700), Perms::RWX);
    assert_eq!(perms(&mut idle, 5), Perms::RWX.without(Perms::EXECUTE), "only where it was fetched from");
    assert_eq!(touch(&mut vcpu, &mut idle, 701, Access::Fetch), Next::Resume(Resume::Spurious));
    assert_eq!(vm.stats().leaves, [512, 511, 0]);
    assert_eq!(touch(&mut vcpu, &mut idle, GIB + 3, Access::Fetch), Next::Resume(Resume::Mapped(Level::K4)));

    assert_eq!(
        vm.memory().recover(&mut idle, frames(0, 2 * GIB)),
        2,
        "one that was split, one that began small"
    );
    assert_eq!(vm.stats().leaves, [0, 0, 2]);
    assert_eq!(perms(&mut idle, 700), Perms::RWX.without(Perms::EXECUTE));
    assert_eq!(touch(&mut vcpu, &mut idle, 700, Access::Fetch), Next::Resume(Resume::Fixed), "and again");
}

#[test]
fn without_table_memory_a_split_stops_where_it_is_and_the_vm_goes_on() {
    let (mut idle, vm) = vm::<Npt4>(Level::G1, 1, false);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(touch(&mut vcpu, &mut idle, 5, Access::Write), Next::Resume(Resume::Mapped(Level::G1)));
    let error = vm.memory().split(&mut idle, frames(0, GIB), Level::K4).unwrap_err();
    assert_eq!(error.to_string(), "the host has no more memory for table pages");
    let leaves = vm.stats().leaves;
    assert_eq!(leaves[0] / 512 + leaves[1], 512, "all of it is mapped: {leaves:?}");
    assert_eq!(touch(&mut vcpu, &mut idle, 9, Access::Read), Next::Resume(Resume::Spurious));
    let failed = vcpu.fault(&mut idle, Fault { gpa: Gfn(6 * GIB).gpa(), access: Access::Read });
    assert_eq!(failed, Ok(Next::Emulate(Emulate::NoMemory)));
    assert_eq!(vm.memory().recover(&mut idle, frames(0, GIB)), 1, "gives its tables back");
    assert!(vm.memory().split(&mut idle, frames(0, 512), Level::K4).is_ok());
}

/// A walk that rests reads the leaf before it once more: that counts no second leaf. Nor do the small leaves into which
/// a large one is split behind the walk.
#[test]
fn a_leaf_is_visited_once_however_often_the_walk_rests() {
    let (mut idle, vm) = vm::<Npt4>(Level::M2, 64, false);
    let more = Slot::new(SlotId(1), Gfn(2 * GIB), 40 * GIB, RAM + 2 * Level::G1.bytes());
    vm.memory().commit(&mut idle, |tx| tx.create(more)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(vcpu.prefault(&mut idle, frames(0, 42 * GIB), Prefault::OLD), Ok(42 * GIB));
    let mut starts = Vec::new();
    vm.memory()
        .lockless(&mut idle)
        .for_each(frames(0, u64::MAX), |mapping| starts.push(mapping.gfns.start.0));
    assert!(starts.into_iter().eq((0..42 * GIB).step_by(512)));

    // Another thread splits each while it is visited.
    let mut visited = 0;
    let (vm, first) = (&vm, frames(0, GIB));
    vm.memory().lockless(&mut idle).for_each(first, |mapping| {
        visited += mapping.gfns.len();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut idle = Idle::take().unwrap();
                vm.memory().split(&mut idle, mapping.gfns, Level::K4).unwrap()
            });
        });
    });
    assert_eq!(visited, GIB, "each frame once");
}
