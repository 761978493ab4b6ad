//! Large and empty VMs cost little: 416 vCPUs, 12 TiB, and memory only for what is mapped.
//!
//! The allocator of this binary counts what each thread holds. "An empty VM" is thus what it really allocates: seats,
//! flush state, memslots, the first chunk of tables.

use crate::common::identity::Identity;
use crate::common::random::Random;
use slat::table::formats::Npt4;
use slat::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::thread;

const VCPUS: u32 = 416;
const TIB: u64 = 1 << 40;
const GUEST: u64 = 12 * TIB;
const SLOTS: u64 = 64;

struct Counting;

thread_local! {
    /// Bytes allocated minus bytes freed by this thread.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is being torn down no longer counts.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how much more this thread holds after `make`, while the result lives.
fn held<T>(make: impl FnOnce() -> T) -> (T, u64) {
    let before = HELD.get();
    let made = make();
    (made, (HELD.get() - before).try_into().expect("it gave back more than it took"))
}

/// No memslots yet.
fn empty(vcpus: u32) -> Vm<Npt4, Identity> {
    Vm::builder(Identity::default()).vcpus(vcpus).build().unwrap()
}

/// 12 TiB in as many memslots of one size.
fn populate(vm: &Vm<Npt4, Identity>, idle: &mut Idle) {
    let pages = GUEST / SLOTS / PAGE_SIZE;
    let slot = |nth: u64| {
        let gfn = Gfn(nth * pages);
        Slot::new(SlotId(nth as u32), gfn, pages, Hva(gfn.gpa().0 + TIB))
    };
    vm.memory().commit(idle, |tx| (0..SLOTS).try_for_each(|nth| tx.create(slot(nth)))).unwrap();
}

fn map(vcpu: &mut Vcpu<'_, Npt4, Identity>, idle: &mut Idle, gfn: Gfn) {
    let done = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write }).unwrap();
    assert!(matches!(done, Next::Resume(Resume::Mapped(Level::K4) | Resume::Spurious)), "{done:?}");
}

/// Everything that it allocates, and itself.
#[test]
fn an_empty_vm_costs_less_than_300_kib() {
    drop(empty(1)); // Costs that a process pays once.
    let (vm, allocated) = held(|| empty(1));
    let cost = allocated + size_of_val(&vm) as u64;
    let tables = vm.stats().lent_bytes;
    println!("an empty VM of one vCPU: {cost} bytes, {tables} of them lent for tables");
    assert!(cost < 300 << 10, "{cost} bytes");
}

#[test]
fn an_empty_vm_of_416_vcpus_and_12_tib_costs_less_than_a_mebibyte_and_256_bytes_a_vcpu() {
    let mut idle = Idle::take().unwrap();
    drop(empty(1)); // Costs that a process pays once.
    let (one, base) = held(|| empty(1));
    let (vm, cost) = held(|| {
        let vm = empty(VCPUS);
        populate(&vm, &mut idle);
        vm
    });
    let (vcpus, claimed) = held(|| (0..VCPUS).map(|id| vm.vcpu(VcpuId(id)).unwrap()).collect::<Vec<_>>());
    let handles = size_of_val(&vcpus[..]) as u64;
    assert!(claimed <= 2 * handles, "a vCPU that does nothing has its handle and no more");
    println!(
        "an empty VM: {base} bytes; of {VCPUS} vCPUs and 12 TiB: {cost}, and {} a handle",
        handles / 416
    );
    assert!(cost < (1 << 20) + 256 * u64::from(VCPUS), "{cost} bytes");
    assert!(vm.vcpu(VcpuId(0)).is_none() && vm.vcpu(VcpuId(VCPUS)).is_none(), "all are taken");

    let (more, twice) = held(|| empty(2 * VCPUS));
    let (less, once) = held(|| empty(VCPUS));
    assert_eq!((twice - once) / u64::from(VCPUS), 256, "as `Builder::vcpus` says");
    drop((one, vcpus, more, less));
}

#[test]
fn tables_of_a_sparse_12_tib_guest_are_those_of_what_is_mapped() {
    const THREADS: u64 = 4;
    // Places of 2 MiB, at random over all of the guest, each with some mapped pages.
    let (places, faults) = if cfg!(debug_assertions) { (8_000, 125_000) } else { (30_000, 500_000) };
    let mut idle = Idle::take().unwrap();
    let vm = &empty(VCPUS);
    populate(vm, &mut idle);

    // All vCPUs exist; a few threads run some of them, in turn.
    let gfn = |random: &mut Random, place: u64| {
        let at = Random::new(place).below(GUEST / Level::M2.bytes());
        Gfn(at * Level::M2.pages() + random.below(Level::M2.pages()))
    };
    let mapped: BTreeSet<Gfn> = thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mine = (0..VCPUS).filter(|id| u64::from(*id) % THREADS == thread);
                let mut vcpus: Vec<_> = mine.map(|id| vm.vcpu(VcpuId(id)).unwrap()).collect();
                let mut random = Random::new(thread + 1);
                let mut mapped = BTreeSet::new();
                for fault in 0..faults {
                    let place = 1 + random.below(places);
                    let gfn = gfn(&mut random, place);
                    let turn = fault as usize % vcpus.len();
                    map(&mut vcpus[turn], &mut idle, gfn);
                    mapped.insert(gfn);
                }
                mapped
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });

    let stats = vm.stats();
    assert_eq!(stats.leaves, [mapped.len() as u64, 0, 0]);
    let tables = |level: Level| {
        let tables: BTreeSet<Gfn> = mapped.iter().map(|gfn| gfn.base(level)).collect();
        tables.len() as u64
    };
    let linked = tables(Level::M2) + tables(Level::G1) + tables(Level::G1.up()) + 1;
    assert_eq!(vm.table_pages(&mut idle).reachable, linked);
    // The host lent them, their notes, the vCPUs' spare pages, and less than a chunk more for each that asked at once.
    let at_hand = u64::from(VCPUS) * 8;
    let bound = (linked + at_hand) * PAGE_SIZE / 63 * 64 + (THREADS << 18);
    assert!(stats.lent_bytes <= bound, "{} bytes, not {bound}", stats.lent_bytes);
    assert!(bound < 256 << 20, "far below the 8 GiB that a mapped guest of this size has: {bound}");
    println!("{} pages in {linked} tables: {} KiB lent", mapped.len(), stats.lent_bytes >> 10);
}

#[test]
fn tables_cost_two_thousandths_of_what_is_mapped_densely_with_their_notes() {
    let mut idle = Idle::take().unwrap();
    let vm = empty(VCPUS);
    populate(&vm, &mut idle);
    let mut vcpu = vm.vcpu(VcpuId(VCPUS - 1)).unwrap();
    // Not at the begin of a memslot.
    let gfns = Span::sized(Gfn(5 << 30 >> PAGE_SHIFT), 4 << 30 >> PAGE_SHIFT);
    for gfn in gfns.start.0..gfns.end.0 {
        map(&mut vcpu, &mut idle, Gfn(gfn));
    }
    let tables = vm.table_pages(&mut idle).reachable * PAGE_SIZE;
    let with_notes = tables / 63 * 64;
    assert_eq!(vm.stats().mapped_bytes(), 4 << 30);
    assert!(with_notes * 500 <= 4 << 30, "{with_notes} bytes");
}
