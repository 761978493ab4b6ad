//! Leaves of L2 of 1 GiB: when T, memslot, host and format allow them, and how a change of a part of one edits them.

use crate::nested::*;
use crate::sync::prim::{AtomicBool, AtomicU64, Relaxed};
use crate::table::Word;
use crate::table::formats::{Arm64L48, Ept4, Ept4NoAd, Npt4, Npt5, Pae, Sv48x4};
use crate::tries::tries;
use crate::*;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::String;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::vec::Vec;

const LARGE: u64 = 512;
const GIB: u64 = LARGE * LARGE;
/// L1's tables are in its first frames; its memory is two pages of 1 GiB, from the second GiB on.
const TABLES: Hva = Hva(0x1000_0000);
const BASE: Hva = Hva(0x40_0000_0000);
const FRAMES: u64 = 1 << 26;
const RIGHTS: u64 = 6 << 3 | 7;

/// Signals the other thread, and waits for its answer.
type Moment = (Sender<()>, Receiver<()>);

/// A host with pages of 1 GiB, except around small pages that have moved.
struct Whole {
    words: Vec<AtomicU64>,
    moved: Mutex<BTreeMap<u64, Pfn>>,
    /// Once, after the host has looked, and before it answers.
    moment: Mutex<Option<Moment>>,
    /// Whether it sleeps before each answer.
    sleeps: AtomicBool,
}

impl Whole {
    fn new() -> Self {
        let host = Self {
            words: (0..4 * LARGE).map(|_| AtomicU64::new(0)).collect(),
            moved: Mutex::default(),
            moment: Mutex::default(),
            sleeps: AtomicBool::new(false),
        };
        host.words[LARGE as usize].store(2 << 12 | 7, Relaxed);
        host.maps(1);
        host
    }

    /// L1 maps its page of 1 GiB with this number, by one entry.
    fn maps(&self, page: u64) {
        self.words[2 * LARGE as usize].store((page * GIB) << 12 | 1 << 7 | RIGHTS, Relaxed);
    }

    /// L1 maps it by 512 entries: the first 2 MiB as before, the others in reverse order.
    fn maps_in_parts(&self, page: u64) {
        for nth in 0..LARGE {
            let g1 = page * GIB + (LARGE - nth) % LARGE * LARGE;
            self.words[(3 * LARGE + nth) as usize].store(g1 << 12 | 1 << 7 | RIGHTS, Relaxed);
        }
        self.words[2 * LARGE as usize].store(3 << 12 | 7, Relaxed);
    }

    /// Returns the frame of L1 that T names now.
    fn g1(&self, g2: u64) -> u64 {
        let upper = self.words[2 * LARGE as usize].load(Relaxed);
        if upper & 1 << 7 != 0 {
            return (upper >> 12 & 0xf_ffff) + g2;
        }
        let entry = self.words[(3 * LARGE + g2 / LARGE) as usize].load(Relaxed);
        (entry >> 12 & 0xf_ffff) + g2 % LARGE
    }

    fn behind(&self, g1: u64) -> HostPage {
        let moved = self.moved.lock().unwrap();
        let any = |pages: u64| moved.range(g1 / pages * pages..(g1 / pages + 1) * pages).next().is_some();
        let level = if any(LARGE) {
            Level::K4
        } else if any(GIB) {
            Level::M2
        } else {
            Level::G1
        };
        let pfn = moved.get(&g1).copied().unwrap_or(Pfn(FRAMES + g1));
        HostPage { pfn, level, ..HostPage::PLAIN }
    }
}

impl Whole {
    fn answer(&self, hva: Hva) -> HostPage {
        let page = self.behind(GIB + (hva.0 - BASE.0 >> PAGE_SHIFT));
        if let Some((go, done)) = self.moment.lock().unwrap().take() {
            go.send(()).unwrap();
            done.recv().unwrap();
        }
        page
    }
}

impl Host for Whole {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        (!self.sleeps.load(Relaxed)).then(|| self.answer(hva))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(self.answer(hva))
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.words[((hva.0 - TABLES.0) / 8) as usize].load(Relaxed)))
    }
}

fn vm<F: Format>(idle: &mut Idle) -> Vm<F, Whole> {
    let vm = Vm::<F, _>::builder(Whole::new()).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 4, TABLES))).unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(1), Gfn(GIB), 2 * GIB, BASE))).unwrap();
    vm
}

