//! Frames with private and shared memory: conversions, invalidations of either, and faults that name the memory they
//! want.

use slat::notify::{Event, SecondaryMmu};
use slat::slots::Rule;
use slat::table::formats::*;
use slat::*;

const SHARED: Hva = Hva(0x40_0000_0000);
const PRIVATE: Hva = PrivateMemory(5).at(1 << 30);
/// Host addresses of private memory.
const OWN: u64 = 1 << 30;
const LARGE: u64 = Level::M2.pages();
const PAGES: u64 = 4 * LARGE;

/// A host with pages of this size, of both kinds of memory.
struct Both(Level);

fn frame(hva: Hva) -> Pfn {
    Pfn(hva.private_memory().map_or(hva.0 >> PAGE_SHIFT, |(_, offset)| OWN + (offset >> PAGE_SHIFT)))
}

impl Host for Both {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: frame(hva), level: self.0, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

fn ram() -> Slot {
    Slot::new(SlotId(0), Gfn(0), PAGES, SHARED)
}

fn vm<F: Format>(level: Level) -> (Idle, Vm<F, Both>) {
    let (mut idle, vm) = (Idle::take().unwrap(), Vm::<F, _>::builder(Both(level)).build().unwrap());
    vm.memory().commit(&mut idle, |tx| tx.create_with_private(ram(), PRIVATE)).unwrap();
    (idle, vm)
}

fn store(gfn: u64) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }
}

/// Returns the frame's page, and the size of the leaf.
fn mapped<F: Format>(vm: &Vm<F, Both>, idle: &mut Idle, gfn: u64) -> Option<(Pfn, Level)> {
    let found = vm.memory().translate(idle, Gfn(gfn))?;
    Some((found.leaf.pfn + (gfn - found.gfns.start.0), found.level))
}

fn shared(gfn: u64) -> Pfn {
    frame(SHARED + gfn * PAGE_SIZE)
}

fn private(gfn: u64) -> Pfn {
    frame(PRIVATE + gfn * PAGE_SIZE)
}

fn a_large_page_spans_no_two_kinds<F: Format>() {
    let (mut idle, vm) = vm::<F>(Level::M2);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in [0, LARGE, 2 * LARGE] {
        assert_eq!(
            vcpu.fault(&mut idle, store(gfn)),
            Ok(Next::Resume(Resume::Mapped(Level::M2))),
            "{}",
            F::NAME
        );
    }
    let some = Span::new(Gfn(5), Gfn(8));
    vm.memory().set_private(&mut idle, some, true).unwrap();
    for gfn in [0, 4, 8, LARGE - 1] {
        assert_eq!(mapped(&vm, &mut idle, gfn), Some((shared(gfn), Level::K4)), "beside the range");
    }
    assert_eq!(mapped(&vm, &mut idle, LARGE), Some((shared(LARGE), Level::M2)), "elsewhere");
    for gfn in 5..8 {
        assert_eq!(mapped(&vm, &mut idle, gfn), None);
        assert_eq!(vcpu.fault(&mut idle, store(gfn)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        assert_eq!(mapped(&vm, &mut idle, gfn), Some((private(gfn), Level::K4)));
    }
    let all = Span::new(Gfn(0), Gfn(PAGES));
    assert_eq!(vm.memory().recover(&mut idle, all), 0, "two kinds make no large page");
    // A repeated conversion takes nothing.
    vm.memory().set_private(&mut idle, Span::new(Gfn(6), Gfn(8)), true).unwrap();
    assert_eq!(mapped(&vm, &mut idle, 6), Some((private(6), Level::K4)));
    // All of it becomes private: private frames stay.
    vm.memory().set_private(&mut idle, Span::new(Gfn(0), Gfn(LARGE)), true).unwrap();
    assert_eq!((mapped(&vm, &mut idle, 4), mapped(&vm, &mut idle, 6)), (None, Some((private(6), Level::K4))));
    assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(0), Gfn(LARGE)), Prefault::OLD), Ok(LARGE));
    assert_eq!(mapped(&vm, &mut idle, 7), Some((private(7), Level::K4)));
    assert_eq!(vm.memory().recover(&mut idle, all), 1, "one kind again");
    assert_eq!(mapped(&vm, &mut idle, 7), Some((private(7), Level::M2)));
    vm.memory().set_private(&mut idle, all, false).unwrap();
    assert_eq!(mapped(&vm, &mut idle, 7), None);
    assert_eq!(mapped(&vm, &mut idle, LARGE), Some((shared(LARGE), Level::M2)), "it was shared all the time");
    assert_eq!(vcpu.fault(&mut idle, store(7)), Ok(Next::Resume(Resume::Mapped(Level::M2))));
    assert_eq!(mapped(&vm, &mut idle, 7), Some((shared(7), Level::M2)));
}

