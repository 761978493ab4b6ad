//! Table memory that goes back to the host, lent in chunks or page by page.

use crate::common::identity::Identity;
use crate::common::random::Random;
use slat::table::formats::{Arm64, Npt4, RiscV};
use slat::table::memory::{CHUNK_BYTES, CHUNK_PAGES};
use slat::table::{Own, TableMemory, TablesOf};
use slat::*;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::thread;

const RAM: Hva = Hva(1 << 41);
const TABLE: u64 = Level::M2.pages();
const GIB: u64 = Level::G1.pages();

fn touch<F: Format, H: Host>(vcpu: &mut Vcpu<'_, F, H>, idle: &mut Idle, gfn: u64) {
    let _ = vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }).unwrap();
}

/// A guest of `gibs` GiB, in memslots of at most 1 TiB.
fn guest(idle: &mut Idle, gibs: u64) -> Vm<Npt4, Identity> {
    let vm = Vm::<Npt4, _>::builder(Identity::default()).build().unwrap();
    let slot = |first: u64| {
        let (gfn, pages) = (first * GIB, (gibs - first).min(1024) * GIB);
        Slot::new(SlotId((first / 1024) as u32), Gfn(gfn), pages, RAM + gfn * PAGE_SIZE)
    };
    let mut slots = (0..gibs).step_by(1024).map(slot);
    vm.memory().commit(idle, |tx| slots.try_for_each(|slot| tx.create(slot))).unwrap();
    vm
}

/// Touches one page of each 2 MiB of these GiB, or of each `stride`-th.
fn touch_gibs(vm: &Vm<Npt4, Identity>, idle: &mut Idle, gibs: std::ops::Range<u64>, stride: usize) {
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in (gibs.start * GIB..gibs.end * GIB).step_by(stride * TABLE as usize) {
        touch(&mut vcpu, idle, gfn);
    }
}

/// The memory that the host lends a guest that never had more than 1 GiB.
fn lent_to_one_gib(idle: &mut Idle) -> u64 {
    let vm = guest(idle, 1);
    touch_gibs(&vm, idle, 0..1, 1);
    vm.stats().lent_bytes
}

/// The guest gives all beyond its first GiB back, by one invalidation.
fn shrink_to_one_gib(vm: &Vm<Npt4, Identity>, idle: &mut Idle, gibs: u64) {
    drop(vm.memory().invalidate(Span::new(Gfn(GIB), Gfn(gibs * GIB)), Reason::Unmap).apply(idle).settle());
}

#[test]
fn a_guest_of_12_tib_that_shrinks_to_1_gib_needs_what_1_gib_needs() {
    const GIBS: u64 = 12 << 10;
    let mut idle = Idle::take().unwrap();
    let small = lent_to_one_gib(&mut idle);
    let vm = guest(&mut idle, GIBS);
    touch_gibs(&vm, &mut idle, 0..1, 1);
    // Two tables for each GiB, and sixteen GiB densely.
    touch_gibs(&vm, &mut idle, 1..GIBS - 16, 512);
    touch_gibs(&vm, &mut idle, GIBS - 16..GIBS, 1);
    let large = vm.stats().lent_bytes;
    shrink_to_one_gib(&vm, &mut idle, GIBS);
    let before = vm.stats().lent_bytes;
    let back = vm.shrink(&mut idle);
    let stats = vm.stats();
    println!("12 TiB: {large} bytes lent; shrunk to 1 GiB: {}; 1 GiB alone: {small}", stats.lent_bytes);
    assert_eq!(stats.lent_bytes + back, before, "as it says");
    assert!(large > 50 * small, "negative control: it had far more");
    assert!(stats.lent_bytes * 10 <= small * 11, "{} bytes, of {small}", stats.lent_bytes);
    assert_eq!(stats.leaves, [512, 0, 0], "no page of the first GiB was lost");
}

