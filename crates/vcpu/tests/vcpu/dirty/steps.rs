//! The same without a race, step by step: one vCPU with a TLB, and one log.
//!
//! A change that removes a leaf must keep the trace of its store. A change that arms a page must reach the TLB. Each
//! test has a negative control with the mistake that it prevents, which is found every time.

use super::world::WORDS;
use slat::table::formats::{Ept4, Ept4NoAd, Npt4};
use slat::*;
use slat_mm::{
    AddressSpace, Advice, Arena, Backing, Balancer, HostView, Ksm, LruSettings, Place, Prot, Settings, Swap,
};
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::Arc;

const HVA: Hva = Hva(1 << 40);
const SLOT: SlotId = SlotId(1);
const PAGES: u64 = 2 * 512;

struct Machine<F: Format> {
    ksm: Arc<Ksm>,
    space: Arc<AddressSpace>,
    vm: Arc<Vm<F, HostView>>,
}

impl<F: Format> Machine<F> {
    fn new(idle: &mut Idle, log: DirtyLog, thp: bool, sabotage: bool) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().memory(1 << 20).build(&arena).unwrap();
        let space =
            AddressSpace::builder(&arena).thp(thp).swap(&swap).lru(LruSettings::default()).build().unwrap();
        let memory = PAGES * PAGE_SIZE;
        space.mmap(Place::Fixed(HVA), memory, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let ksm = Ksm::builder(&arena).build().unwrap();
        ksm.add(&space).unwrap();
        // A host that says that a flush was broadcast, and does none.
        let host = HostView::new(&space).with_broadcast(move |_| sabotage);
        let vm = Arc::new(Vm::<F, _>::builder(host).vcpus(1).dirty_log(log).build().unwrap());
        space.register(&vm);
        vm.memory().commit(idle, |tx| tx.create(Slot::new(SLOT, Gfn(0), PAGES, HVA))).unwrap();
        Self { ksm, space, vm }
    }

