//! Calls on the memory of an address space as a whole: absent arguments, extreme ranges, tokens in use.

use super::*;

/// Page 0, dirty.
const FIRST: [u64; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

fn bits(
    vm: &'static slat_vm,
    thread: &slat_thread,
    id: u32,
    count: usize,
) -> Result<(u64, [u64; 8]), slat_status> {
    let mut words = [0xdead; 8];
    out!(slat_dirty_bits(Some(vm), Some(thread), 0, id, words.as_mut_ptr(), count))
        .map(|pages| (pages, words))
}

fn clear(
    vm: &'static slat_vm,
    thread: &slat_thread,
    (first, pages): (u64, u64),
    count: usize,
) -> Result<u64, slat_status> {
    out!(slat_dirty_clear(Some(vm), Some(thread), 0, 0, first, pages, FIRST.as_ptr(), count))
}

fn mark(
    vm: &'static slat_vm,
    thread: &slat_thread,
    first: u64,
    words: *const u64,
    count: usize,
) -> slat_status {
    // SAFETY: as many words, or refused.
    unsafe { slat_dirty_mark(Some(vm), Some(thread), 0, 0, first, words, count) }
}

fn log(vm: &'static slat_vm, thread: &slat_thread) {
    let log = slat_slot { flags: SLAT_SLOT_LOG_DIRTY, ..ram(0, 0).slot };
    assert_eq!(commit(vm, thread, &[op(slat_slot_op_kind::SLAT_SLOT_FLAGS, log)]), Ok(()));
}

#[test]
fn words_that_are_absent_misaligned_or_too_few_are_refused() {
    let (thread, vm) = world(&HOST);
    assert_eq!(
        [bits(vm, thread, 0, 8).err(), bits(vm, thread, 9, 8).err()],
        [Some(SLAT_ENOENT); 2],
        "no log, no slot"
    );
    assert_eq!(mark(vm, thread, 0, FIRST.as_ptr(), 8), SLAT_ENOENT);
    log(vm, thread);
    let (absent, odd) = (ptr::null_mut::<u64>(), ptr::without_provenance_mut::<u64>(1));
    for words in [absent, odd] {
        for count in [0, 1, 8, usize::MAX] {
            assert_eq!(out!(slat_dirty_bits(Some(vm), Some(thread), 0, 0, words, count)), Err(SLAT_EINVAL));
            assert_eq!(
                out!(slat_dirty_clear(Some(vm), Some(thread), 0, 0, 0, 64, words, count)),
                Err(SLAT_EINVAL)
            );
            assert_eq!(mark(vm, thread, 0, words, count), SLAT_EINVAL);
        }
    }
    for count in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8 + 1] {
        assert_eq!(
            (bits(vm, thread, 0, count).err(), clear(vm, thread, (0, 64), count)),
            (Some(SLAT_EINVAL), Err(SLAT_EINVAL))
        );
        assert_eq!(mark(vm, thread, 0, FIRST.as_ptr(), count), SLAT_EINVAL);
    }
    assert_eq!(
        [bits(vm, thread, 0, 0).err(), bits(vm, thread, 0, 7).err()],
        [Some(SLAT_EINVAL); 2],
        "no room"
    );
    assert_eq!(mark(vm, thread, 0, FIRST.as_ptr(), 0), SLAT_OK);
    assert_eq!(bits(vm, thread, 0, 8), Ok((0, [0; 8])));
    end(thread, vm);
}

#[test]
fn ranges_of_a_log_that_wrap_or_pass_its_end_clear_nothing() {
    let (thread, vm) = world(&HOST);
    log(vm, thread);
    let vcpu = vcpu(vm, 0).unwrap();
    assert_eq!(fault(vcpu, thread, 0), Ok(slat_done::SLAT_MAPPED));
    let last = !63;
    for range in [(1, 64), (0, 1), (0, 576), (512, 64), (last, 64), (last, 128), (64, !63), (0, u64::MAX)] {
        assert_eq!(clear(vm, thread, range, 8), Err(SLAT_EINVAL), "{range:x?}");
    }
    assert_eq!(clear(vm, thread, (0, 512), 7), Err(SLAT_EINVAL), "too few words");
    for first in [1, 576, last] {
        assert_eq!(mark(vm, thread, first, FIRST.as_ptr(), 8), SLAT_EINVAL, "{first:x}");
    }
    assert_eq!(mark(vm, thread, 512, FIRST.as_ptr(), 8), SLAT_OK, "past the end: ignored");
    assert_eq!(bits(vm, thread, 0, 8), Ok((1, FIRST)));
    assert_eq!([clear(vm, thread, (512, 0), 0), clear(vm, thread, (0, 0), 8)], [Ok(0); 2]);
    assert_eq!([clear(vm, thread, (0, 512), 8), clear(vm, thread, (0, 512), 8)], [Ok(1), Ok(0)]);
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}