/// The tables of its first GiB were made at random among all others: hardly a chunk becomes free.
#[test]
fn a_guest_that_was_touched_at_random_is_compacted() {
    const GIBS: u64 = 64;
    let mut idle = Idle::take().unwrap();
    let small = lent_to_one_gib(&mut idle);
    let vm = guest(&mut idle, GIBS);
    let mut tables: Vec<u64> = (0..GIBS * 512).collect();
    Random::new(5).0.shuffle(&mut tables);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for table in tables {
        touch(&mut vcpu, &mut idle, table * TABLE);
    }
    drop(vcpu);
    let large = vm.stats().lent_bytes;
    shrink_to_one_gib(&vm, &mut idle, GIBS);
    vm.shrink(&mut idle);
    let shrunk = vm.stats().lent_bytes;
    let back = vm.compact(&mut idle);
    let stats = vm.stats();
    assert_eq!(stats.lent_bytes + back, shrunk);
    touch_gibs(&vm, &mut idle, 0..1, 1);
    let compacted = vm.stats().lent_bytes;
    println!(
        "random: {large} bytes lent, {shrunk} shrunk, {compacted} compacted and touched again; alone {small}"
    );
    assert!(shrunk > 20 * small, "negative control: nothing is moved, so most chunks stay");
    assert!(compacted * 10 <= small * 11, "{compacted} bytes, of {small}");
    assert_eq!(vm.stats().leaves, [512, 0, 0]);
    assert_eq!(vm.compact(&mut idle), 0, "a second time there is nothing to do");
    assert_eq!(vm.stats().leaves, [512, 0, 0], "and nothing is taken back");
}

/// Without a call: only a few chunks are kept.
#[test]
fn chunks_go_back_by_themselves() {
    const GIBS: u64 = 64;
    let mut idle = Idle::take().unwrap();
    let small = lent_to_one_gib(&mut idle);
    let vm = guest(&mut idle, GIBS);
    touch_gibs(&vm, &mut idle, 0..GIBS, 1);
    shrink_to_one_gib(&vm, &mut idle, GIBS);
    vm.collect(&mut idle);
    let kept = vm.stats().lent_bytes - small;
    assert!(kept <= 10 * CHUNK_BYTES as u64, "{kept} bytes are kept");
}

/// A vCPU's spare pages keep their chunk, until they are given back.
#[test]
fn a_vcpu_gives_back_what_it_has_at_hand() {
    let mut idle = Idle::take().unwrap();
    let vm = guest(&mut idle, 1);
    touch_gibs(&vm, &mut idle, 0..1, 1);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    drop(vm.memory().invalidate(Span::new(Gfn(0), Gfn(GIB)), Reason::Unmap).apply(&mut idle).settle());
    touch(&mut vcpu, &mut idle, 0);
    let at_hand = vm.stats().table_bytes;
    vcpu.give_tables_back();
    assert!(vm.stats().table_bytes < at_hand);
    vm.shrink(&mut idle);
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.free, pages.allocated, "nothing is at hand");
    touch(&mut vcpu, &mut idle, TABLE);
    assert!(vm.memory().translate(&mut idle, Gfn(TABLE)).is_some(), "it gets others");
}

/// Lends blocks of the heap, and fills returned blocks with a pattern. If `SINGLE`, page by page in scrambled order:
/// each page is one of many that were allocated before.
#[derive(Default)]
struct Lender<const SINGLE: bool>(Mutex<Lent>);

#[derive(Default)]
struct Lent {
    /// Pages of each block, by its address.
    blocks: BTreeMap<usize, usize>,
    spare: Vec<usize>,
    most: usize,
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages << PAGE_SHIFT, pages << PAGE_SHIFT).unwrap()
}

impl<const SINGLE: bool> Lender<SINGLE> {
    fn take(&self, pages: usize) -> NonNull<u8> {
        let mut lent = self.0.lock().unwrap();
        // SAFETY: not of size zero.
        let fresh = |pages| unsafe { alloc(layout(pages)) }.expose_provenance();
        let block = if pages > 1 {
            fresh(pages)
        } else {
            if lent.spare.len() < 300 {
                lent.spare.extend((0..300).map(|_| fresh(1)));
            }
            let nth = Random::new(lent.spare.len() as u64 ^ lent.blocks.len() as u64).below(300);
            lent.spare.swap_remove(nth as usize)
        };
        assert_eq!(lent.blocks.insert(block, pages), None);
        lent.most = lent.most.max(lent.blocks.values().sum());
        NonNull::new(std::ptr::with_exposed_provenance_mut(block)).unwrap()
    }

    fn put(&self, block: NonNull<u8>, pages: usize) {
        let mut lent = self.0.lock().unwrap();
        let address = block.as_ptr().addr();
        assert_eq!(lent.blocks.remove(&address), Some(pages), "lent, once, as so many pages");
        // SAFETY: lent above, and given back by the engine. A walk that strays here finds leaves of frames that do not
        // exist.
        unsafe { block.write_bytes(0xa7, pages << PAGE_SHIFT) };
        if pages > 1 {
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(block.as_ptr(), layout(pages)) };
        } else {
            lent.spare.push(address);
        }
    }
}

impl<const SINGLE: bool> Drop for Lender<SINGLE> {
    fn drop(&mut self) {
        let lent = self.0.get_mut().unwrap();
        assert_eq!(lent.blocks.len(), 0, "all is back");
        for &page in &lent.spare {
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(page), layout(1)) };
        }
    }
}