#[test]
fn a_conversion_takes_what_it_must_and_large_pages_span_no_two_kinds() {
    a_large_page_spans_no_two_kinds::<Ept4>();
    a_large_page_spans_no_two_kinds::<Npt4>();
    a_large_page_spans_no_two_kinds::<Arm64L48>();
    a_large_page_spans_no_two_kinds::<Sv48x4>();
}

/// Frames 0 to 4 are shared, 4 to 8 private, and all are mapped.
fn halves() -> (Idle, Vm<Npt4, Both>) {
    let (mut idle, vm) = vm::<Npt4>(Level::K4);
    vm.memory().set_private(&mut idle, Span::new(Gfn(4), Gfn(8)), true).unwrap();
    let all = Span::new(Gfn(0), Gfn(8));
    let done = vm.vcpu(VcpuId(0)).unwrap().prefault(&mut idle, all, Prefault::young(Access::Write));
    assert_eq!(done, Ok(8));
    (idle, vm)
}

fn left(vm: &Vm<Npt4, Both>, idle: &mut Idle) -> Vec<u64> {
    (0..8).filter(|&gfn| vm.memory().translate(idle, Gfn(gfn)).is_some()).collect()
}

#[test]
fn an_invalidation_of_one_kind_of_memory_leaves_the_other_alone() {
    let whole = |at: Hva| Span::sized(at, PAGES * PAGE_SIZE);
    for why in [Reason::Unmap, Reason::Clear, Reason::Migrate] {
        {
            let (mut idle, vm) = halves();
            drop(vm.invalidate(whole(SHARED), why).apply(&mut idle).settle());
            assert_eq!(left(&vm, &mut idle), [4, 5, 6, 7], "{why:?}");
        }
        let (mut idle, vm) = halves();
        drop(vm.invalidate(Span::sized(PRIVATE + 5 * PAGE_SIZE, PAGE_SIZE), why).apply(&mut idle).settle());
        assert_eq!(left(&vm, &mut idle), [0, 1, 2, 3, 4, 6, 7], "{why:?}");
        drop(vm.invalidate(whole(PRIVATE), why).apply(&mut idle).settle());
        assert_eq!(left(&vm, &mut idle), [0, 1, 2, 3], "{why:?}");
    }
}

#[test]
fn changes_and_aging_of_one_kind_of_memory_leave_the_other_alone() {
    let whole = |at: Hva| Span::sized(at, PAGES * PAGE_SIZE);
    let (mut idle, vm) = halves();
    assert!(vm.young(&mut idle, whole(PRIVATE), Young::ClearAndFlush));
    let young = |idle: &mut Idle, gfn| vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf.accessed;
    assert_eq!([0, 3, 4, 7].map(|gfn| young(&mut idle, gfn)), [true, true, false, false]);
    assert!(
        !vm.young(&mut idle, whole(PRIVATE), Young::Test) && vm.young(&mut idle, whole(SHARED), Young::Test)
    );
    vm.around(&mut idle, Event::new(whole(SHARED), Reason::Reclaim), &mut |idle, pages| {
        pages.changed(idle, whole(SHARED), None);
    })
    .unwrap();
    assert_eq!(left(&vm, &mut idle), [4, 5, 6, 7]);
}

fn a_fault_of_the_other_kind_does_nothing<F: Format>() {
    let (mut idle, vm) = vm::<F>(Level::K4);
    vm.memory().set_private(&mut idle, Span::new(Gfn(1), Gfn(2)), true).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let refused = |private| Ok(Next::Leave(Leave::MemoryFault { private }));
    for (gfn, private) in [(0, false), (1, true)] {
        assert_eq!(vcpu.fault_as(&mut idle, store(gfn), !private), refused(!private), "a hole");
        assert_eq!(mapped(&vm, &mut idle, gfn), None);
        // Withdrawn, if the format has no Accessed bit.
        vcpu.prefault(&mut idle, Span::sized(Gfn(gfn), 1), Prefault::OLD).unwrap();
        assert_eq!(vcpu.fault_as(&mut idle, store(gfn), !private), refused(!private), "an old leaf");
        assert!(!vm.memory().translate(&mut idle, Gfn(gfn)).unwrap().leaf.accessed);
        let _ = vcpu.fault_as(&mut idle, store(gfn), private).unwrap();
        assert_eq!(vcpu.fault_as(&mut idle, store(gfn), !private), refused(!private), "a leaf");
        assert_eq!(vcpu.fault_as(&mut idle, store(gfn), private), Ok(Next::Resume(Resume::Spurious)));
    }
    // The vCPU remembers the slot's part by now: the short path.
    assert_eq!(vcpu.fault_as(&mut idle, store(2), false), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vcpu.fault_as(&mut idle, store(3), true), refused(true));
    assert_eq!(vcpu.fault_as(&mut idle, store(3), false), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vcpu.fault_as(&mut idle, store(PAGES), true), refused(true), "no memslot: nothing is private");
    let emulate = Ok(Next::Emulate(Emulate::NoMemory));
    assert_eq!(vcpu.fault_as(&mut idle, store(PAGES), false), emulate, "no memslot: a device");
}

