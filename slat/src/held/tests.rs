use crate::table::formats::Npt4;
use crate::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;

const HVA: Hva = Hva(1 << 30);

/// A host whose frame numbers are its addresses, with or without broadcast flushes.
struct Machine {
    broadcasts: bool,
}

impl Host for Machine {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        self.broadcasts
    }
}

struct Tlb;

impl Translations for Tlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

fn vm(idle: &mut Idle, broadcasts: bool) -> Vm<Npt4, Machine> {
    let vm = Vm::builder(Machine { broadcasts }).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, HVA).log_dirty())).unwrap();
    vm
}

/// A vCPU is in the guest with a frame in its control block, which no leaf maps, and the host takes the page. Returns
/// whether the vCPU was kicked before the flush was settled, and must ask for the frame again.
fn kicked(broadcasts: bool) -> bool {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, broadcasts);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let apic = vm.memory().hold_for_hardware(&mut idle, Gfn(7), Access::Write).unwrap();
    let (inside, settled) = (channel(), AtomicBool::new(false));
    thread::scope(|scope| {
        let (vm, settled) = (&vm, &settled);
        scope.spawn(move || {
            inside.1.recv().unwrap();
            let page = Span::sized(HVA + 0x7000, 0x1000);
            let change = vm.invalidate(page, Reason::Unmap).apply(&mut Idle::take().unwrap()).settle();
            drop(change);
            settled.store(true, SeqCst);
        });
        let ready = vcpu.enter(&mut idle, &mut Tlb);
        assert_eq!(apic.current(&ready), Some(Pfn(0x4_0007)));
        let mut guest = ready.poll();
        inside.0.send(()).unwrap();
        while !guest.kicked() && !settled.load(SeqCst) {
            thread::yield_now();
        }
        let kicked = guest.kicked() && !settled.load(SeqCst);
        guest.answer(&mut Tlb);
        kicked && apic.current(&guest).is_none()
    })
}

#[test]
fn a_vcpu_whose_hardware_has_the_frame_is_kicked_though_nothing_is_mapped() {
    assert!(kicked(false) && kicked(true));
}

#[test]
fn a_frame_that_was_written_is_dirty() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, false);
    let mut clock = vm.memory().hold(&mut idle, Gfn(5), Access::Write).unwrap();
    drop(clock.read(&mut idle).unwrap());
    assert!(!vm.memory().is_dirty(Gfn(5)), "it was read");
    let page = clock.write(&mut idle).unwrap();
    assert!(!vm.memory().is_dirty(Gfn(5)), "who harvests now would miss what comes");
    drop(page);
    assert!(vm.memory().is_dirty(Gfn(5)), "not marked after the use");
}

/// A use that writes is leaked, then `next` happens to its frame. Returns whether the page is dirty afterwards.
fn marked_after_leak(next: impl FnOnce(Held<'_, Npt4, Machine>, &mut Idle)) -> bool {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, false);
    let mut clock = vm.memory().hold(&mut idle, Gfn(5), Access::Write).unwrap();
    std::mem::forget(clock.write(&mut idle).unwrap());
    assert!(!vm.memory().is_dirty(Gfn(5)));
    next(clock, &mut idle);
    let _change = vm.invalidate(Span::sized(HVA + 0x5000, 0x1000), Reason::Unmap).apply(&mut idle).settle();
    vm.memory().is_dirty(Gfn(5))
}

#[test]
fn a_leaked_use_that_wrote_marks_the_page_when_it_ends() {
    assert!(marked_after_leak(|mut held, idle| drop(held.read(idle))), "the next use");
    assert!(marked_after_leak(|mut held, idle| drop(held.write(idle))));
    assert!(marked_after_leak(|mut held, idle| held.refresh(idle).unwrap()));
    assert!(marked_after_leak(|held, _| drop(held)));
}

#[test]
fn a_leaked_use_marks_once_and_one_that_reads_never() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, false);
    let mut apic = vm.memory().hold_for_hardware(&mut idle, Gfn(7), Access::Write).unwrap();
    let harvested = |idle: &mut Idle| {
        let harvest = vm.memory().harvest(idle, SlotId(0)).unwrap();
        let pages = harvest.pages();
        harvest.commit();
        pages
    };
    std::mem::forget(apic.write(&mut idle).unwrap());
    apic.refresh(&mut idle).unwrap();
    assert_eq!(harvested(&mut idle), 1);
    std::mem::forget(apic.read(&mut idle).unwrap());
    apic.refresh(&mut idle).unwrap();
    assert_eq!(harvested(&mut idle), 0);
    // The write that is refused wrote nothing.
    let change = vm.invalidate(Span::sized(HVA + 0x7000, 0x1000), Reason::Unmap).apply(&mut idle).settle();
    assert!(apic.write(&mut idle).is_none());
    drop((change, apic));
    assert_eq!(harvested(&mut idle), 0);
}

struct Unheard;

impl WriteListener for Unheard {}

#[test]
fn a_frame_whose_stores_are_tracked_is_not_held_to_write() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, false);
    let mut clock = vm.memory().hold(&mut idle, Gfn(5), Access::Write).unwrap();
    let mut other = vm.memory().hold(&mut idle, Gfn(5), Access::Read).unwrap();
    let tracking =
        vm.memory().track_writes(&mut idle, Span::sized(Gfn(5), 1), std::sync::Arc::new(Unheard)).unwrap();
    assert!(clock.write(&mut idle).is_none());
    assert_eq!(clock.refresh(&mut idle), Err(HoldError::Tracked));
    assert!(other.refresh(&mut idle).is_ok() && other.read(&mut idle).is_some(), "loads go on");
    drop(tracking);
    assert!(clock.refresh(&mut idle).is_ok() && clock.write(&mut idle).is_some());
}