/// The frame of a page is its address, plus this.
const FIRST: u64 = 0x1_0000;

// SAFETY: blocks of the heap, each lent once; frame and address differ by `FIRST`.
unsafe impl<const SINGLE: bool> TableMemory for Lender<SINGLE> {
    const SINGLE_PAGES: bool = SINGLE;

    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        assert!(SINGLE || pages == CHUNK_PAGES);
        let first = self.take(pages);
        Some((first, Pfn((first.as_ptr().expose_provenance() as u64 >> PAGE_SHIFT) + FIRST)))
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        assert_eq!(self.at(pfn), first);
        self.put(first, pages);
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(((pfn.0 - FIRST) << PAGE_SHIFT) as usize)).unwrap()
    }
}

impl<const SINGLE: bool> Host for Lender<SINGLE> {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn((hva.0 - RAM.0) >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

/// Faults of two vCPUs and lockless walks, during invalidations, new roots, and memory that goes back.
fn churn<F: Format, const SINGLE: bool>() {
    const REGIONS: u64 = 1024;
    let rounds = if cfg!(debug_assertions) { 40 } else { 200 };
    let mut idle = Idle::take().unwrap();
    let vm = &Vm::<F, _>::builder(Lender::<SINGLE>::default()).vcpus(2).build().unwrap();
    vm.memory()
        .commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), REGIONS * TABLE, RAM)))
        .unwrap();
    thread::scope(|scope| {
        for id in 0..2 {
            scope.spawn(move || {
                let (mut idle, mut random) = (Idle::take().unwrap(), Random::new(id.into()));
                let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
                for _ in 0..rounds * 400 {
                    let gfn = random.below(REGIONS * TABLE);
                    touch(&mut vcpu, &mut idle, gfn);
                    let gfn = Gfn(random.below(REGIONS * TABLE));
                    let found = vm.memory().translate(&mut idle, gfn);
                    assert!(found.is_none_or(|found| found.leaf.pfn == Pfn(gfn.0)), "{gfn:?}: {found:?}");
                }
            });
        }
        let mut random = Random::new(7);
        for round in 0..rounds {
            let first = random.below(REGIONS);
            let gfns = Span::new(Gfn(first * TABLE), Gfn(first.midpoint(REGIONS) * TABLE + 1));
            drop(vm.memory().invalidate(gfns, Reason::Unmap).apply(&mut idle).settle());
            match round % 8 {
                0 => vm.zap_all(&mut idle).unwrap(),
                1..4 => vm.collect(&mut idle),
                _ => drop(vm.shrink(&mut idle)),
            }
        }
    });
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
    vm.zap_all(&mut idle).unwrap();
    vm.shrink(&mut idle);
    let (stats, lent) = (vm.stats(), vm.host().0.lock().unwrap());
    assert_eq!(stats.lent_bytes, lent.blocks.values().sum::<usize>() as u64 * PAGE_SIZE, "as it says");
    let roots =
        if SINGLE { F::ROOT_PAGES * PAGE_SIZE as usize..=CHUNK_BYTES } else { CHUNK_BYTES..=CHUNK_BYTES };
    assert!(roots.contains(&(stats.lent_bytes as usize)), "the root's, not {}", stats.lent_bytes);
    assert!(lent.most > 3 * CHUNK_PAGES, "negative control: it had more");
}

#[test]
fn chunks_come_and_go_beside_faults() {
    churn::<Npt4, false>();
}

#[test]
fn single_pages_come_and_go_beside_faults() {
    churn::<Npt4, true>();
}

/// Small tables lie in groups of few pages: their number is no reason to reclaim tables.
#[test]
fn a_few_single_pages_are_lent_and_not_compacted() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Lender::<true>::default()).build().unwrap();
    assert_eq!(vm.stats().lent_bytes, PAGE_SIZE, "the root");
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 40 * TABLE, RAM))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    (0..40).for_each(|region| touch(&mut vcpu, &mut idle, region * TABLE));
    drop(vcpu);
    let lent = vm.stats().lent_bytes / PAGE_SIZE;
    assert!(
        (43..43 + 8 + 43 / 2).contains(&lent),
        "{lent}: 40 tables and three above them, a vCPU's eight, and half as many"
    );
    vm.compact(&mut idle);
    assert_eq!(vm.stats().leaves[0], 40);
}

/// Roots of 2 and of 4 pages.
#[test]
fn roots_of_several_pages_are_made_of_either() {
    churn::<Arm64<40>, false>();
    churn::<Arm64<40>, true>();
    churn::<RiscV<3>, false>();
    churn::<RiscV<3>, true>();
}