fn ept() -> EptTable {
    let offered = EptFeatures { large_1g: true, ..EptFeatures::of(46) };
    EptTable::new(1 << 12 | 3 << 3 | 6, offered).unwrap()
}

/// An access that faults. Returns the size of the page that is then mapped; 0 if none is.
fn touch<F: Format>(vcpu: &mut Vcpu<'_, F, Whole>, idle: &mut Idle, g2: u64) -> u8 {
    let mut l2 = vcpu.nested(idle, ept()).unwrap();
    match l2.fault(idle, L1Access::new(Gfn(g2).gpa(), Access::Write)).unwrap() {
        L2Next::Handled { next: Next::Resume(Resume::Mapped(level)), .. } => level.number(),
        _ => 0,
    }
}

fn frame<F: Format>(vcpu: &mut Vcpu<'_, F, Whole>, idle: &mut Idle, g2: u64) -> Option<Pfn> {
    vcpu.nested(idle, ept()).unwrap().translate(Gfn(g2).gpa()).map(|leaf| leaf.pfn)
}

fn flushes<F: Format>(vm: &Vm<F, Whole>, idle: &mut Idle) {
    vm.l1_broadcasts(idle, SpaceId(0), Span::new(Gfn(0), Gfn(GIB)), |_: &EptTable| true);
}

/// Moves a small page of L1's to another frame; or, without one, its whole GiB back to its first place.
fn moves<F: Format>(vm: &Vm<F, Whole>, idle: &mut Idle, g1: u64, to: Option<Pfn>) {
    let (first, pages) = if to.is_some() { (g1, 1) } else { (g1 / GIB * GIB, GIB) };
    let hvas = Span::sized(BASE + (first - GIB << PAGE_SHIFT), pages << PAGE_SHIFT);
    let _change = vm.invalidate(hvas, Reason::Migrate).apply(idle).settle();
    let mut moved = vm.host().moved.lock().unwrap();
    match to {
        Some(pfn) => drop(moved.insert(g1, pfn)),
        None => moved.retain(|page, _| page / GIB != g1 / GIB),
    }
}

fn mapped_by_one<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<F>(&mut idle);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let largest = F::MAX_LEAF.number();
    assert_eq!(touch(&mut vcpu, &mut idle, 7), largest);
    if largest < 3 {
        assert_eq!(touch(&mut vcpu, &mut idle, GIB - 1), largest);
        return;
    }
    assert_eq!(frame(&mut vcpu, &mut idle, GIB - 1), Some(Pfn(FRAMES + 2 * GIB - 1)));
    assert_eq!(touch(&mut vcpu, &mut idle, LARGE + 1), 0, "it is there");
    // A leaf that T still confirms stays, at no cost.
    let before = vm.stats().flushes.paid;
    flushes(&vm, &mut idle);
    assert_eq!((touch(&mut vcpu, &mut idle, 9), vm.stats().flushes.paid), (0, before));
    // A small page moves: only that page is zapped.
    moves(&vm, &mut idle, GIB + 5 * LARGE + 1, Some(Pfn(99)));
    let there = |idle: &mut Idle, vcpu: &mut Vcpu<'_, F, Whole>| {
        [7, 5 * LARGE, 5 * LARGE + 2, 6 * LARGE, GIB - 1].map(|g2| frame(vcpu, idle, g2).is_some())
    };
    assert_eq!(there(&mut idle, &mut vcpu), [true; 5]);
    assert_eq!(frame(&mut vcpu, &mut idle, 5 * LARGE + 1), None);
    assert_eq!(touch(&mut vcpu, &mut idle, 5 * LARGE + 1), 1);
    assert_eq!(frame(&mut vcpu, &mut idle, 5 * LARGE + 1), Some(Pfn(99)));
    // T still maps it by one page: the parts stay.
    flushes(&vm, &mut idle);
    assert_eq!(there(&mut idle, &mut vcpu), [true; 5]);
    // Its neighbour, of which no fault has made a small leaf, and a large part.
    moves(&vm, &mut idle, GIB + 5 * LARGE + 2, Some(Pfn(100)));
    moves(&vm, &mut idle, GIB + 6 * LARGE, Some(Pfn(101)));
    assert_eq!(there(&mut idle, &mut vcpu), [true, true, false, false, true]);
    assert_eq!(frame(&mut vcpu, &mut idle, 6 * LARGE + 1), Some(Pfn(FRAMES + GIB + 6 * LARGE + 1)));
    // L2's tables are reclaimed, and then no small leaf is left. Links without an Accessed bit stay above leaf tables.
    moves(&vm, &mut idle, GIB, None);
    assert!(vm.take_back_from_a_shadow(&mut idle, true));
    let largest = if F::touch_link(Level::G1) == 0 { 2 } else { 3 };
    assert_eq!(touch(&mut vcpu, &mut idle, 3 * LARGE), largest);
    // T maps parts now, of which two are unchanged.
    assert_eq!(touch(&mut vcpu, &mut idle, 7), if largest == 2 { 2 } else { 0 });
    vm.host().maps_in_parts(1);
    flushes(&vm, &mut idle);
    let same = [0, LARGE / 2].map(|part| part * LARGE + 7);
    assert_eq!(same.map(|g2| frame(&mut vcpu, &mut idle, g2).is_some()), [true, largest == 3]);
    assert_eq!([LARGE, GIB - 1].map(|g2| frame(&mut vcpu, &mut idle, g2)), [None; 2]);
    assert_eq!(touch(&mut vcpu, &mut idle, LARGE), 2);
    // A log needs small pages.
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SlotId(1), true)).unwrap();
    assert_eq!(touch(&mut vcpu, &mut idle, 8), 1);
    drop(vcpu);
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
}

