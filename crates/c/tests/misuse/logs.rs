//! Dirty logs and address spaces.

use super::*;

extern "C" fn tell(_: *mut c_void, _: *const slat_dirty_page) {}

#[test]
fn rings_are_asked_where_there_are_some_and_come_once() {
    let (thread, vm) = world(&HOST);
    let set = |flags, bytes| slat_set_dirty_log(Some(vm), Some(thread), flags, bytes);
    let ring = |id| out!(slat_ring_harvest_begin(Some(vm), Some(thread), id)).err();
    assert_eq!(
        (ring(0), out!(slat_rings_reset(Some(vm), Some(thread))).err()),
        (Some(SLAT_ENXIO), Some(SLAT_ENXIO))
    );
    assert_eq!(out!(slat_ring_not_reset(Some(vm), Some(thread), 0)).err(), Some(SLAT_ENXIO));
    assert_eq!([set(16, 0), set(SLAT_VM_NX_HUGE_PAGES, 0), set(0, 6000), set(0, 1 << 21)], [SLAT_EINVAL; 4]);
    assert_eq!(set(SLAT_VM_DIRTY_BITS, 0), SLAT_EINVAL, "how stores are noticed is for life");
    assert_eq!(set(SLAT_VM_DIRTY_INITIALLY_SET | SLAT_VM_DIRTY_SPLIT_LAZILY, 0), SLAT_OK);
    let taken = vcpu(vm, 0).unwrap();
    assert_eq!(set(0, 4096), SLAT_EINVAL, "there is a vCPU");
    assert_eq!(free(taken), SLAT_OK);
    assert_eq!([set(0, 4096), set(0, 8192), set(0, 0)], [SLAT_OK, SLAT_EINVAL, SLAT_EINVAL]);
    assert_eq!(ring(2), Some(SLAT_EINVAL), "no such vCPU");
    let log = slat_slot { flags: SLAT_SLOT_LOG_DIRTY, ..ram(0, 0).slot };
    assert_eq!(commit(vm, thread, &[op(slat_slot_op_kind::SLAT_SLOT_FLAGS, log)]), Ok(()));
    assert_eq!(out!(slat_harvest_begin(Some(vm), Some(thread), 0, 0)).err(), Some(SLAT_ENXIO));
    assert_eq!(out!(slat_ring_collect(Some(vm), Some(thread), 0, None, ptr::null_mut())), Err(SLAT_EINVAL));
    assert_eq!(out!(slat_ring_collect(Some(vm), Some(thread), 0, Some(tell), ptr::null_mut())), Ok(0));
    end(thread, vm);
}

#[test]
fn an_address_space_that_is_not_there_is_refused_and_changes_nothing() {
    let (thread, vm) = world(&HOST);
    let vcpu = vcpu(vm, 0).unwrap();
    let ram = ram(1, RAM);
    for space in [1, 255, 256, u32::MAX] {
        let mut failed = MaybeUninit::new(7_usize);
        // SAFETY: one operation.
        let status =
            unsafe { slat_slots_commit(Some(vm), Some(thread), space, &raw const ram, 1, Some(&mut failed)) };
        assert_eq!(status, SLAT_ENOENT);
        assert_eq!(out!(slat_slots_find(Some(vm), Some(thread), space, 0)), Err(SLAT_ENOENT));
        assert_eq!(out!(slat_translate(Some(vm), Some(thread), space, 0)), Err(SLAT_ENOENT));
        assert_eq!(out!(slat_harvest_begin(Some(vm), Some(thread), space, 0)).err(), Some(SLAT_ENOENT));
        assert_eq!(out!(slat_harvest_all_begin(Some(vm), Some(thread), space)).err(), Some(SLAT_ENOENT));
        assert_eq!(slat_vcpu_switch_to(Some(vcpu), space), SLAT_ENOENT);
    }
    assert_eq!(out!(slat_slots_find(Some(vm), Some(thread), 0, RAM)), Err(SLAT_ENOENT));
    assert_eq!(fault(vcpu, thread, 0x1000), Ok(slat_done::SLAT_MAPPED), "it is in space 0 still");
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}
