//! Every error of a dirty log: its type, its text, its number; and that a refused call changed nothing.

use super::subject::access;
use crate::common::identity::Identity;
use slat::table::formats::Npt4;
use slat::*;

const LOGS: SlotId = SlotId(1);
const SILENT: SlotId = SlotId(2);
const PAGES: u64 = 100;
const ENOENT: i32 = 2;
const ENXIO: i32 = 6;
const E2BIG: i32 = 7;
const EINVAL: i32 = 22;

type Vm = slat::Vm<Npt4, Identity>;

/// A slot that logs and whose every third page is dirty, and one that does not log.
fn vm(log: DirtyLog) -> (Idle, Vm) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::builder(Identity::default()).max_slots(8).dirty_log(log).build().unwrap();
    vm.memory()
        .commit(&mut idle, |tx| {
            tx.create(Slot::new(LOGS, Gfn(0), PAGES, Hva(0x4000_0000)).log_dirty())?;
            tx.create(Slot::new(SILENT, Gfn(0x1000), PAGES, Hva(0x5000_0000)))
        })
        .unwrap();
    (0..PAGES).step_by(3).for_each(|gfn| access(&vm, &mut idle, Gfn(gfn), Access::Write));
    (idle, vm)
}

fn bits(vm: &Vm, idle: &mut Idle) -> [u64; 2] {
    let mut bits = [0; 2];
    vm.memory().dirty_bits(idle, LOGS, &mut bits).unwrap();
    bits
}

/// The error, its text and its number, for each wrong call on a log.
fn refusals(vm: &Vm, idle: &mut Idle, id: SlotId) -> Vec<(DirtyError, String, i32)> {
    let slots = vm.memory();
    let mut room = [0; 2];
    let errors = [
        slots.harvest(idle, id).err(),
        slots.dirty_bits(idle, id, &mut room).err(),
        slots.clear_dirty(idle, id, 0, 64, &[u64::MAX]).err(),
        slots.dirty(idle, id, |gfn| panic!("{gfn:?} is visited")).err(),
    ];
    errors
        .into_iter()
        .map(|error| {
            let error = error.expect("refused");
            (error, error.to_string(), error.errno())
        })
        .collect()
}

#[test]
fn a_log_that_is_not_there_is_an_error() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    let before = bits(&vm, &mut idle);
    for (id, expected, errno) in [
        (SlotId(0), DirtyError::NoSuchSlot(SlotId(0)), ENOENT),
        (SlotId(7), DirtyError::NoSuchSlot(SlotId(7)), ENOENT),
        (SILENT, DirtyError::NotLogged(SILENT), ENOENT),
    ] {
        for (error, words, number) in refusals(&vm, &mut idle, id) {
            assert_eq!((error, number), (expected, errno));
            assert!(words.contains(&id.0.to_string()) && !words.contains('\n'), "{words}");
        }
    }
    for id in [SlotId(8), SlotId(u32::MAX)] {
        for (error, words, number) in refusals(&vm, &mut idle, id) {
            assert_eq!((error, number), (DirtyError::Id { id, limit: 8 }, EINVAL));
            assert!(words.contains(&id.0.to_string()) && words.contains('8'), "{words}");
        }
    }
    assert_eq!(bits(&vm, &mut idle), before);
}

#[test]
fn a_clear_out_of_rule_is_an_error_and_clears_nothing() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    let before = bits(&vm, &mut idle);
    let all = [u64::MAX; 4];
    for (first, pages) in [
        (1, 64),
        (63, 1),
        (0, 1),
        (0, 63),
        (0, 99),
        (0, 101),
        (0, 128),
        (64, 35),
        (64, 37),
        (64, 64),
        (128, 0),
        (128, 1),
        (1 << 40, 0),
        (u64::MAX, 0),
        (!63, 64),
        (64, u64::MAX),
        (0, u64::MAX),
        (!63, u64::MAX),
    ] {
        let refused = vm.memory().clear_dirty(&mut idle, LOGS, first, pages, &all).unwrap_err();
        let expected = if first.is_multiple_of(64) {
            DirtyError::Range { id: LOGS, first, pages, of: PAGES }
        } else {
            DirtyError::Misaligned { id: LOGS, first }
        };
        assert_eq!(refused, expected);
        assert_eq!(refused.errno(), EINVAL);
        assert!(!refused.to_string().contains('\n'), "{refused}");
        assert_eq!(bits(&vm, &mut idle), before, "{first} {pages}");
    }
    // A valid call, beside it.
    for (first, pages, cleared) in [(0, 0, 0), (64, 0, 0), (64, 36, 12), (0, 64, 22), (0, 100, 0)] {
        assert_eq!(
            vm.memory().clear_dirty(&mut idle, LOGS, first, pages, &all),
            Ok(cleared),
            "{first} {pages}"
        );
    }
    assert_eq!(bits(&vm, &mut idle), [0; 2]);
}