    fn cpu(&self) -> Cpu<'_, F, HostView> {
        let arena = self.space.arena();
        // SAFETY: the arena's mapping, which outlives the vCPU; frame numbers start after a huge page.
        let window = unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) };
        Cpu::new(self.vm.vcpu(VcpuId(0)).unwrap(), window)
    }

    fn log(&self, idle: &mut Idle, on: bool) {
        self.vm.memory().commit(idle, |tx| tx.set_log_dirty(SLOT, on)).unwrap();
    }

    /// Takes and commits a harvest. Returns its pages.
    fn harvest(&self, idle: &mut Idle) -> Vec<u64> {
        let harvest = self.vm.memory().harvest(idle, SLOT).unwrap();
        let pages = harvest.iter().map(|page| page.page).collect();
        harvest.commit();
        pages
    }

    /// The word in memory at `gfn` now.
    fn word(&self, idle: &mut Idle, gfn: u64) -> u64 {
        let mut bytes = [0; 8];
        self.space.read(idle, HVA + gfn * PAGE_SIZE, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// One access to the first word of a page, or across the end of a page.
enum Op {
    Load(u64),
    Store(u64, u64),
    /// Stores across the end of this page.
    StoreAcross(u64),
}

impl Program for Op {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        match *self {
            Self::Load(gfn) => core.load(Gfn(gfn).gpa(), &mut [0; 8])?,
            Self::Store(gfn, value) => core.store(Gfn(gfn).gpa(), &value.to_le_bytes())?,
            Self::StoreAcross(gfn) => core.store(Gfn(gfn).gpa() + (WORDS - 1) * 8, &[1; 16])?,
        }
        Ok(Step::Stop)
    }
}

fn run_op<F: Format>(cpu: &mut Cpu<'_, F, HostView>, idle: &mut Idle, mut what: Op) {
    assert_eq!(cpu.run(idle, &mut what), Exit::Stopped);
}

const TRACKS: [Track; 2] = [Track::Writes, Track::DirtyBits];

/// A change that removes or alters the leaf of page 9.
type Change<F> = (&'static str, fn(&Machine<F>, &mut Idle));

fn invalidate<F: Format>(machine: &Machine<F>, idle: &mut Idle, why: Reason) {
    drop(machine.vm.invalidate(Span::sized(HVA + 9 * PAGE_SIZE, PAGE_SIZE), why).apply(idle).settle());
}

fn changes<F: Format>() -> Vec<Change<F>> {
    vec![
        ("unmap", |machine, idle| invalidate(machine, idle, Reason::Unmap)),
        ("clear", |machine, idle| invalidate(machine, idle, Reason::Clear)),
        ("migrate", |machine, idle| invalidate(machine, idle, Reason::Migrate)),
        ("protect", |machine, idle| invalidate(machine, idle, Reason::Protect)),
        ("write-protect", |machine, idle| invalidate(machine, idle, Reason::WriteProtect)),
        ("soft-dirty", |machine, idle| invalidate(machine, idle, Reason::SoftDirty)),
        ("exit of all", |machine, idle| {
            drop(
                machine.vm.invalidate(Span::sized(HVA, PAGES * PAGE_SIZE), Reason::Exit).apply(idle).settle(),
            );
        }),
        ("by frames", |machine, idle| {
            drop(
                machine
                    .vm
                    .memory()
                    .invalidate(Span::new(Gfn(9), Gfn(10)), Reason::Unmap)
                    .apply(idle)
                    .settle(),
            );
        }),
        ("reclaim, told page by page", |machine, idle| {
            let hvas = Span::sized(HVA + 9 * PAGE_SIZE, PAGE_SIZE);
            machine.vm.invalidate(hvas, Reason::Reclaim).changed(idle, hvas, None).settle();
        }),
        ("a page that moves", |machine, idle| {
            assert!(machine.space.migrate(idle, Span::sized(HVA, 16 * PAGE_SIZE)).unwrap() > 0);
        }),
        ("a share, and the end of it", |machine, idle| {
            let snapshot = machine.space.fork(idle).unwrap();
            // The host's own store breaks the share: this address space now has another frame.
            let mut byte = [0];
            machine.space.read(idle, HVA + 9 * PAGE_SIZE, &mut byte).unwrap();
            machine.space.write(idle, HVA + 9 * PAGE_SIZE, &byte).unwrap();
            drop(snapshot);
        }),
        ("a merge", |machine, idle| {
            let (same, memory) = (HVA + 20 * PAGE_SIZE, Span::sized(HVA, 32 * PAGE_SIZE));
            let mut page = [0; PAGE_SIZE as usize];
            machine.space.read(idle, HVA + 9 * PAGE_SIZE, &mut page).unwrap();
            machine.space.write(idle, same, &page).unwrap();
            machine.space.madvise(idle, memory, Advice::Mergeable).unwrap();
            (0..2).for_each(|_| _ = machine.ksm.scan(idle, u64::MAX));
            let frame = |at| machine.space.lookup(at, Access::Read).unwrap().pfn;
            assert_eq!(frame(same), frame(HVA + 9 * PAGE_SIZE));
        }),
        ("swap", |machine, idle| {
            machine.space.pageout(idle, Span::sized(HVA + 9 * PAGE_SIZE, PAGE_SIZE)).unwrap();
            assert_eq!(machine.vm.memory().translate(idle, Gfn(9)), None);
        }),
        ("a look who uses it", |machine, idle| {
            Balancer::new(&machine.space, Settings::default()).scan(idle, 1 << 30).unwrap();
        }),
        ("read-only for a moment", |machine, idle| {
            for prot in [Prot::Read, Prot::ReadWrite] {
                machine.space.mprotect(idle, Span::sized(HVA, 16 * PAGE_SIZE), prot).unwrap();
            }
        }),
        ("a look what is written", |machine, idle| {
            machine.space.clear_soft_dirty(idle, Span::sized(HVA, 16 * PAGE_SIZE)).unwrap();
        }),
        ("zap all", |machine, idle| machine.vm.zap_all(idle).unwrap()),
        ("aging", |machine, idle| {
            machine.vm.memory().lockless(idle).age(Span::new(Gfn(0), Gfn(PAGES)), |_| {});
            SecondaryMmu::young(&*machine.vm, idle, Span::sized(HVA, 16 * PAGE_SIZE), Young::ClearAndFlush);
        }),
        ("write protection by the VMM", |machine, idle| {
            machine.vm.memory().write_protect(idle, Span::new(Gfn(0), Gfn(16))).settle();
        }),
        ("split and recover", |machine, idle| {
            machine.vm.memory().split(idle, Span::new(Gfn(0), Gfn(512)), Level::K4).unwrap();
            machine.vm.memory().recover(idle, Span::new(Gfn(0), Gfn(512)));
        }),
        ("tables taken back", |machine, idle| {
            machine.vm.set_table_budget(idle, 0);
            machine.vm.set_table_budget(idle, u64::MAX);
            machine.vm.collect(idle);
        }),
        ("a move and back", |machine, idle| {
            for to in [Gfn(0x8000), Gfn(0)] {
                machine.vm.memory().commit(idle, |tx| tx.move_to(SLOT, to).map(drop)).unwrap();
            }
        }),
    ]
}

/// A store is told once, whatever happens to its leaf before or after. The next store is told again.
fn each_store_is_told_once<F: Format>() {
    for track in TRACKS {
        for (thp, splitting) in [(false, Splitting::Eager), (true, Splitting::Eager), (true, Splitting::Lazy)]
        {
            for (name, change) in changes::<F>() {
                let mut idle = Idle::take().unwrap();
                let log = DirtyLog::bitmap().track(track).splitting(splitting);
                let machine = Machine::<F>::new(&mut idle, log, thp, false);
                let case = format!("{} {track:?}, huge pages {thp} {splitting:?}, {name}", F::NAME);
                let mut cpu = machine.cpu();
                // The page's table also has other pages, which must not be told.
                for gfn in 0..16 {
                    run_op(&mut cpu, &mut idle, Op::Load(gfn));
                }
                machine.log(&mut idle, true);
                assert_eq!(machine.harvest(&mut idle), [], "{case}: no store yet");
                run_op(&mut cpu, &mut idle, Op::Load(9));
                change(&machine, &mut idle);
                assert_eq!(machine.harvest(&mut idle), [], "{case}: still no store");
                for value in 1..4 {
                    run_op(&mut cpu, &mut idle, Op::Store(9, value));
                    if value < 3 {
                        change(&machine, &mut idle);
                    }
                    assert_eq!(machine.harvest(&mut idle), [9], "{case}: store {value}");
                    assert_eq!(machine.word(&mut idle, 9), value, "{case}");
                    change(&machine, &mut idle);
                    assert_eq!(machine.harvest(&mut idle), [], "{case}: told already");
                }
                run_op(&mut cpu, &mut idle, Op::StoreAcross(8));
                change(&machine, &mut idle);
                assert_eq!(machine.harvest(&mut idle), [8, 9], "{case}: a store to two pages");
            }
        }
    }
}

#[test]
fn a_store_is_told_once_whatever_happens_to_its_leaf() {
    each_store_is_told_once::<Ept4>();
    each_store_is_told_once::<Npt4>();
    each_store_is_told_once::<Ept4NoAd>();
}

const RING: u8 = 3;

/// Takes page 9's store from the log in one of the ways.
fn taken<F: Format>(machine: &Machine<F>, idle: &mut Idle, way: u8) -> Vec<u64> {
    let slots = machine.vm.memory();
    let pages = |harvest: Harvest<'_, F, HostView>| {
        let pages = harvest.iter().map(|page| page.page).collect();
        harvest.commit();
        pages
    };
    match way {
        0 => pages(slots.harvest(idle, SLOT).unwrap()),
        1 => pages(slots.harvest_all(idle).unwrap()),
        RING => pages(machine.vm.harvest_ring(idle, VcpuId(0)).unwrap()),
        _ => {
            let mut bits = [0; (PAGES / 64) as usize];
            let set = slots.dirty_bits(idle, SLOT, &mut bits).unwrap();
            // A part, with other bits set in the request that are not dirty.
            assert_eq!(slots.clear_dirty(idle, SLOT, 0, 64, &[u64::MAX]), Ok(set));
            (0..64).filter(|page| bits[0] >> page & 1 != 0).collect()
        }
    }
}

/// The vCPU stores, the log is taken, the vCPU stores again through its TLB, and the log is taken again.
/// Returns the words of the shadow and of memory.
fn stored_twice<F: Format>(track: Track, way: u8, sabotage: bool) -> (u64, u64) {
    let mut idle = Idle::take().unwrap();
    let log = if way == RING { DirtyLog::ring(RingSize::new(4096).unwrap()) } else { DirtyLog::bitmap() };
    let machine = Machine::<F>::new(&mut idle, log.track(track), false, sabotage);
    let mut cpu = machine.cpu();
    machine.log(&mut idle, true);
    let mut shadow = 0;
    for value in [1, 2] {
        run_op(&mut cpu, &mut idle, Op::Store(9, value));
        let told = taken(&machine, &mut idle, way);
        if !told.is_empty() {
            assert_eq!(told, [9]);
            shadow = machine.word(&mut idle, 9);
        }
    }
    (shadow, machine.word(&mut idle, 9))
}

#[test]
fn a_store_through_the_tlb_is_told_after_the_page_was_armed() {
    for track in TRACKS {
        for way in 0..=RING {
            assert_eq!(stored_twice::<Ept4>(track, way, false), (2, 2), "{track:?} {way}");
            assert_eq!(stored_twice::<Npt4>(track, way, false), (2, 2), "{track:?} {way}");
            assert_eq!(stored_twice::<Ept4NoAd>(track, way, false), (2, 2), "{track:?} {way}");
        }
    }
}

#[test]
fn negative_control_without_the_flush_the_second_store_is_lost() {
    for track in TRACKS {
        for way in 0..=RING {
            assert_eq!(stored_twice::<Ept4>(track, way, true), (1, 2), "{track:?} {way}");
            assert_eq!(stored_twice::<Npt4>(track, way, true), (1, 2), "{track:?} {way}");
            assert_eq!(stored_twice::<Ept4NoAd>(track, way, true), (1, 2), "{track:?} {way}");
        }
    }
}

/// The end of a harvest.
#[derive(Clone, Copy)]
enum End {
    Commit,
    GiveBack,
    Drop,
}

/// The pages that the log reports after a failed copy. The end of the harvest decides whether the shadow ever gets the
/// store.
fn after_a_failed_copy(end: End) -> Vec<u64> {
    let mut idle = Idle::take().unwrap();
    let machine = Machine::<Npt4>::new(&mut idle, DirtyLog::bitmap(), false, false);
    let mut cpu = machine.cpu();
    machine.log(&mut idle, true);
    run_op(&mut cpu, &mut idle, Op::Store(70, 1));
    let harvest = machine.vm.memory().harvest(&mut idle, SLOT).unwrap();
    assert_eq!(harvest.pages(), 1);
    run_op(&mut cpu, &mut idle, Op::Store(71, 1));
    match end {
        End::Commit => harvest.commit(),
        End::GiveBack => harvest.give_back(),
        End::Drop => drop(harvest),
    }
    machine.harvest(&mut idle)
}

#[test]
fn a_harvest_that_was_not_copied_is_told_again() {
    assert_eq!(after_a_failed_copy(End::GiveBack), [70, 71]);
    assert_eq!(after_a_failed_copy(End::Drop), [70, 71]);
}

#[test]
fn negative_control_a_committed_harvest_is_not_told_again() {
    assert_eq!(after_a_failed_copy(End::Commit), [71]);
}

/// The page was writable in a TLB before the log began.
#[test]
fn the_first_store_after_a_log_has_begun_is_told() {
    for track in TRACKS {
        for thp in [false, true] {
            for splitting in [Splitting::Eager, Splitting::Lazy] {
                let mut idle = Idle::take().unwrap();
                let log = DirtyLog::bitmap().track(track).splitting(splitting);
                let machine = Machine::<Ept4>::new(&mut idle, log, thp, false);
                let mut cpu = machine.cpu();
                run_op(&mut cpu, &mut idle, Op::Store(9, 1));
                machine.log(&mut idle, true);
                run_op(&mut cpu, &mut idle, Op::Store(9, 2));
                let case = format!("{track:?}, huge pages {thp}, {splitting:?}");
                assert_eq!(machine.harvest(&mut idle), [9], "{case}: no other page of a large page");
                run_op(&mut cpu, &mut idle, Op::Store(9, 3));
                assert_eq!(machine.harvest(&mut idle), [9], "{case}");
            }
        }
    }
}

/// A new log replaces another one, in several ways. What the old log knew is gone. Stores through the TLB are
/// told.
#[test]
fn a_log_that_follows_another_is_told_of_the_next_store() {
    type Change = fn(&Machine<Npt4>, &mut Idle);
    let off_and_on: Change = |machine, idle| {
        machine.log(idle, false);
        machine.log(idle, true);
    };
    let at_once: Change = |machine, idle| {
        let both = |tx: &mut slots::Transaction<'_>| {
            tx.set_log_dirty(SLOT, false)?;
            tx.set_log_dirty(SLOT, true)
        };
        machine.vm.memory().commit(idle, both).unwrap();
    };
    let with_a_move_and_back: Change = |machine, idle| {
        let all = |tx: &mut slots::Transaction<'_>| {
            tx.set_log_dirty(SLOT, false)?;
            tx.move_to(SLOT, Gfn(0x9000))?;
            tx.set_log_dirty(SLOT, true)?;
            tx.move_to(SLOT, Gfn(0)).map(drop)
        };
        machine.vm.memory().commit(idle, all).unwrap();
    };
    let made_again: Change = |machine, idle| {
        let both = |tx: &mut slots::Transaction<'_>| {
            tx.delete(SLOT)?;
            tx.create(Slot::new(SLOT, Gfn(0), PAGES, HVA).log_dirty())
        };
        machine.vm.memory().commit(idle, both).unwrap();
    };
    for track in TRACKS {
        for thp in [false, true] {
            for (number, change) in [off_and_on, at_once, with_a_move_and_back, made_again].iter().enumerate()
            {
                let mut idle = Idle::take().unwrap();
                let machine = Machine::<Npt4>::new(&mut idle, DirtyLog::bitmap().track(track), thp, false);
                let mut cpu = machine.cpu();
                machine.log(&mut idle, true);
                for value in 1..4 {
                    run_op(&mut cpu, &mut idle, Op::Store(9, value));
                    // The old log was taken, or not.
                    if value % 2 == 0 {
                        assert_eq!(machine.harvest(&mut idle), [9]);
                        run_op(&mut cpu, &mut idle, Op::Store(9, value));
                    }
                    change(&machine, &mut idle);
                    run_op(&mut cpu, &mut idle, Op::Store(9, value + 10));
                    assert!(machine.harvest(&mut idle).contains(&9), "{track:?} {thp} {number}");
                }
            }
        }
    }
}