#[test]
fn one_gibibyte_is_mapped_where_all_have_it() {
    mapped_by_one::<Npt4>();
    mapped_by_one::<Npt5>();
    mapped_by_one::<Ept4>();
    mapped_by_one::<Ept4NoAd>();
    mapped_by_one::<Arm64L48>();
    mapped_by_one::<Sv48x4>();
    mapped_by_one::<Pae>();
}

/// An aging pass asks a leaf of 1 GiB for each 2 MiB of it; the first answer is the last.
#[test]
fn frames_that_l2_accessed_by_a_gibibyte_leaf_are_young() {
    fn told<F: Format>() {
        let mut idle = Idle::take().unwrap();
        let vm = vm::<F>(&mut idle);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        assert_eq!(touch(&mut vcpu, &mut idle, 7), 3);
        let ages = |idle: &mut Idle| {
            let (mut young, all) = (0, Span::new(Gfn(GIB), Gfn(2 * GIB)));
            vm.memory().lockless(idle).age(all, |seen| young += seen.pages().count());
            young
        };
        assert!(ages(&mut idle) > 0);
        assert_eq!(ages(&mut idle), 0);
        if !F::HARDWARE_AD {
            assert_eq!((touch(&mut vcpu, &mut idle, 7), ages(&mut idle) > 0), (3, true), "it is given back");
        }
    }
    told::<Ept4>();
    told::<Ept4NoAd>();
}

/// Frames of L2 that are checked: in the first, the second, a middle, and the last 2 MiB.
fn samples() -> Vec<u64> {
    [0, 1, 256, 511].into_iter().flat_map(|large| [0, 1, 511].map(|small| large * LARGE + small)).collect()
}