#[test]
fn guest_ranges_that_wrap_are_empty_or_unaligned_are_refused() {
    let (thread, vm) = world(&HOST);
    for (gpa, bytes) in
        [(0, 0), (1, 4096), (0, 1), (!4095, 4096), (!4095, 8192), (4096, !4095), (u64::MAX, u64::MAX)]
    {
        let seen = [
            slat_write_protect(Some(vm), Some(thread), 0, gpa, bytes),
            out!(slat_split(Some(vm), Some(thread), 0, gpa, bytes, 1)).err().unwrap_or(SLAT_OK),
            out!(slat_recover(Some(vm), Some(thread), 0, gpa, bytes)).err().unwrap_or(SLAT_OK),
        ];
        assert_eq!(seen, [SLAT_EINVAL; 3], "{gpa:x} {bytes:x}");
    }
    let most = !4095;
    assert_eq!(slat_write_protect(Some(vm), Some(thread), 0, 0, most), SLAT_OK);
    assert_eq!(out!(slat_split(Some(vm), Some(thread), 0, 0, most, 1)), Ok(0));
    assert_eq!(out!(slat_recover(Some(vm), Some(thread), 0, 0, most)), Ok(0));
    for level in [0, 255, 256, 257, u32::MAX] {
        assert_eq!(out!(slat_split(Some(vm), Some(thread), 0, 0, 2 << 20, level)), Err(SLAT_EINVAL));
    }
    for space in [1, 255, 256, u32::MAX] {
        assert_eq!(slat_write_protect(Some(vm), Some(thread), space, 0, 4096), SLAT_ENOENT);
        assert_eq!(out!(slat_split(Some(vm), Some(thread), space, 0, 4096, 1)), Err(SLAT_ENOENT));
        assert_eq!(out!(slat_recover(Some(vm), Some(thread), space, 0, 4096)), Err(SLAT_ENOENT));
    }
    end(thread, vm);
}

#[test]
fn a_thread_whose_vcpu_is_in_the_guest_changes_no_memory() {
    let (thread, vm) = world(&HOST);
    log(vm, thread);
    let vcpu = vcpu(vm, 0).unwrap();
    assert_eq!(fault(vcpu, thread, 0), Ok(slat_done::SLAT_MAPPED));
    out!(slat_vcpu_enter(Some(vcpu), Some(thread), 0)).unwrap();
    let refused = || {
        [
            bits(vm, thread, 0, 8).err(),
            clear(vm, thread, (0, 512), 8).err(),
            Some(mark(vm, thread, 0, FIRST.as_ptr(), 8)),
            Some(slat_write_protect(Some(vm), Some(thread), 0, 0, 4096)),
            out!(slat_split(Some(vm), Some(thread), 0, 0, 4096, 1)).err(),
            out!(slat_recover(Some(vm), Some(thread), 0, 0, 4096)).err(),
            Some(slat_zap_all(Some(vm), Some(thread))),
            out!(slat_shrink(Some(vm), Some(thread))).err(),
        ]
    };
    assert_eq!(refused(), [Some(SLAT_EBUSY); 8]);
    // Another thread's call waits until the vCPU has left.
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let own = out!(slat_thread_new()).unwrap();
            // SAFETY: live until it is freed.
            let token = unsafe { &*own };
            let done = [
                slat_write_protect(Some(vm), Some(token), 0, 0, 4096),
                slat_zap_all(Some(vm), Some(token)),
                out!(slat_shrink(Some(vm), Some(token))).err().unwrap_or(SLAT_OK),
            ];
            // SAFETY: not used any more.
            (done, unsafe { slat_thread_free(own) })
        });
        while !slat_vcpu_kicked(Some(vcpu)) {}
        assert_eq!(slat_vcpu_leave(Some(vcpu)), SLAT_OK);
        assert_eq!(other.join().unwrap(), ([SLAT_OK; 3], SLAT_OK));
    });
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}

#[test]
fn absent_handles_are_refused() {
    let (thread, vm) = world(&HOST);
    log(vm, thread);
    let mut words = [0; 8];
    assert_eq!(out!(slat_dirty_bits(None, Some(thread), 0, 0, words.as_mut_ptr(), 8)), Err(SLAT_EINVAL));
    assert_eq!(out!(slat_dirty_bits(Some(vm), None, 0, 0, words.as_mut_ptr(), 8)), Err(SLAT_EINVAL));
    // SAFETY: as many words.
    unsafe {
        assert_eq!(slat_dirty_bits(Some(vm), Some(thread), 0, 0, words.as_mut_ptr(), 8, None), SLAT_EINVAL);
        assert_eq!(
            slat_dirty_clear(Some(vm), Some(thread), 0, 0, 0, 512, words.as_ptr(), 8, None),
            SLAT_EINVAL
        );
        assert_eq!(slat_dirty_mark(None, Some(thread), 0, 0, 0, words.as_ptr(), 8), SLAT_EINVAL);
    }
    assert_eq!(
        [slat_write_protect(None, Some(thread), 0, 0, 4096), slat_write_protect(Some(vm), None, 0, 0, 4096)],
        [SLAT_EINVAL; 2]
    );
    assert_eq!([slat_zap_all(None, Some(thread)), slat_zap_all(Some(vm), None)], [SLAT_EINVAL; 2]);
    assert_eq!(
        [
            slat_split(Some(vm), Some(thread), 0, 0, 4096, 1, None),
            slat_recover(Some(vm), Some(thread), 0, 0, 4096, None),
            slat_shrink(Some(vm), Some(thread), None)
        ],
        [SLAT_EINVAL; 3]
    );
    end(thread, vm);
}
