//! Held frames are valid or refused, whatever the host and the memslots do.

use slat::notify::{Event, SecondaryMmu};
use slat::table::formats::{Ept4, Npt4};
use slat::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const HVA: Hva = Hva(1 << 30);
const PAGES: u64 = 1024;
const RAM: SlotId = SlotId(0);

/// A page is in frame `address + moved`, and may be written or not. Private pages are in frames of their own.
#[derive(Default)]
struct Mover {
    moved: AtomicU64,
    readonly: AtomicBool,
    /// The host's answer, if it is no page.
    error: std::sync::Mutex<Option<HostError>>,
    kicks: AtomicU64,
}

impl Host for Mover {
    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        if let Some(error) = *self.error.lock().unwrap() {
            return Err(error);
        }
        if access == Access::Write {
            self.readonly.store(false, SeqCst);
        }
        let private = u64::from(hva.private_memory().is_some()) << 38;
        let pfn = Pfn((hva.0 >> PAGE_SHIFT & 0xf_ffff_ffff) + private + self.moved.load(SeqCst));
        Ok(HostPage { pfn, writable: !self.readonly.load(SeqCst), ..HostPage::PLAIN })
    }

    fn kick(&self, _: VcpuId) {
        self.kicks.fetch_add(1, SeqCst);
    }
}

fn vm_with(build: fn(Builder<Npt4, Mover>) -> Builder<Npt4, Mover>) -> (Idle, Vm<Npt4, Mover>) {
    let (mut idle, vm) =
        (Idle::take().unwrap(), build(Vm::builder(Mover::default()).vcpus(2)).build().unwrap());
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), PAGES, HVA))).unwrap();
    (idle, vm)
}

fn vm() -> (Idle, Vm<Npt4, Mover>) {
    vm_with(|builder| builder)
}

fn page(gfn: u64) -> Span<Hva> {
    Span::sized(HVA + gfn * PAGE_SIZE, PAGE_SIZE)
}

fn frame(gfn: u64) -> Pfn {
    Pfn((HVA.0 >> PAGE_SHIFT) + gfn)
}

/// Returns the frame that may be used now.
fn read<F: Format, H: Host>(held: &mut Held<'_, F, H>, idle: &mut Idle) -> Option<Pfn> {
    held.read(idle).map(|page| page.pfn())
}

#[test]
fn a_held_frame_is_refused_from_an_invalidation_on_until_it_is_refreshed() {
    let (mut idle, vm) = vm();
    let mut held = vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap();
    assert_eq!((held.gfn(), read(&mut held, &mut idle)), (Gfn(5), Some(frame(5))));
    assert_eq!(vm.memory().translate(&mut idle, Gfn(5)), None, "nothing is mapped for it");

    // An invalidation of neighbours, by address and by frame, leaves it.
    for gfn in [4, 6, 600] {
        drop(vm.invalidate(page(gfn), Reason::Unmap).apply(&mut idle).settle());
        drop(vm.memory().invalidate(Span::sized(Gfn(gfn), 1), Reason::Unmap).apply(&mut idle).settle());
    }
    assert_eq!(read(&mut held, &mut idle), Some(frame(5)));
    drop(vm.invalidate(page(5), Reason::Unmap));
    assert_eq!(read(&mut held, &mut idle), Some(frame(5)), "one that is called off takes nothing");

    let applied = vm.invalidate(page(5), Reason::Migrate).apply(&mut idle);
    assert!(applied.owes(), "a use is waited for");
    let change = applied.settle();
    assert!(!held.is_valid() && held.read(&mut idle).is_none());
    vm.host().moved.store(1 << 20, SeqCst);
    drop(change);
    assert!(held.read(&mut idle).is_none(), "it stays refused");
    held.refresh(&mut idle).unwrap();
    assert_eq!(read(&mut held, &mut idle), Some(frame(5) + (1 << 20)));
    drop(held);
    assert!(!vm.invalidate(page(5), Reason::Migrate).apply(&mut idle).owes(), "nothing is held any more");
}