#[test]
fn a_fault_that_means_the_other_kind_of_memory_does_nothing() {
    a_fault_of_the_other_kind_does_nothing::<Ept4>();
    a_fault_of_the_other_kind_does_nothing::<Ept4NoAd>();
    a_fault_of_the_other_kind_does_nothing::<Sv39x4>();
}

#[test]
fn attributes_go_with_the_memslot() {
    let (mut idle, vm) = halves();
    let slots = vm.memory();
    assert_eq!(slots.len(), 1);
    assert_eq!(slots.get(&mut idle, SlotId(0)), Some(ram()));
    assert!(slots.find(&mut idle, Gfn(5)).unwrap().is_private());
    for operation in [
        |tx: &mut slots::Transaction<'_>| tx.move_to(SlotId(0), Gfn(PAGES)).map(drop),
        |tx: &mut slots::Transaction<'_>| tx.set_log_dirty(SlotId(0), true).map(drop),
    ] {
        let error = slots.commit(&mut idle, operation).unwrap_err();
        assert_eq!((error.rule, error.errno()), (Rule::Private, 22));
    }
    let other = Slot::new(SlotId(1), Gfn(PAGES), 8, SHARED);
    slots.commit(&mut idle, |tx| tx.create(other)).unwrap();
    let error = slots.set_private(&mut idle, Span::new(Gfn(PAGES - 1), Gfn(PAGES + 1)), true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "memslot 1 at 0x800000..0x808000: frame 0x800 has no private memory; create its memslot with some"
    );
    assert!(!slots.find(&mut idle, Gfn(PAGES - 1)).unwrap().is_private(), "nothing half-done");
    let error = slots.commit(&mut idle, |tx| {
        tx.create_with_private(Slot::new(SlotId(2), Gfn(2 * PAGES), 8, SHARED).readonly(), PRIVATE)
    });
    assert_eq!(error.unwrap_err().rule, Rule::Private);
    slots.commit(&mut idle, |tx| tx.delete(SlotId(0))).unwrap();
    assert_eq!(left(&vm, &mut idle), [0; 0]);
    slots.commit(&mut idle, |tx| tx.create_with_private(ram(), PRIVATE)).unwrap();
    assert!(!slots.find(&mut idle, Gfn(5)).unwrap().is_private(), "a new slot is shared");
}