/// A new log that tells every page, and is cleared in parts. Pages that are not cleared stay told. A cleared
/// page is told again after its next store.
#[test]
fn a_log_that_begins_set_is_armed_where_it_is_cleared() {
    for track in TRACKS {
        for (thp, splitting) in [(false, Splitting::Eager), (true, Splitting::Eager), (true, Splitting::Lazy)]
        {
            let mut idle = Idle::take().unwrap();
            let log = DirtyLog::bitmap().track(track).splitting(splitting).initially_set();
            let machine = Machine::<Npt4>::new(&mut idle, log, thp, false);
            let mut cpu = machine.cpu();
            run_op(&mut cpu, &mut idle, Op::Store(9, 1));
            run_op(&mut cpu, &mut idle, Op::Store(700, 1));
            machine.log(&mut idle, true);
            let slots = machine.vm.memory();
            let mut bits = [0; (PAGES / 64) as usize];
            assert_eq!(slots.dirty_bits(&mut idle, SLOT, &mut bits), Ok(PAGES));
            assert_eq!(slots.clear_dirty(&mut idle, SLOT, 0, 128, &[u64::MAX; 2]), Ok(128));
            assert_eq!(slots.dirty_bits(&mut idle, SLOT, &mut bits), Ok(PAGES - 128));
            run_op(&mut cpu, &mut idle, Op::Store(9, 2));
            run_op(&mut cpu, &mut idle, Op::Store(700, 2));
            assert_eq!(slots.dirty_bits(&mut idle, SLOT, &mut bits), Ok(PAGES - 127));
            assert_eq!(bits[..3], [1 << 9, 0, u64::MAX], "{track:?} {thp} {splitting:?}");
            let rest: Vec<_> = machine.harvest(&mut idle);
            assert!(rest.iter().copied().eq([9].into_iter().chain(128..PAGES)), "{rest:?}");
            run_op(&mut cpu, &mut idle, Op::Store(700, 3));
            assert_eq!(machine.harvest(&mut idle), [700], "{track:?} {thp} {splitting:?}");
        }
    }
}