#[test]
fn reasons_that_leave_loads_alone_leave_frames_that_are_read() {
    for why in Reason::ALL.into_iter().filter(|why| !why.page_by_page() && *why != Reason::Slot) {
        let (mut idle, vm) = vm();
        let mut reads = vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap();
        let mut writes = vm.memory().hold(&mut idle, Gfn(5), Access::Write).unwrap();
        drop(vm.invalidate(Span::sized(HVA, PAGES * PAGE_SIZE), why).apply(&mut idle).settle());
        let protects = matches!(why, Reason::Protect | Reason::WriteProtect | Reason::SoftDirty);
        assert_eq!(reads.read(&mut idle).is_some(), protects, "{why:?}");
        assert!(writes.read(&mut idle).is_none(), "{why:?}");
        writes.refresh(&mut idle).unwrap();
        assert!(writes.write(&mut idle).is_some());
    }
}

#[test]
fn pages_that_are_told_are_taken_back_one_by_one() {
    for why in Reason::ALL.into_iter().filter(|why| why.page_by_page()) {
        let (mut idle, vm) = vm();
        let [mut told, mut other] =
            [5, 6].map(|gfn| vm.memory().hold(&mut idle, Gfn(gfn), Access::Read).unwrap());
        for may_block in [true, false] {
            let event = Event { may_block, ..Event::new(Span::sized(HVA, PAGES * PAGE_SIZE), why) };
            vm.around(&mut idle, event, &mut |idle, pages| {
                pages.changed(idle, page(5), None);
                assert!(told.read(idle).is_none());
            })
            .unwrap();
            assert!(other.read(&mut idle).is_some(), "{why:?}");
            told.refresh(&mut idle).unwrap();
            assert!(told.read(&mut idle).is_some());
        }
    }
}

#[test]
fn memslots_that_move_take_their_frames_back() {
    let (mut idle, vm) = vm();
    let mut held = vm.memory().hold(&mut idle, Gfn(5), Access::Write).unwrap();
    let commit =
        |idle: &mut Idle, work: &mut dyn FnMut(&mut slots::Transaction<'_>) -> Result<(), SlotError>| {
            vm.memory().commit(idle, |tx| work(tx)).unwrap();
        };
    // A change of other frames leaves it.
    let more = Slot::new(SlotId(1), Gfn(PAGES), 8, Hva(1 << 40));
    commit(&mut idle, &mut |tx| tx.create(more));
    commit(&mut idle, &mut |tx| tx.set_log_dirty(RAM, true).map(drop));
    assert!(held.is_valid());
    let written = held.write(&mut idle).unwrap();
    drop(written);
    assert!(vm.memory().is_dirty(Gfn(5)) && !vm.memory().is_dirty(Gfn(6)));

    // Frame 5 gets the memory of frame 4.
    commit(&mut idle, &mut |tx| {
        tx.delete(RAM)?;
        tx.create(Slot::new(RAM, Gfn(1), PAGES - 1, HVA))
    });
    assert!(held.write(&mut idle).is_none());
    held.refresh(&mut idle).unwrap();
    assert_eq!(read(&mut held, &mut idle), Some(frame(4)));
    // From now on it has that page.
    drop(vm.invalidate(page(5), Reason::Unmap).apply(&mut idle).settle());
    assert!(held.is_valid());
    drop(vm.invalidate(page(4), Reason::Unmap).apply(&mut idle).settle());
    assert!(!held.is_valid());

    commit(&mut idle, &mut |tx| tx.delete(RAM).map(drop));
    assert_eq!(held.refresh(&mut idle), Err(HoldError::NoMemslot));
    assert!(held.read(&mut idle).is_none());
    let readonly = Slot { readonly: true, ..Slot::new(RAM, Gfn(0), 8, HVA) };
    commit(&mut idle, &mut |tx| tx.create(readonly));
    assert_eq!(held.refresh(&mut idle), Err(HoldError::ReadOnly));
    let mut reads = vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap();
    assert_eq!(read(&mut reads, &mut idle), Some(frame(5)));
}