/// A slot whose memory is always private, by (number, offset) alone.
#[test]
fn a_memslot_may_have_private_memory_alone() {
    let (mut idle, vm) = vm::<Npt4>(Level::K4);
    let own = Slot::new(SlotId(1), Gfn(PAGES), 8, PrivateMemory(6).at(0));
    vm.memory().commit(&mut idle, |tx| tx.create(own)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = store(PAGES + 3);
    assert_eq!(
        vcpu.fault_as(&mut idle, fault, false),
        Ok(Next::Leave(Leave::MemoryFault { private: false }))
    );
    assert_eq!(vcpu.fault_as(&mut idle, fault, true), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(
        mapped(&vm, &mut idle, PAGES + 3),
        Some((frame(PrivateMemory(6).at(3 * PAGE_SIZE)), Level::K4))
    );
}

/// Stores to a frame stay tracked when it is converted; the VMM makes none to private memory.
#[test]
fn a_tracked_store_to_private_memory_is_not_emulated() {
    struct Unheard;
    impl writes::WriteListener for Unheard {}
    let (mut idle, vm) = vm::<Ept4>(Level::K4);
    let tracking =
        vm.memory().track_writes(&mut idle, Span::sized(Gfn(3), 1), std::sync::Arc::new(Unheard)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for private in [false, true] {
        vm.memory().set_private(&mut idle, Span::sized(Gfn(3), 1), private).unwrap();
        assert_eq!(vcpu.fault_as(&mut idle, store(3), private), Ok(Next::Emulate(Emulate::Tracked)));
        let mut made = None;
        let result = vm.memory().emulate_store(&mut idle, Gfn(3).gpa(), &[1], |hva| made = Some(hva));
        let expected = if private { Err(writes::StoreError::Private) } else { Ok(()) };
        assert_eq!((result, made), (expected, (!private).then_some(SHARED + 3 * PAGE_SIZE)));
    }
    drop(tracking);
}

/// The rest of a cut slot is private or shared as before, and keeps its mappings. Each piece can be converted further,
/// and changes of its own memories reach it.
#[test]
fn a_slot_with_private_memory_is_cut_and_what_stays_is_of_its_kind() {
    let (mut idle, vm) = vm::<Npt4>(Level::K4);
    let slots = vm.memory();
    let still = |vm: &Vm<Npt4, Both>, idle: &mut Idle| -> Vec<u64> {
        (0..16).filter(|&gfn| vm.memory().translate(idle, Gfn(gfn)).is_some()).collect()
    };
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    slots.set_private(&mut idle, Span::new(Gfn(4), Gfn(12)), true).unwrap();
    let mut touch = |idle: &mut Idle, gfn: u64, private| {
        vcpu.fault_as(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }, private).unwrap()
    };
    for gfn in [3, 4, 6, 9, 11, 12] {
        assert_eq!(touch(&mut idle, gfn, (4..12).contains(&gfn)), Next::Resume(Resume::Mapped(Level::K4)));
    }
    slots.commit(&mut idle, |tx| tx.cut(SlotId(0), Span::new(Gfn(6), Gfn(9)), SlotId(1))).unwrap();
    assert_eq!(still(&vm, &mut idle), [3, 4, 9, 11, 12], "what stays, stays mapped");
    assert_eq!(touch(&mut idle, 9, true), Next::Resume(Resume::Spurious));
    assert_eq!(touch(&mut idle, 9, false), Next::Leave(Leave::MemoryFault { private: false }));
    assert_eq!(touch(&mut idle, 6, true), Next::Leave(Leave::MemoryFault { private: true }));
    let above = slots.get(&mut idle, SlotId(1)).unwrap();
    assert_eq!((above.gfns, above.hva), (Span::new(Gfn(9), Gfn(PAGES)), SHARED + 9 * PAGE_SIZE));
    // A change of private page 11 reaches the piece above; its shared page backs it after a conversion.
    let page = |memory: Hva, nth: u64| Span::sized(memory + nth * PAGE_SIZE, PAGE_SIZE);
    drop(vm.invalidate(page(SHARED, 11), Reason::Unmap).apply(&mut idle).settle());
    assert_eq!(still(&vm, &mut idle), [3, 4, 9, 11, 12]);
    drop(vm.invalidate(page(PRIVATE, 11), Reason::Clear).apply(&mut idle).settle());
    assert_eq!(still(&vm, &mut idle), [3, 4, 9, 12]);
    slots.set_private(&mut idle, Span::new(Gfn(9), Gfn(12)), false).unwrap();
    assert_eq!(touch(&mut idle, 11, false), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(slots.find(&mut idle, Gfn(11)).unwrap().hva_of(Gfn(11)), SHARED + 11 * PAGE_SIZE);
    slots.commit(&mut idle, |tx| tx.delete(SlotId(1))).unwrap();
    assert_eq!(still(&vm, &mut idle), [3, 4]);
}

/// CVE-2024-26991: conversions near the ends of a memslot whose ends are inside of large pages.
#[test]
fn memslots_at_any_alignment_are_converted_page_by_page() {
    for (first, pages) in [(0, LARGE), (1, LARGE), (7, 3 * LARGE), (LARGE - 1, 2), (LARGE + 1, 2 * LARGE - 2)]
    {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Both(Level::M2)).build().unwrap();
        let [hva, own] = [SHARED, PRIVATE].map(|at| at + first * PAGE_SIZE);
        let slot = Slot::new(SlotId(0), Gfn(first), pages, hva);
        vm.memory().commit(&mut idle, |tx| tx.create_with_private(slot, own)).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let end = first + pages;
        let parts = [
            (first, end),
            (first, first + 1),
            (end - 1, end),
            (first + 1, end - 1),
            (first + pages / 2, end),
        ];
        let mut kinds = vec![false; pages as usize];
        for (nth, (from, to)) in parts.into_iter().chain(parts).enumerate() {
            let is_private = !nth.is_multiple_of(3);
            vm.memory().set_private(&mut idle, Span::new(Gfn(from), Gfn(to)), is_private).unwrap();
            kinds[(from - first) as usize..(to - first) as usize].fill(is_private);
            let _ = vcpu.prefault(&mut idle, slot.gfns, Prefault::OLD).unwrap();
            for gfn in first..end {
                let found = vm.memory().translate(&mut idle, Gfn(gfn)).unwrap();
                assert!(slot.gfns.covers(&found.gfns), "{found:?} of {slot:?}");
                let kind = kinds[(gfn - first) as usize];
                let pfn = if kind { private(gfn) } else { shared(gfn) };
                assert_eq!(found.leaf.pfn + (gfn - found.gfns.start.0), pfn, "{gfn} of {slot:?}, step {nth}");
            }
        }
    }
}