/// Large pages are split where the log needs it. After the log ends they are large again, without a fault.
#[test]
fn large_pages_come_back_when_the_log_ends() {
    for track in TRACKS {
        for splitting in [Splitting::Eager, Splitting::Lazy] {
            let mut idle = Idle::take().unwrap();
            let log = DirtyLog::bitmap().track(track).splitting(splitting);
            let machine = Machine::<Ept4>::new(&mut idle, log, true, false);
            let mut cpu = machine.cpu();
            for gfn in [3, 600] {
                run_op(&mut cpu, &mut idle, Op::Store(gfn, gfn));
            }
            let large = |idle: &mut Idle| {
                machine.vm.collect(idle);
                machine.vm.stats().leaves[1]
            };
            assert_eq!(large(&mut idle), 2);
            machine.log(&mut idle, true);
            if splitting == Splitting::Eager {
                assert_eq!(large(&mut idle), 0, "{track:?}");
            }
            run_op(&mut cpu, &mut idle, Op::Store(4, 1));
            assert!(large(&mut idle) <= 1, "{track:?} {splitting:?}");
            machine.log(&mut idle, false);
            assert_eq!(large(&mut idle), 2, "{track:?} {splitting:?}");
            let faults = machine.vm.stats().mapped_faults;
            for gfn in [3, 4, 600, 1000] {
                run_op(&mut cpu, &mut idle, Op::Store(gfn, gfn + 1));
            }
            assert_eq!(
                machine.vm.stats().mapped_faults,
                faults,
                "{track:?} {splitting:?}: large pages are recovered in place"
            );
            assert_eq!(machine.word(&mut idle, 4), 5);
        }
    }
}