#[test]
fn a_memslot_that_is_replaced_by_a_read_only_one_takes_its_frames_back() {
    let (mut idle, vm) = vm();
    let mut held = vm.memory().hold(&mut idle, Gfn(5), Access::Write).unwrap();
    let readonly = Slot { readonly: true, ..Slot::new(RAM, Gfn(0), PAGES, HVA) };
    vm.memory()
        .commit(&mut idle, |tx| {
            tx.delete(RAM)?;
            tx.create(readonly)
        })
        .unwrap();
    assert!(held.write(&mut idle).is_none());
    assert_eq!(held.refresh(&mut idle), Err(HoldError::ReadOnly));
}

#[test]
fn a_conversion_takes_back_frames_of_the_other_kind() {
    let (mut idle, vm) = vm();
    let more = Slot::new(SlotId(1), Gfn(PAGES), 8, Hva(1 << 40));
    vm.memory().commit(&mut idle, |tx| tx.create_with_private(more, PrivateMemory(1).at(0))).unwrap();
    let mut held = vm.memory().hold(&mut idle, Gfn(PAGES), Access::Read).unwrap();
    let before = read(&mut held, &mut idle).unwrap();
    vm.memory().set_private(&mut idle, Span::sized(Gfn(PAGES + 1), 1), true).unwrap();
    assert!(held.is_valid(), "a neighbour");
    vm.memory().set_private(&mut idle, Span::sized(Gfn(PAGES), 1), true).unwrap();
    assert!(held.read(&mut idle).is_none());
    held.refresh(&mut idle).unwrap();
    assert_ne!(read(&mut held, &mut idle), Some(before));
}

#[test]
fn a_frame_is_held_in_one_address_space() {
    let (mut idle, vm) = vm_with(|builder| builder.address_spaces(2));
    let smm = vm.space(SpaceId(1)).unwrap();
    assert_eq!(smm.hold(&mut idle, Gfn(5), Access::Read).unwrap_err(), HoldError::NoMemslot);
    smm.commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), 8, HVA + (1 << 20)))).unwrap();
    let [mut normal, mut other] =
        [vm.memory(), smm].map(|slots| slots.hold(&mut idle, Gfn(5), Access::Read).unwrap());
    drop(vm.memory().invalidate(Span::sized(Gfn(5), 1), Reason::Unmap).apply(&mut idle).settle());
    assert!(normal.read(&mut idle).is_none() && other.read(&mut idle).is_some());
    normal.refresh(&mut idle).unwrap();
    drop(vm.invalidate(page(256 + 5), Reason::Unmap).apply(&mut idle).settle());
    assert!(normal.read(&mut idle).is_some() && other.read(&mut idle).is_none());
}

#[test]
fn errors_hold_nothing_and_name_what_is_wrong() {
    let (mut idle, vm) = vm();
    let beyond = vm.memory().hold(&mut idle, Gfn(PAGES), Access::Read).unwrap_err();
    assert_eq!(beyond, HoldError::NoMemslot);
    assert_eq!(beyond.to_string(), "no memslot has the frame: create one first");
    for (error, expected) in [
        (HostError::Pending, HoldError::Pending(Token(page(5).start.0))),
        (HostError::Poisoned, HoldError::Host(HostError::Poisoned)),
        (HostError::NeedsPage, HoldError::Host(HostError::NeedsPage)),
    ] {
        *vm.host().error.lock().unwrap() = Some(error);
        assert_eq!(vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap_err(), expected);
    }
    *vm.host().error.lock().unwrap() = None;
    assert!(!vm.invalidate(page(5), Reason::Migrate).apply(&mut idle).owes(), "nothing is held");
    // A frame that was refused once is held when the page is there.
    let mut held = vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap();
    drop(vm.invalidate(page(5), Reason::Unmap).apply(&mut idle).settle());
    *vm.host().error.lock().unwrap() = Some(HostError::Pending);
    assert!(held.refresh(&mut idle).is_err() && held.read(&mut idle).is_none());
    *vm.host().error.lock().unwrap() = None;
    held.refresh(&mut idle).unwrap();
    assert!(held.is_valid());
}

