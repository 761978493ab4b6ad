//! Leaves of L2 of 2 MiB: when T, memslot and host allow them, and how changes of these edit them.

use crate::nested::*;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::Word;
use crate::table::formats::{Npt4, X64};
use crate::tries::tries;
use crate::*;
use fastrand::Rng;
use std::collections::BTreeSet;
use std::format;
use std::string::String;
use std::vec::Vec;

const LARGE: u64 = 512;
/// L1's tables are in the first 2 MiB of its memory; then come four pages of 2 MiB.
const DATA: u64 = LARGE;
const PAGES: u64 = 5 * LARGE;
const BASE: Hva = Hva(0x4000_0000);
/// L2 has two pages of 2 MiB, behind two entries of L1's page directory; or a leaf table behind one.
const G2S: u64 = 2 * LARGE;
const RIGHTS: u64 = 6 << 3 | 7;

/// The host: the frame behind each 2 MiB, which is one page, or was split into small pages.
struct Halves {
    words: Vec<AtomicU64>,
    frames: Vec<AtomicU64>,
    whole: Vec<AtomicU64>,
}

impl Halves {
    fn new() -> Self {
        let host = Halves {
            words: (0..8 * 512).map(|_| AtomicU64::new(0)).collect(),
            frames: (0..PAGES).map(|page| AtomicU64::new(0x8_0000 + page)).collect(),
            whole: (0..5).map(|_| AtomicU64::new(1)).collect(),
        };
        for level in 1..3_u64 {
            host.words[(level * 512) as usize].store((level + 1) << 12 | 7, Relaxed);
        }
        host
    }
}

impl Host for Halves {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let page = (hva.0 - BASE.0) >> PAGE_SHIFT;
        let whole = self.whole[(page / LARGE) as usize].load(Relaxed) != 0;
        let level = if whole { Level::M2 } else { Level::K4 };
        Some(HostPage { pfn: Pfn(self.frames[page as usize].load(Relaxed)), level, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.words[((hva.0 - BASE.0) / 8) as usize].load(Relaxed)))
    }
}

struct World<'vm> {
    vm: &'vm Vm<Npt4, Halves>,
    vcpu: Vcpu<'vm, Npt4, Halves>,
    ept: EptTable,
    /// The number of the host's next 2 MiB.
    next: u64,
}

/// L1's page directory is in its frame 3, its leaf tables in frames 4 and 5.
fn entry(nth: u64) -> usize {
    (3 * 512 + nth) as usize
}

fn vm() -> Vm<Npt4, Halves> {
    Vm::<Npt4, _>::builder(Halves::new()).build().unwrap()
}