#[test]
fn too_little_room_for_the_bits_is_an_error() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    let before = bits(&vm, &mut idle);
    let slots = vm.memory();
    for words in 0..2 {
        let mut room = vec![7; words];
        let refused = slots.dirty_bits(&mut idle, LOGS, &mut room).unwrap_err();
        assert_eq!((refused, room), (DirtyError::Short { words, needed: 2 }, vec![7; words]));
        assert_eq!(slots.clear_dirty(&mut idle, LOGS, 0, PAGES, &vec![u64::MAX; words]), Err(refused));
        assert_eq!(refused.errno(), EINVAL);
        assert!(refused.to_string().contains('2'), "{refused}");
        assert_eq!(bits(&vm, &mut idle), before);
    }
    let mut room = [7; 3];
    assert_eq!(slots.dirty_bits(&mut idle, LOGS, &mut room), Ok(34));
    assert_eq!(room[..2], before, "more room than is needed is fine");
}

#[test]
fn bits_past_the_range_clear_nothing() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    let before = bits(&vm, &mut idle);
    // Of 100 pages the second word has 36.
    assert_eq!(vm.memory().clear_dirty(&mut idle, LOGS, 64, 36, &[!0 << 36, !0]), Ok(0));
    assert_eq!(bits(&vm, &mut idle), before);
}

#[test]
fn a_ring_has_a_size_by_the_rules() {
    for bytes in [4096, 8192, 1 << 16, 1 << 20] {
        let size = RingSize::new(bytes).unwrap();
        assert_eq!((size.entries(), size.soft_limit()), (bytes / 16, bytes / 16 - 64));
    }
    for (bytes, errno) in [
        (0, EINVAL),
        (16, EINVAL),
        (2048, EINVAL),
        (4095, EINVAL),
        (4097, EINVAL),
        (6144, EINVAL),
        ((1 << 20) - 16, EINVAL),
        (1 << 21, E2BIG),
        (1 << 31, E2BIG),
    ] {
        let refused = RingSize::new(bytes).unwrap_err();
        let expected =
            if errno == E2BIG { DirtyError::RingTooLarge(bytes) } else { DirtyError::RingSize(bytes) };
        assert_eq!((refused, refused.errno()), (expected, errno));
        assert!(refused.to_string().contains(&bytes.to_string()), "{refused}");
    }
}

#[test]
fn a_vm_with_rings_refuses_unknown_vcpus_and_bitmap_calls() {
    let (mut idle, vm) = vm(DirtyLog::ring(RingSize::new(4096).unwrap()));
    for vcpu in [1, u32::MAX] {
        let refused = vm.harvest_ring(&mut idle, VcpuId(vcpu)).unwrap_err();
        assert_eq!((refused, refused.errno()), (DirtyError::NoSuchVcpu(VcpuId(vcpu)), EINVAL));
    }
    for (error, words, number) in refusals(&vm, &mut idle, LOGS) {
        assert_eq!((error, number), (DirtyError::RingOnly, ENXIO));
        assert!(!words.is_empty() && !words.contains('\n'), "{words}");
    }
}

#[test]
fn a_vm_without_rings_has_none_to_harvest() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    let before = bits(&vm, &mut idle);
    for vcpu in [0, 1, u32::MAX] {
        let refused = vm.harvest_ring(&mut idle, VcpuId(vcpu)).unwrap_err();
        assert_eq!((refused, refused.errno()), (DirtyError::NoRing, ENXIO));
    }
    assert_eq!(bits(&vm, &mut idle), before);
}
