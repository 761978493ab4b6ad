//! Correct sequences of which a specification that is too strict would report something.

use crate::machine::{Fixture, Machine, RAM, Settings, Tlb, hvas, page, reports_in};
use slat::entry::Go;
use slat::table::formats::Ept4;
use slat::*;

const VCPU: VcpuId = VcpuId(0);

/// A sequence: its name, the settings of its VM, and what happens.
type Sequence = (&'static str, Settings, fn(&mut Fixture<'_>));

const CASES: &[Sequence] = &[
    ("a large page is told that the guest has in small pages", small, told_as_it_was),
    ("a part of a large page is told, whose frame another address had", small, told_in_place),
    ("the VMM empties a vCPU's ring, and then the bitmaps", rings, empties_a_ring),
    (
        "so in a VM that gets its rings later",
        |vm| vm.dirty_log(DirtyLog::bitmap()),
        |fixture| {
            fixture.vm.set_dirty_log(fixture.idle, ring()).unwrap();
            empties_a_ring(fixture);
        },
    ),
    ("a software vCPU polls every hundred accesses", |vm| vm, polls_seldom),
    ("the VMM loads a root when all translations are forgotten", |vm| vm, loads_at_a_flush),
];

fn small<F: Format, H: Host>(vm: Builder<F, H>) -> Builder<F, H> {
    vm.max_page(Level::K4)
}

fn rings<F: Format, H: Host>(vm: Builder<F, H>) -> Builder<F, H> {
    vm.dirty_log(ring())
}

fn ring() -> DirtyLog {
    DirtyLog::ring(RingSize::new(4096).unwrap())
}

fn large(pfn: u64, writable: bool) -> HostPage {
    HostPage { level: Level::M2, writable, ..page(pfn) }
}

/// The guest reads frame 5, whose mapping has not gone.
fn reads_frame_5(fixture: &mut Fixture<'_>, vcpu: &mut Vcpu<'_, Ept4, Machine>) {
    let leaf = fixture.vm.memory().translate(fixture.idle, Gfn(5)).expect("mapped").leaf;
    assert_eq!(leaf.pfn, Pfn(0x8005));
    vcpu.enter(fixture.idle, &mut Tlb(0)).poll().uses(Gfn(5), leaf.pfn, Access::Read);
}

fn told_as_it_was(fixture: &mut Fixture<'_>) {
    let (vm, all) = (fixture.vm, Span::sized(RAM, 2 << 20));
    (0..512).for_each(|gfn| fixture.set(gfn, large(0x8000 + gfn, true)));
    fixture.ask(5, Access::Write);
    vm.change_pages(fixture.idle, all, PageWhy::ChangePte, |idle, pages| {
        pages.changed(idle, all, Some(large(0x8000, true)));
    });
    reads_frame_5(fixture, &mut vm.vcpu(VCPU).unwrap());
}

fn told_in_place(fixture: &mut Fixture<'_>) {
    let vm = fixture.vm;
    let read_only = |pfn| HostPage { writable: false, ..page(pfn) };
    fixture.set(5, read_only(0x9005));
    fixture.set(700, read_only(0x8005));
    let mut vcpu = vm.vcpu(VCPU).unwrap();
    for gfn in [5, 700] {
        let _ = vcpu.fault(fixture.idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
    }
    fixture.change(700, Why::Unmap, |host| host.set(700, None));
    vm.change_pages(fixture.idle, hvas(5), PageWhy::ChangePte, |idle, pages| {
        vm.host().set(5, large(0x8005, false));
        pages.changed(idle, hvas(5), Some(large(0x8005, false)));
    });
    reads_frame_5(fixture, &mut vcpu);
}

fn empties_a_ring(fixture: &mut Fixture<'_>) {
    let (vm, idle) = (fixture.vm, &mut *fixture.idle);
    vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
    let mut vcpu = vm.vcpu(VCPU).unwrap();
    let _ = vcpu.fault(idle, Fault { gpa: Gfn(5).gpa(), access: Access::Write }).unwrap();
    vcpu.enter(idle, &mut Tlb(0)).poll().uses(Gfn(5), Pfn(0x9005), Access::Write);
    vm.harvest_ring(idle, VCPU).unwrap().commit();
    vm.memory().harvest_all(idle).unwrap().commit();
}

fn polls_seldom(fixture: &mut Fixture<'_>) {
    let (vm, mut vcpu) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap());
    let _ = vcpu.fault(fixture.idle, Fault { gpa: Gfn(5).gpa(), access: Access::Read }).unwrap();
    let mut guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
    for _ in 0..50 {
        crate::vcpus::beside(|idle| notify::SecondaryMmu::forget(vm, idle, hvas(5)));
        (0..100).for_each(|_| guest.uses(Gfn(5), Pfn(0x9005), Access::Read));
        guest.answer(&mut Tlb(0));
    }
}

/// Translations that remember whether all were forgotten.
struct Forgets(bool);

impl Translations for Forgets {
    fn flush_all(&mut self) {
        self.0 = true;
    }
    fn flush(&mut self, _: Span<Gfn>) {}
}

fn loads_at_a_flush(fixture: &mut Fixture<'_>) {
    let (vm, mut vcpu, mut tlb) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap(), Forgets(false));
    for is_zapped in [false, true, false] {
        let ready = vcpu.enter(fixture.idle, &mut tlb);
        if std::mem::take(&mut tlb.0) {
            let _control_block = ready.root();
        }
        let Go::In(mut guest, ()) = ready.go(|| ()) else { panic!("nothing kicks") };
        std::thread::scope(|scope| {
            let zap = is_zapped.then(|| scope.spawn(|| vm.zap_all(&mut Idle::take().unwrap()).unwrap()));
            while zap.as_ref().is_some_and(|zap| !zap.is_finished()) {
                if guest.kicked() {
                    guest.answer(&mut tlb);
                    let _control_block = std::mem::take(&mut tlb.0).then(|| guest.root());
                }
            }
        });
    }
}

pub fn check() {
    for (name, settings, sequence) in CASES {
        assert_eq!(reports_in(*settings, sequence), [], "{name}");
    }
}