#[test]
#[should_panic(expected = "held for Read, not to write")]
fn a_frame_that_is_held_to_read_is_not_written() {
    let (mut idle, vm) = vm();
    let mut held = vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap();
    let _ = held.write(&mut idle);
}

/// Invalidates and settles with a use open. Returns how long the use lasts.
#[test]
fn an_invalidation_waits_for_a_use_that_has_begun_and_for_no_other() {
    let (mut idle, vm) = vm();
    let mut held = vm.memory().hold(&mut idle, Gfn(5), Access::Write).unwrap();
    let settled = AtomicBool::new(false);
    thread::scope(|scope| {
        let used = held.write(&mut idle).unwrap();
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            // Of another frame that is held, and of one that is not.
            let mut beside = vm.memory().hold(&mut idle, Gfn(6), Access::Read).unwrap();
            drop(vm.invalidate(page(6), Reason::Unmap).apply(&mut idle).settle());
            assert!(beside.read(&mut idle).is_none());
            drop(vm.invalidate(page(5), Reason::Unmap).apply(&mut idle).settle());
            settled.store(true, SeqCst);
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!settled.load(SeqCst), "the use goes on");
        assert_eq!(used.pfn(), frame(5));
        drop(used);
    });
    assert!(settled.load(SeqCst) && held.write(&mut idle).is_none());
}

#[test]
fn a_use_that_is_leaked_ends_with_the_next_call() {
    let (mut idle, vm) = vm();
    let mut held = vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap();
    std::mem::forget(held.read(&mut idle).unwrap());
    thread::scope(|scope| {
        let invalidation = scope.spawn(|| {
            drop(vm.invalidate(page(5), Reason::Unmap).apply(&mut Idle::take().unwrap()).settle());
        });
        while held.read(&mut idle).is_some() {
            thread::yield_now();
        }
        invalidation.join().unwrap();
    });
    std::mem::forget(held.read(&mut idle));
    drop(held);
    assert!(!vm.invalidate(page(5), Reason::Unmap).apply(&mut idle).owes());
}

/// A real TLB would flush here.
struct Tlb;

impl Translations for Tlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

#[test]
fn a_vcpu_finds_the_frame_taken_back_before_it_goes_in() {
    let (mut idle, vm) = vm();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut apic = vm.memory().hold_for_hardware(&mut idle, Gfn(7), Access::Write).unwrap();
    let ready = vcpu.enter(&mut idle, &mut Tlb);
    assert_eq!(apic.current(&ready), Some(frame(7)));
    drop(ready);
    drop(vm.invalidate(page(7), Reason::Migrate).apply(&mut idle).settle());
    assert_eq!(vm.host().kicks.load(SeqCst), 0, "no vCPU was in the guest");
    let ready = vcpu.enter(&mut idle, &mut Tlb);
    assert_eq!(apic.current(&ready), None);
    drop(ready);
    apic.refresh(&mut idle).unwrap();
    let guest = vcpu.enter(&mut idle, &mut Tlb).poll();
    assert_eq!(apic.current(&guest), Some(frame(7)));
    assert!(!guest.kicked());
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(vm.invalidate(page(7), Reason::Migrate).apply(&mut Idle::take().unwrap()).settle());
        });
        while !guest.kicked() {
            thread::yield_now();
        }
        assert_eq!(apic.current(&guest), None);
        drop(guest);
    });
    assert_eq!(vm.host().kicks.load(SeqCst), 1, "though nothing was mapped");
}