impl<'vm> World<'vm> {
    fn new(vm: &'vm Vm<Npt4, Halves>, idle: &mut Idle) -> Self {
        let slot = Slot::new(SlotId(0), Gfn(0), PAGES, BASE);
        vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
        let ept = EptTable::new(1 << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap();
        let vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let world = Self { vm, vcpu, ept, next: 0x10_0000 };
        world.maps_large(0, 1);
        world.maps_large(1, 2);
        world
    }

    /// L1 maps 2 MiB of L2 to the page of 2 MiB with this number.
    fn maps_large(&self, nth: u64, page: u64) {
        self.vm.host().words[entry(nth)].store(page * LARGE << 12 | 1 << 7 | RIGHTS, Relaxed);
    }

    /// L1 maps them by a leaf table, to frames of the page with this number, in reverse order.
    fn maps_small(&self, nth: u64, page: u64) {
        for small in 0..LARGE {
            let g1 = page * LARGE + (LARGE - 1 - small);
            self.vm.host().words[((4 + nth) * 512 + small) as usize].store(g1 << 12 | RIGHTS, Relaxed);
        }
        self.vm.host().words[entry(nth)].store((4 + nth) << 12 | 7, Relaxed);
    }

    /// Returns the frame of L1 that T names now.
    fn g1(&self, g2: u64) -> u64 {
        let upper = self.vm.host().words[entry(g2 / LARGE)].load(Relaxed);
        if upper & 1 << 7 != 0 {
            return (upper >> 12 & 0xf_ffff) + g2 % LARGE;
        }
        let table = upper >> 12 & 0xf_ffff;
        self.vm.host().words[(table * 512 + g2 % LARGE) as usize].load(Relaxed) >> 12 & 0xf_ffff
    }

    /// The host moves a small page of a large one, or all of it.
    fn moves(&mut self, idle: &mut Idle, g1: u64, all: bool) {
        let (first, pages) = if all { (g1 / LARGE * LARGE, LARGE) } else { (g1, 1) };
        let hvas = Span::sized(BASE + (first << PAGE_SHIFT), pages << PAGE_SHIFT);
        let _change = self.vm.invalidate(hvas, Reason::Migrate).apply(idle).settle();
        self.next += LARGE;
        for page in first..first + pages {
            self.vm.host().frames[page as usize].store(self.next + page % LARGE, Relaxed);
        }
        self.vm.host().whole[(first / LARGE) as usize].store(u64::from(all), Relaxed);
    }

    fn behind(&self, g1: u64) -> Pfn {
        Pfn(self.vm.host().frames[g1 as usize].load(Relaxed))
    }

    /// An access that may fault. Returns what is mapped then.
    fn touch(&mut self, idle: &mut Idle, g2: u64, access: Access) -> L2Next {
        let mut l2 = self.vcpu.nested(idle, self.ept).unwrap();
        l2.fault(idle, L1Access::new(Gfn(g2).gpa(), access)).unwrap()
    }

    fn frames(&mut self, idle: &mut Idle) -> Vec<Option<Pfn>> {
        let l2 = self.vcpu.nested(idle, self.ept).unwrap();
        (0..G2S).map(|g2| l2.translate(Gfn(g2).gpa()).map(|leaf| leaf.pfn)).collect()
    }

    fn flush(&self, idle: &mut Idle) {
        self.vm.l1_broadcasts(idle, SpaceId(0), Span::new(Gfn(0), Gfn(G2S)), |_: &EptTable| true);
    }

    /// Returns how many pages are mapped; asserts that all map what is behind T now.
    fn mapped(&mut self, idle: &mut Idle) -> usize {
        let frames = self.frames(idle);
        for (g2, pfn) in (0..).zip(&frames) {
            assert!(pfn.is_none_or(|pfn| pfn == self.behind(self.g1(g2))), "at {g2}");
        }
        frames.iter().flatten().count()
    }
}

fn is_mapped(done: L2Next, level: Level) -> bool {
    matches!(done, L2Next::Handled { next: Next::Resume(Resume::Mapped(found)), .. } if found == level)
}

#[test]
fn two_mebibytes_are_mapped_where_all_have_them() {
    let mut idle = Idle::take().unwrap();
    let vm = vm();
    let mut world = World::new(&vm, &mut idle);
    assert!(is_mapped(world.touch(&mut idle, 7, Access::Write), Level::M2));
    assert_eq!(world.mapped(&mut idle), LARGE as usize);
    // A leaf that T still confirms stays, at no cost.
    let before = world.vm.stats().flushes.paid;
    world.flush(&mut idle);
    assert_eq!((world.mapped(&mut idle), world.vm.stats().flushes.paid), (LARGE as usize, before));
    // One small page of it moves, and then another one: only these are zapped, and mapped again as small ones.
    for page in [9, 10] {
        world.moves(&mut idle, DATA + page, false);
        assert_eq!(world.mapped(&mut idle), LARGE as usize - 1);
        assert!(is_mapped(world.touch(&mut idle, page, Access::Write), Level::K4));
    }
    // T still maps it by one page.
    world.flush(&mut idle);
    assert_eq!(world.mapped(&mut idle), LARGE as usize);
    // T has small pages, in another order; the host has a large one.
    world.maps_small(1, 3);
    assert!(is_mapped(world.touch(&mut idle, LARGE, Access::Write), Level::K4));
    assert_eq!(world.mapped(&mut idle), LARGE as usize + 1);
}

#[test]
fn a_large_leaf_goes_whole_where_no_more_table_pages_may_be_used() {
    let mut idle = Idle::take().unwrap();
    let vm = vm();
    let mut world = World::new(&vm, &mut idle);
    assert!(is_mapped(world.touch(&mut idle, 7, Access::Write), Level::M2));
    vm.pool.set_budget(vm.pool.in_use() * PAGE_SIZE);
    world.moves(&mut idle, DATA + 9, false);
    assert_eq!(world.mapped(&mut idle), 0);
}

/// Returns what L2 maps after L1 has made a table of its page of 2 MiB, and has flushed an address in it.
fn parts_after_a_flush() -> usize {
    let mut idle = Idle::take().unwrap();
    let vm = vm();
    let mut world = World::new(&vm, &mut idle);
    assert!(is_mapped(world.touch(&mut idle, 7, Access::Write), Level::M2));
    // Page 0 stays in its place.
    world.maps_small(0, 1);
    vm.host().words[4 * 512].store(DATA << 12 | RIGHTS, Relaxed);
    vm.l1_broadcasts(&mut idle, SpaceId(0), Span::sized(Gfn(9), 1), |_: &EptTable| true);
    world.frames(&mut idle).iter().flatten().count()
}

#[test]
fn a_flush_of_an_address_takes_all_parts_that_t_does_not_say() {
    assert_eq!(parts_after_a_flush(), 1);
}

#[test]
fn a_log_takes_large_leaves_apart() {
    let mut idle = Idle::take().unwrap();
    let vm = vm();
    let mut world = World::new(&vm, &mut idle);
    assert!(is_mapped(world.touch(&mut idle, 7, Access::Write), Level::M2));
    world.vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
    assert!(is_mapped(world.touch(&mut idle, 8, Access::Write), Level::K4));
    let harvest = world.vm.memory().harvest(&mut idle, SlotId(0)).unwrap();
    assert_eq!(harvest.iter().map(|page| page.gfn).collect::<Vec<_>>(), [Gfn(DATA + 8)]);
    harvest.commit();
    assert!(world.frames(&mut idle)[8].is_some());
    // Armed: the next store is logged again.
    assert!(is_mapped(world.touch(&mut idle, 8, Access::Write), Level::K4));
    assert!(world.vm.memory().is_dirty(Gfn(DATA + 8)));
}

#[test]
fn frames_whose_stores_are_watched_are_mapped_small() {
    struct Deaf;
    impl crate::writes::WriteListener for Deaf {}
    let mut idle = Idle::take().unwrap();
    let vm = vm();
    let mut world = World::new(&vm, &mut idle);
    assert!(is_mapped(world.touch(&mut idle, 7, Access::Write), Level::M2));
    let watch = Span::sized(Gfn(DATA + 3), 1);
    let _watch = world.vm.memory().track_writes(&mut idle, watch, std::sync::Arc::new(Deaf)).unwrap();
    let done = world.touch(&mut idle, 3, Access::Write);
    assert!(matches!(done, L2Next::Handled { next: Next::Emulate(Emulate::Tracked), .. }), "{done:?}");
    // Frames that are not watched have been split off.
    let parts = world.frames(&mut idle);
    assert!(parts[7].is_some() && parts[3].is_none());
}

/// A guest without two stages has a page of 2 MiB, the host moves a small part, and then the guest unmaps the page.
/// Returns what is left.
fn parts_after_invlpg() -> usize {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<X64, _>::builder(Halves::new()).without_two_stages().build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, BASE))).unwrap();
    // A and D are set: this host exchanges no words.
    for (level, link) in [(1, 2), (2, 3)] {
        vm.host().words[level * 512].store(link << 12 | 0x27, Relaxed);
    }
    vm.host().words[entry(0)].store(DATA << 12 | 0xe7, Relaxed);
    let registers = GuestRegisters {
        cr0: 1 << 31,
        cr3: 1 << 12,
        cr4: 1 << 5,
        efer: 1 << 10,
        ..GuestRegisters::default()
    };
    let paging = GuestPaging { physical_bits: 46, large_1g: false, reserves_global: false };
    let table = GuestTable::new(&registers, paging, Privilege::Supervisor).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let load = |page: u64| table.access(Gva(page << PAGE_SHIFT), Access::Read).unwrap();
    let there = |idle: &mut Idle, vcpu: &mut Vcpu<'_, X64, Halves>| {
        let guest = vcpu.guest_paging(idle, table).unwrap();
        (0..LARGE).filter(|&page| guest.translate(load(page).gpa).is_some()).count()
    };
    let done = vcpu.guest_paging(&mut idle, table).unwrap().fault(&mut idle, load(7)).unwrap();
    assert!(is_mapped(done, Level::M2));
    let page = Span::sized(BASE + (DATA + 9 << PAGE_SHIFT), PAGE_SIZE);
    drop(vm.invalidate(page, Reason::Migrate).apply(&mut idle).settle());
    assert_eq!(there(&mut idle, &mut vcpu), LARGE as usize - 1);
    vm.host().words[entry(0)].store(0, Relaxed);
    vcpu.guest_flushes(GuestFlush::Address(Gva(9 << PAGE_SHIFT)));
    there(&mut idle, &mut vcpu)
}

