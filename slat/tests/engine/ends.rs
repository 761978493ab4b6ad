//! Every operation on memslots at the ends of guest frames and of host addresses. Tests are built with overflow checks.

use slat::notify::{Event, SecondaryMmu, Young};
use slat::table::formats::{Arm64L39, Ept4NoAd, Npt4, Npt5, Pae, Sv39x4};
use slat::*;
use std::cell::Cell;
use std::sync::Arc;

fn idle() -> Idle {
    Idle::take().unwrap()
}

/// Large pages where address and frame are congruent; page by page otherwise.
struct Machine;

impl Host for Machine {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        // Frames are addresses, less the bits that no format can encode.
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT & 0x3f_ffff), level: Level::M2, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

struct Tlb;

impl Translations for Tlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

struct Nothing;

impl WriteListener for Nothing {}

/// The end of the host addresses that a memslot may have by default.
const LAST: u64 = !(PAGE_SIZE - 1);
const PAGES: u64 = 1536;

/// Does everything with one memslot of `PAGES` pages.
#[allow(clippy::too_many_lines, reason = "a list of operations")]
fn everything<F: Format>(gfn: Gfn, hva: Hva, log: DirtyLog) {
    let idle = &mut idle();
    let slot = Slot::new(SlotId(0), gfn, PAGES, hva);
    let vm = Vm::<F, _>::builder(Machine).dirty_log(log).build().unwrap();
    let slots = vm.memory();
    slots.commit(idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let pages = [0, 1, 511, 512, PAGES - 513, PAGES - 2, PAGES - 1];
    let end = Gfn(gfn.0.saturating_add(PAGES));
    // Beyond the ends: frames that no format has.
    for far in [end, Gfn(u64::MAX >> PAGE_SHIFT)] {
        let _ = vcpu.fault(idle, Fault { gpa: far.gpa(), access: Access::Write });
    }
    let ranges = [
        slot.hvas(),
        Span::new(Hva(0), Hva(u64::MAX)),
        Span::new(hva, Hva(u64::MAX)),
        Span::sized(hva + (PAGES - 1) * PAGE_SIZE, u64::MAX),
        Span::sized(hva + 4095, 2),
    ];
    let frames = [
        slot.gfns,
        Span::new(Gfn(0), Gfn(u64::MAX)),
        Span::new(Gfn(end.0 - 1), Gfn(u64::MAX)),
        Span::sized(Gfn(u64::MAX), u64::MAX),
    ];
    let mut touch = |idle: &mut Idle| {
        for page in pages {
            for access in [Access::Read, Access::Write] {
                let done = vcpu.fault(idle, Fault { gpa: (gfn + page).gpa(), access }).unwrap();
                assert!(!matches!(done, Next::Emulate(Emulate::NoMemory)), "page {page}");
            }
            let found = vm.memory().translate(idle, gfn + page).unwrap();
            let inside = (gfn.0 + page) & (found.level.pages() - 1);
            let pfn = Pfn(found.leaf.pfn.0 & !(found.level.pages() - 1)) + inside;
            assert_eq!(pfn, Machine.lookup(hva + page * PAGE_SIZE, Access::Read).unwrap().pfn);
        }
        drop(vcpu.enter(idle, &mut Tlb));
        for gfns in frames {
            let _ = vcpu.prefault(idle, gfns, Prefault::OLD);
            let _ = vcpu.prefault(idle, gfns, Prefault::young(Access::Write));
        }
    };
    for hvas in ranges {
        for why in [Reason::Unmap, Reason::Migrate, Reason::Protect, Reason::Clear, Reason::Slot] {
            touch(idle);
            drop(vm.invalidate(hvas, why).apply(idle).settle());
        }
        for why in [Reason::Reclaim, Reason::Numa, Reason::ChangePte] {
            touch(idle);
            vm.around(idle, Event::new(hvas, why), &mut |idle, told| {
                told.settle(idle, hvas);
                told.changed(idle, hvas, None);
                let page = Machine.lookup(hva, Access::Read);
                let last = Span::sized(hva + (PAGES - 1) * PAGE_SIZE, PAGE_SIZE);
                if hvas.covers(&last) {
                    told.changed(idle, last, page);
                }
            })
            .unwrap();
            let event = Event { may_block: false, ..Event::new(hvas, why) };
            let _ = vm.around(idle, event, &mut |idle, told| told.changed(idle, hvas, None));
        }
        touch(idle);
        let mut seen = 0;
        vm.age(idle, hvas, &mut |pages| seen += pages.pages().count());
        for young in [Young::Test, Young::Clear, Young::ClearAndFlush] {
            let _ = vm.young(idle, hvas, young);
        }
        vm.forget(idle, hvas);
        vm.mark_dirty(hvas);
        slots.snapshot(idle).over_hvas(hvas, |gfns| assert!(slot.gfns.covers(&gfns)));
    }
    for gfns in frames {
        touch(idle);
        drop(vm.memory().invalidate(gfns, Reason::Unmap).apply(idle).settle());
        touch(idle);
        vm.memory().write_protect(idle, gfns).settle();
        let _ = vm.memory().split(idle, gfns, Level::K4).unwrap();
        let _ = vm.memory().recover(idle, gfns);
        vm.memory().lockless(idle).age(gfns, |_| ());
        let _ = vm.memory().lockless(idle).is_young(gfns);
        vm.memory().lockless(idle).for_each(gfns, |_| ());
        slots.mark_dirty(gfns);
        assert!(slots.snapshot(idle).range(gfns).count() <= 1);
        // Each frame counts: not those of a whole address space.
        let few = Span::new(gfns.start.max(Gfn(end.0 - 2)), gfns.end.min(end));
        let tracking = vm.memory().track_writes(idle, few, Arc::new(Nothing)).unwrap();
        let _ = slots.emulate_store(idle, Gfn(end.0 - 1).gpa(), &[1; 4096], |_| ());
        drop(tracking);
    }
    slots.commit(idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
    for _ in 0..2 {
        touch(idle);
        let harvest = slots.harvest_all(idle).unwrap();
        assert!(harvest.iter().all(|page| slot.gfns.contains(page.gfn) && page.hva == slot.hva_of(page.gfn)));
        drop(harvest);
        let mut bits = [0; PAGES as usize / 64];
        let _ = slots.dirty_bits(idle, SlotId(0), &mut bits).unwrap();
        let _ = slots.clear_dirty(idle, SlotId(0), PAGES - 64, 64, &[u64::MAX]).unwrap();
        slots.mark_dirty_bits(SlotId(0), PAGES - 64, &[u64::MAX]).unwrap();
        for far in [!63, PAGES] {
            let _ = slots.clear_dirty(idle, SlotId(0), far, 64, &[1]);
            let _ = slots.mark_dirty_bits(SlotId(0), far, &[1]);
        }
        slots.commit(idle, |tx| tx.set_log_dirty(SlotId(0), false)).unwrap();
        slots.commit(idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
    }
    let mut held = vm.memory().hold(idle, Gfn(end.0 - 1), Access::Write).unwrap();
    drop(held.write(idle));
    drop(held);
    vm.zap_all(idle).unwrap();
    touch(idle);
    vm.compact(idle);
    // Cut at both ends, moved by one frame, and beyond the end, which is refused.
    slots.commit(idle, |tx| tx.cut(SlotId(0), Span::new(gfn, gfn + 1), SlotId(1)).map(drop)).unwrap();
    slots.commit(idle, |tx| tx.cut(SlotId(0), Span::new(Gfn(end.0 - 1), end), SlotId(2)).map(drop)).unwrap();
    let left = slots.find(idle, gfn + 5).unwrap();
    let _ = slots.commit(idle, |tx| tx.move_to(left.id, Gfn(left.gfns.start.0 - 1)).map(drop));
    for far in [u64::MAX, u64::MAX >> PAGE_SHIFT, 1 << 52] {
        let _ = slots.commit(idle, |tx| tx.move_to(left.id, Gfn(far)).map(drop)).unwrap_err().to_string();
        let slot = Slot::new(SlotId(7), Gfn(far), u64::MAX, Hva(far));
        let _ = slots.commit(idle, |tx| tx.create(slot)).unwrap_err().to_string();
    }
}

/// The host addresses of slots at the ends: congruent with large pages, and not.
const TOP: u64 = LAST - PAGES * PAGE_SIZE;
const HVAS: [u64; 5] = [0, PAGE_SIZE, TOP, TOP - PAGE_SIZE, TOP & !(Level::M2.bytes() - 1)];

#[test]
fn operations_at_the_ends_of_all_addresses() {
    for gfn in [Gfn(0), Gfn((1 << Npt4::FRAME_BITS) - PAGES)] {
        for hva in HVAS {
            everything::<Npt4>(gfn, Hva(hva), DirtyLog::bitmap());
        }
        everything::<Npt4>(gfn, Hva(TOP), DirtyLog::bitmap().track(Track::DirtyBits).initially_set());
    }
}

#[test]
fn operations_at_the_ends_of_longer_and_shorter_addresses() {
    fn last<F: Format>() {
        // No more than a memslot may have by default.
        let frames = (1_u64 << F::FRAME_BITS).min(1 << 40);
        everything::<F>(Gfn(frames - PAGES), Hva(TOP), DirtyLog::bitmap());
    }
    last::<Npt5>();
    last::<Ept4NoAd>();
    last::<Arm64L39>();
    last::<Sv39x4>();
    last::<Pae>();
}

/// An aging pass is inside a memslot when a transaction cuts the part where the pass is.
#[test]
fn a_memslot_is_cut_beside_an_aging_pass() {
    const MANY: u64 = 32 * 512;
    let (idle, vm) = (&mut idle(), Vm::<Ept4NoAd, _>::builder(Machine).build().unwrap());
    let hva = Hva(0x4000_0000 + PAGE_SIZE);
    vm.memory()
        .commit(idle, |tx| {
            tx.create(Slot::new(SlotId(0), Gfn(0), MANY, hva))?;
            // An alias of its first pages: two slots share the range.
            tx.create(Slot::new(SlotId(1), Gfn(1 << 20), 8, hva))
        })
        .unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.prefault(idle, Span::new(Gfn(0), Gfn(MANY)), Prefault::young(Access::Write)).unwrap();
    let (calls, seen) = (Cell::new(0), Cell::new(0));
    std::thread::scope(|scope| {
        vm.age(idle, Span::sized(hva, MANY * PAGE_SIZE), &mut |pages| {
            seen.set(seen.get() + u64::from(pages.count()));
            if calls.replace(calls.get() + 1) != 4 {
                return;
            }
            let (slots, before) = (vm.memory(), vm.memory().generation());
            scope.spawn(move || {
                let gone = Span::new(Gfn(100), Gfn(MANY));
                slots
                    .commit(&mut Idle::take().unwrap(), |tx| tx.cut(SlotId(0), gone, SlotId(2)).map(drop))
                    .unwrap();
            });
            // The pass is in a section, so the transaction ends later; its version is published.
            while vm.memory().generation().number() == before.number() {
                std::thread::yield_now();
            }
        });
    });
    assert!(seen.get() > 100 && seen.get() < MANY + 8, "{} pages: the rest was cut off", seen.get());
}