#[test]
#[should_panic(expected = "a vCPU of another VM")]
fn a_vcpu_of_another_vm_is_refused() {
    let (mut idle, vm) = vm();
    let other = Vm::<Ept4, _>::builder(Mover::default()).build().unwrap();
    let mut vcpu = other.vcpu(VcpuId(0)).unwrap();
    let apic = vm.memory().hold_for_hardware(&mut idle, Gfn(7), Access::Write).unwrap();
    let _ = apic.current(&vcpu.enter(&mut idle, &mut Tlb));
}

/// Pages whose frame numbers show whether they may be used, and a host that moves them continuously.
struct Moving {
    /// The frame of each page: it moves among four.
    now: [AtomicU64; 4],
    /// Whether a frame is the page's.
    given: [[AtomicBool; 4]; 4],
}

impl Host for Moving {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let index = (hva.0 - HVA.0) >> PAGE_SHIFT;
        let pfn = Pfn(index * 4 + self.now[index as usize].load(SeqCst));
        Ok(HostPage { pfn, ..HostPage::PLAIN })
    }
}

impl Moving {
    fn moves(&self, index: usize) {
        let old = self.now[index].load(SeqCst);
        let new = (old + 1) % 4;
        self.given[index][new as usize].store(true, SeqCst);
        self.now[index].store(new, SeqCst);
        self.given[index][old as usize].store(false, SeqCst);
    }

    fn is_given(&self, pfn: Pfn) -> bool {
        self.given[(pfn.0 / 4) as usize][(pfn.0 % 4) as usize].load(SeqCst)
    }
}

#[test]
fn no_use_finds_a_frame_that_the_host_has_taken_back_while_pages_move() {
    let host = Moving { now: Default::default(), given: Default::default() };
    host.given.iter().for_each(|frames| frames[0].store(true, SeqCst));
    let vm = Vm::<Npt4, _>::builder(host).vcpus(2).build().unwrap();
    let mut idle = Idle::take().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), 4, HVA))).unwrap();
    let (over, uses, entries) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for gfn in 0..2 {
            let (vm, over, uses) = (&vm, &over, &uses);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut held = vm.memory().hold(&mut idle, Gfn(gfn), Access::Write).unwrap();
                while !over.load(SeqCst) {
                    if let Some(page) = held.write(&mut idle) {
                        (0..4).for_each(|_| assert!(vm.host().is_given(page.pfn()), "stale"));
                        uses.fetch_add(1, SeqCst);
                        continue;
                    }
                    held.refresh(&mut idle).unwrap();
                }
            });
            let entries = &entries;
            scope.spawn(move || {
                let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(gfn as u32)).unwrap());
                let mut held = vm.memory().hold_for_hardware(&mut idle, Gfn(gfn + 1), Access::Write).unwrap();
                while !over.load(SeqCst) {
                    held.refresh(&mut idle).unwrap();
                    let guest = vcpu.enter(&mut idle, &mut Tlb).poll();
                    if let Some(pfn) = held.current(&guest) {
                        for _ in 0..64 {
                            assert!(vm.host().is_given(pfn), "stale");
                            if guest.kicked() {
                                break;
                            }
                        }
                        entries.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        let moves = |first: usize, pages: usize, by_frame: bool| {
            let mut idle = Idle::take().unwrap();
            for round in 0..400 {
                let index = first + round % pages;
                let change = if by_frame {
                    vm.memory().invalidate(Span::sized(Gfn(index as u64), 1), Reason::Migrate)
                } else {
                    vm.invalidate(page(index as u64), Reason::Migrate)
                };
                let change = change.apply(&mut idle).settle();
                vm.host().moves(index);
                drop(change);
            }
        };
        let movers = [(0, 1, false), (1, 1, true), (2, 1, false)]
            .map(|(first, pages, by_frame)| scope.spawn(move || moves(first, pages, by_frame)));
        for mover in movers {
            mover.join().unwrap();
        }
        over.store(true, SeqCst);
    });
    assert!(uses.load(SeqCst) > 0 && entries.load(SeqCst) > 0);
}