#[test]
fn invlpg_takes_all_parts_of_a_page_that_was_split() {
    assert_eq!(parts_after_invlpg(), 0);
}

/// After any sequence of operations, L2 maps nothing that the host took back, and after a flush nothing that T does not
/// map.
fn world(seed: u64, steps: u32) -> Result<BTreeSet<u8>, String> {
    let mut idle = Idle::take().unwrap();
    let vm = vm();
    let (mut rng, mut world) = (Rng::with_seed(seed), World::new(&vm, &mut idle));
    let mut levels = BTreeSet::new();
    // T's values since the last flush.
    let mut said: Vec<BTreeSet<u64>> = (0..G2S).map(|g2| [world.g1(g2)].into()).collect();
    for step in 0..steps {
        let (g2, nth, page) = (rng.u64(..G2S), rng.u64(..2), rng.u64(1..5));
        match rng.u8(..12) {
            0..=4 => {
                let access = if rng.bool() { Access::Write } else { Access::Fetch };
                if let L2Next::Handled { next: Next::Resume(Resume::Mapped(level)), .. } =
                    world.touch(&mut idle, g2, access)
                {
                    levels.insert(level.number());
                }
            }
            5 | 6 => world.maps_large(nth, page),
            7 => world.maps_small(nth, page),
            8 | 9 => {
                world.flush(&mut idle);
                said = (0..G2S).map(|g2| [world.g1(g2)].into()).collect();
            }
            what => world.moves(&mut idle, page * LARGE + rng.u64(..LARGE), what == 10),
        }
        (0..).zip(&mut said).for_each(|(g2, said)| said.extend([world.g1(g2)]));
        for (g2, pfn) in world.frames(&mut idle).into_iter().enumerate() {
            let right = |pfn| said[g2].iter().any(|&g1| world.behind(g1) == pfn);
            if pfn.is_some_and(|pfn| !right(pfn)) {
                return Err(format!("step {step} of seed {seed}: {pfn:x?} at {g2}, T was {:?}", said[g2]));
            }
        }
    }
    drop(world);
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
    Ok(levels)
}

#[test]
fn pages_of_both_sizes_are_what_t_and_the_host_say() {
    let levels: BTreeSet<u8> =
        (0..tries(16)).flat_map(|seed| world(seed, 60).unwrap_or_else(|wrong| panic!("{wrong}"))).collect();
    assert_eq!(levels, [1, 2].into());
}