/// After any sequence of operations, L2 maps nothing that the host took back, and after a flush nothing that T does not
/// map.
fn world<F: Format>(seed: u64, steps: u32) -> Result<BTreeSet<u8>, String> {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<F>(&mut idle);
    let (mut rng, mut vcpu) = (Rng::with_seed(seed), vm.vcpu(VcpuId(0)).unwrap());
    let (samples, mut levels) = (samples(), BTreeSet::new());
    let now = || samples.iter().map(|&g2| vm.host().g1(g2)).collect::<Vec<_>>();
    // T's values since the last flush.
    let mut said: Vec<BTreeSet<u64>> = now().into_iter().map(|g1| [g1].into()).collect();
    for step in 0..steps {
        let (g2, page) = (samples[rng.usize(..samples.len())], rng.u64(1..3));
        match rng.u8(..16) {
            0..=5 => drop(levels.insert(touch(&mut vcpu, &mut idle, g2))),
            6 | 7 => vm.host().maps(page),
            8 => vm.host().maps_in_parts(page),
            9 | 10 => {
                flushes(&vm, &mut idle);
                said = now().into_iter().map(|g1| [g1].into()).collect();
            }
            11 => moves(&vm, &mut idle, page * GIB + g2, Some(Pfn(rng.u64(1..1 << 20)))),
            12 | 13 => moves(&vm, &mut idle, page * GIB, None),
            _ => drop(vm.take_back_from_a_shadow(&mut idle, true)),
        }
        now().into_iter().zip(&mut said).for_each(|(g1, said)| said.extend([g1]));
        for (&g2, said) in samples.iter().zip(&said) {
            let pfn = frame(&mut vcpu, &mut idle, g2);
            let right = |pfn| said.iter().any(|&g1| vm.host().behind(g1).pfn == pfn);
            if pfn.is_some_and(|pfn| !right(pfn)) {
                return Err(format!("step {step} of seed {seed}: {pfn:x?} at {g2:x}, T was {said:x?}"));
            }
        }
    }
    Ok(levels)
}

#[test]
fn pages_of_all_sizes_are_what_t_and_the_host_say() {
    let of = |seed| {
        let found = if seed % 2 == 0 { world::<Npt4>(seed, 80) } else { world::<Sv48x4>(seed, 80) };
        found.unwrap_or_else(|wrong| panic!("{wrong}"))
    };
    assert_eq!((0..tries(24)).flat_map(of).collect::<BTreeSet<u8>>(), [0, 1, 2, 3].into());
}

/// A small page moves during a fault elsewhere in the same GiB. Returns the size of the mapped page, and what L2 maps
/// at the moved page.
fn elsewhere() -> (u8, Option<Pfn>) {
    const AWAY: u64 = 300 * LARGE;
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Npt4>(&mut idle);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let ((go, goes), (done, is_done)) = (channel(), channel());
    *vm.host().moment.lock().unwrap() = Some((go, is_done));
    std::thread::scope(|scope| {
        let vm = &vm;
        scope.spawn(move || {
            goes.recv().unwrap();
            moves(vm, &mut Idle::take().unwrap(), GIB + AWAY, Some(Pfn(99)));
            done.send(()).unwrap();
        });
        let level = touch(&mut vcpu, &mut idle, 7);
        (level, frame(&mut vcpu, &mut idle, AWAY))
    })
}

#[test]
fn a_page_that_moved_is_not_mapped_by_the_gibibyte_around_it() {
    assert_eq!(elsewhere(), (2, None));
}

/// While a host that sleeps is asked for page 7, the move of page 5 ends, which had begun before. Returns what L2 maps at
/// page 5.
fn beside_a_move() -> Option<Pfn> {
    const MOVES: u64 = 5;
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Npt4>(&mut idle);
    // The host has no page of 1 GiB, since another one has moved.
    moves(&vm, &mut idle, GIB + 300 * LARGE, Some(Pfn(98)));
    let change = vm.invalidate(Span::sized(BASE + (MOVES << PAGE_SHIFT), 1), Reason::Migrate);
    vm.host().sleeps.store(true, Relaxed);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let ((go, goes), (done, is_done)) = (channel(), channel());
    *vm.host().moment.lock().unwrap() = Some((go, is_done));
    std::thread::scope(|scope| {
        let host = vm.host();
        scope.spawn(move || {
            goes.recv().unwrap();
            host.moved.lock().unwrap().insert(GIB + MOVES, Pfn(99));
            drop(change);
            done.send(()).unwrap();
        });
        touch(&mut vcpu, &mut idle, 7);
    });
    frame(&mut vcpu, &mut idle, MOVES)
}

#[test]
fn an_answer_beside_a_change_of_a_part_is_about_a_part() {
    assert_eq!(beside_a_move(), None);
}

#[test]
fn a_page_of_which_a_part_changes_is_mapped_small() {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Npt4>(&mut idle);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let change = vm.invalidate(Span::sized(BASE + (5 << PAGE_SHIFT), 1), Reason::Migrate);
    assert_eq!(touch(&mut vcpu, &mut idle, 7), 1);
    drop(change);
    assert_eq!(touch(&mut vcpu, &mut idle, 7 + LARGE), 2, "the table of the GiB is linked");
}
