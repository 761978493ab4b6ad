//! Misuse from C, and its errors. In Rust most of this does not compile.
//!
//! The promises to C programs; a test without a path is in this file:
//!
//! | claim | test |
//! |---|---|
//! | a null pointer, an unknown number, a misaligned range is an error | `null_pointers_and_unknown_numbers_are_refused` |
//! | a VM is not freed before its vCPUs, invalidations and harvests | `a_vm_outlives_what_was_made_from_it` |
//! | a vCPU in the guest does not fault, and its thread does not wait | `a_vcpu_in_the_guest_does_nothing_else_and_neither_does_its_thread` |
//! | only its own thread uses a token, in one call at a time | `a_token_is_its_thread_s_own`, `a_host_calls_slat_with_the_token_that_it_was_given_and_no_other` |
//! | the answers of a host are checked | `a_host_s_answers_are_checked` |
//! | no panic crosses the boundary | `no_panic_crosses_the_boundary` in `crates/c/src/status.rs` |
//! | pages that move under a guest in C lose no store, and would without flushes | `crates/c/examples/hypervisor.c`, `--no-flush`, under valgrind |
//! | in C: a held frame is never stale, no wake-up is lost, each tracked store is told | `crates/c/examples/races.c`, `--stale`, `--no-ready`, `--untold`, under valgrind |

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use slat_c::slat_status::*;
use slat_c::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Calls a function that fills an argument. Returns the argument if the status is `SLAT_OK`.
macro_rules! out {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        let mut out = MaybeUninit::uninit();
        #[allow(unused_unsafe, reason = "some are safe")]
        // SAFETY: handles are live, and functions do what they should.
        let status = unsafe { $call($($argument,)* Some(&mut out)) };
        // SAFETY: filled, as the status shows.
        if status == SLAT_OK { Ok(unsafe { out.assume_init() }) } else { Err(status) }
    }};
}

#[path = "misuse/frames.rs"]
mod frames;
#[path = "misuse/logs.rs"]
mod logs;
#[path = "misuse/space_memory.rs"]
mod space_memory;

const RAM: u64 = 1 << 30;

extern "C" fn resolve(
    _: *mut c_void,
    _: *const slat_thread,
    hva: u64,
    _: u32,
    page: *mut slat_page,
) -> slat_status_raw {
    // SAFETY: slat's own page.
    unsafe { *page = slat_page { pfn: hva >> 12, level: 0, flags: SLAT_PAGE_WRITE, memory: 0 } };
    SLAT_OK as u32
}

extern "C" fn flush_all(_: *mut c_void) {}

const HOST: slat_host = slat_host {
    size: size_of::<slat_host>(),
    user: ptr::null_mut(),
    resolve: Some(resolve),
    lookup: None,
    token: None,
    kick: None,
    broadcast_flush: None,
    observe: None,
    alloc_tables: None,
    free_tables: None,
    table_offset: 0,
};
const CONFIG: slat_config = slat_config {
    size: size_of::<slat_config>(),
    format: 0,
    vcpus: 2,
    address_bits: 0,
    max_level: 0,
    max_slots: 0,
    flags: 0,
    address_spaces: 1,
    ring_bytes: 0,
    table_budget: 0,
};
const TLB: slat_tlb = slat_tlb { user: ptr::null_mut(), flush_all: Some(flush_all), flush: None };

fn op(kind: slat_slot_op_kind, slot: slat_slot) -> slat_slot_op {
    slat_slot_op { kind: kind as u32, slot, private_hva: 0, rest: 0 }
}

fn ram(id: u32, gpa: u64) -> slat_slot_op {
    op(
        slat_slot_op_kind::SLAT_SLOT_CREATE,
        slat_slot { id, flags: 0, gpa, bytes: 2 << 20, hva: RAM, memory: 0 },
    )
}

/// Makes a thread's token, and a VM of this host with 2 MiB of memory.
fn world(host: &slat_host) -> (&'static slat_thread, &'static slat_vm) {
    let thread = out!(slat_thread_new()).unwrap();
    let vm = out!(slat_vm_new(Some(&CONFIG), Some(host))).unwrap();
    // SAFETY: live until `end`.
    let (thread, vm) = unsafe { (&*thread, &*vm) };
    assert_eq!(commit(vm, thread, &[ram(0, 0)]), Ok(()));
    (thread, vm)
}

fn end(thread: &'static slat_thread, vm: &'static slat_vm) {
    // SAFETY: made by `world`, and not used any more.
    unsafe {
        assert_eq!(slat_vm_free(ptr::from_ref(vm).cast_mut()), SLAT_OK);
        assert_eq!(slat_thread_free(ptr::from_ref(thread).cast_mut()), SLAT_OK);
    }
}

/// Runs operations. The error has the number of the refused operation, and the status.
fn commit(
    vm: &'static slat_vm,
    thread: &slat_thread,
    ops: &[slat_slot_op],
) -> Result<(), (usize, slat_status)> {
    let mut failed = MaybeUninit::new(usize::MAX);
    // SAFETY: as many operations.
    let status =
        unsafe { slat_slots_commit(Some(vm), Some(thread), 0, ops.as_ptr(), ops.len(), Some(&mut failed)) };
    // SAFETY: initialised above.
    if status == SLAT_OK { Ok(()) } else { Err((unsafe { failed.assume_init() }, status)) }
}

fn vcpu(vm: &'static slat_vm, id: u32) -> Result<&'static slat_vcpu, slat_status> {
    // SAFETY: live until it is freed.
    out!(slat_vcpu_new(Some(vm), id, Some(&TLB))).map(|vcpu| unsafe { &*vcpu })
}

fn free(vcpu: &'static slat_vcpu) -> slat_status {
    // SAFETY: live, and not used any more where this succeeds.
    unsafe { slat_vcpu_free(ptr::from_ref(vcpu).cast_mut()) }
}

fn fault(vcpu: &slat_vcpu, thread: &slat_thread, gpa: u64) -> Result<slat_done, slat_status> {
    out!(slat_vcpu_fault(Some(vcpu), Some(thread), gpa, slat_access::SLAT_WRITE as u32))
}

#[test]
fn a_vcpu_that_does_not_answer_is_named() {
    let (thread, vm) = world(&HOST);
    let vcpu = vcpu(vm, 1).unwrap();
    let mut rows = [slat_unanswered { vcpu: 9, since: 9, flushes: 9 }; 2];
    let mut list =
        |room: usize| out!(slat_vm_unanswered(Some(vm), rows.as_mut_ptr(), room)).map(|all| (all, rows[0]));
    out!(slat_vcpu_enter(Some(vcpu), Some(thread), 0)).unwrap();
    assert_eq!(list(2).unwrap().0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let own = out!(slat_thread_new()).unwrap();
            // SAFETY: live until it is freed.
            assert_eq!(slat_forget(Some(vm), Some(unsafe { &*own }), RAM, 4096), SLAT_OK);
            // SAFETY: not used any more.
            assert_eq!(unsafe { slat_thread_free(own) }, SLAT_OK);
        });
    });
    assert_eq!(list(0).map(|(all, row)| (all, row.vcpu)), Ok((1, 9)), "no room");
    let (all, row) = list(2).unwrap();
    assert_eq!((all, row.vcpu, row.since, row.flushes), (1, 1, 1, 1));
    let null = ptr::null_mut();
    assert_eq!(out!(slat_vm_unanswered(Some(vm), null, 1)), Err(SLAT_EINVAL));
    assert_eq!(slat_vcpu_leave(Some(vcpu)), SLAT_OK);
    assert_eq!(list(2).unwrap().0, 0);
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}

#[test]
fn null_pointers_and_unknown_numbers_are_refused() {
    let (thread, vm) = world(&HOST);
    let vcpu = vcpu(vm, 0).unwrap();
    // SAFETY: null is allowed to be handed over.
    unsafe {
        assert_eq!(slat_thread_new(None), SLAT_EINVAL);
        assert_eq!(slat_thread_free(ptr::null_mut()), SLAT_EINVAL);
        assert_eq!(slat_vm_free(ptr::null_mut()), SLAT_EINVAL);
        assert_eq!(slat_vcpu_free(ptr::null_mut()), SLAT_EINVAL);
        assert_eq!(slat_invalidate_end(ptr::null_mut()), SLAT_EINVAL);
        assert_eq!(slat_harvest_commit(ptr::null_mut()), SLAT_EINVAL);
        assert_eq!(slat_harvest_fail(ptr::null_mut()), SLAT_EINVAL);
        assert_eq!(slat_slots_commit(Some(vm), Some(thread), 0, ptr::null(), 1, None), SLAT_EINVAL);
    }
    assert_eq!(out!(slat_vm_new(None, Some(&HOST))).err(), Some(SLAT_EINVAL));
    assert_eq!(out!(slat_vm_new(Some(&CONFIG), None)).err(), Some(SLAT_EINVAL));
    assert_eq!(out!(slat_vm_stats(None)).err(), Some(SLAT_EINVAL));
    assert_eq!(slat_vcpu_leave(None), SLAT_EINVAL);
    assert!(!slat_vcpu_kicked(None));
    for config in [
        slat_config { size: 0, ..CONFIG },
        slat_config { format: 14, ..CONFIG },
        slat_config { vcpus: u32::MAX, ..CONFIG },
        slat_config { max_level: 4, ..CONFIG },
        slat_config { flags: 16, ..CONFIG },
        slat_config { address_spaces: 256, ..CONFIG },
        slat_config { ring_bytes: 6000, ..CONFIG },
    ] {
        assert_eq!(out!(slat_vm_new(Some(&config), Some(&HOST))).err(), Some(SLAT_EINVAL), "{config:?}");
    }
    for host in [
        slat_host { size: 0, ..HOST },
        slat_host { resolve: None, ..HOST },
        slat_host { table_offset: 1, ..HOST },
    ] {
        assert_eq!(out!(slat_vm_new(Some(&CONFIG), Some(&host))).err(), Some(SLAT_EINVAL), "{host:?}");
    }
    assert_eq!(out!(slat_vcpu_fault(Some(vcpu), Some(thread), 0, 3)), Err(SLAT_EINVAL));
    let unmap = slat_why::SLAT_UNMAP as u32;
    for (hva, bytes, why) in
        [(1, 4096, unmap), (0, 1, unmap), (0, 0, unmap), (4096, 0xffff_ffff_ffff_f000, unmap)]
    {
        assert_eq!(out!(slat_invalidate_begin(Some(vm), hva, bytes, why)).err(), Some(SLAT_EINVAL));
    }
    assert_eq!(out!(slat_invalidate_begin(Some(vm), 0, 4096, 11)).err(), Some(SLAT_EINVAL), "a memslot's");
    assert_eq!(out!(slat_young(Some(vm), Some(thread), RAM, 4096, 3)), Err(SLAT_EINVAL));
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}

#[test]
fn a_vm_outlives_what_was_made_from_it() {
    let (thread, vm) = world(&HOST);
    let handle = ptr::from_ref(vm).cast_mut();
    // SAFETY: live, and refused.
    let refused = || unsafe { slat_vm_free(handle) } == SLAT_EBUSY;
    let vcpu = vcpu(vm, 1).unwrap();
    assert!(refused());
    assert_eq!(free(vcpu), SLAT_OK);
    let change = out!(slat_invalidate_begin(Some(vm), RAM, 4096, 0)).unwrap();
    assert!(refused());
    // SAFETY: live.
    assert_eq!(unsafe { slat_invalidate_end(change) }, SLAT_OK);
    let log =
        op(slat_slot_op_kind::SLAT_SLOT_FLAGS, slat_slot { flags: SLAT_SLOT_LOG_DIRTY, ..ram(0, 0).slot });
    assert_eq!(
        out!(slat_harvest_begin(Some(vm), Some(thread), 0, 0)).err(),
        Some(SLAT_ENOENT),
        "it does not log"
    );
    assert_eq!(commit(vm, thread, &[log]), Ok(()));
    let harvest = out!(slat_harvest_begin(Some(vm), Some(thread), 0, 0)).unwrap();
    assert!(refused());
    // SAFETY: live.
    assert_eq!(unsafe { slat_harvest_commit(harvest) }, SLAT_OK);
    end(thread, vm);
}

#[test]
fn a_vcpu_in_the_guest_does_nothing_else_and_neither_does_its_thread() {
    let (thread, vm) = world(&HOST);
    let vcpu0 = vcpu(vm, 0).unwrap();
    assert_eq!(vcpu(vm, 0).err(), Some(SLAT_EBUSY), "one of each number");
    assert_eq!(vcpu(vm, 2).err(), Some(SLAT_ENOENT));
    assert_eq!(slat_vcpu_leave(Some(vcpu0)), SLAT_EBUSY, "it is out");
    assert!(out!(slat_vcpu_answer(Some(vcpu0))) == Err(SLAT_EBUSY) && !slat_vcpu_kicked(Some(vcpu0)));

    let root = out!(slat_vcpu_enter(Some(vcpu0), Some(thread), 7)).unwrap();
    assert_eq!(out!(slat_vcpu_enter(Some(vcpu0), Some(thread), 7)), Err(SLAT_EBUSY));
    assert_eq!(fault(vcpu0, thread, 0x1000), Err(SLAT_EBUSY));
    assert_eq!(free(vcpu0), SLAT_EBUSY);
    assert_eq!(commit(vm, thread, &[ram(1, RAM)]), Err((usize::MAX, SLAT_EBUSY)), "it would wait for itself");
    // SAFETY: live, and refused.
    assert_eq!(unsafe { slat_thread_free(ptr::from_ref(thread).cast_mut()) }, SLAT_EBUSY);
    let other = ptr::from_ref(vcpu0) as usize;
    thread::spawn(move || {
        // SAFETY: live.
        let vcpu0 = unsafe { &*(other as *const slat_vcpu) };
        assert_eq!(slat_vcpu_leave(Some(vcpu0)), SLAT_EPERM);
    })
    .join()
    .unwrap();
    assert_eq!(out!(slat_vcpu_answer(Some(vcpu0))), Ok(root));
    assert_eq!(slat_vcpu_leave(Some(vcpu0)), SLAT_OK);
    assert_eq!(fault(vcpu0, thread, 0x1000), Ok(slat_done::SLAT_MAPPED));
    assert_eq!(free(vcpu0), SLAT_OK);
    end(thread, vm);
}

#[test]
fn a_token_is_its_thread_s_own() {
    let (thread, vm) = world(&HOST);
    assert_eq!(out!(slat_thread_new()).err(), Some(SLAT_EBUSY), "one for each thread");
    let (token, memory) = (ptr::from_ref(thread) as usize, ptr::from_ref(vm) as usize);
    thread::spawn(move || {
        // SAFETY: live.
        let (thread, vm) = unsafe { (&*(token as *const slat_thread), &*(memory as *const slat_vm)) };
        assert_eq!(out!(slat_translate(Some(vm), Some(thread), 0, 0)), Err(SLAT_EPERM));
        // SAFETY: live, and refused.
        assert_eq!(unsafe { slat_thread_free(ptr::from_ref(thread).cast_mut()) }, SLAT_EPERM);
    })
    .join()
    .unwrap();
    assert_eq!(out!(slat_translate(Some(vm), Some(thread), 0, 0)), Err(SLAT_ENOENT), "nothing is mapped yet");
    end(thread, vm);
}

thread_local! {
    /// The token, the VM and the vCPU of the fault that calls [`calls_again`].
    static OUTER: Cell<Option<(&'static slat_thread, &'static slat_vm, &'static slat_vcpu)>> = const { Cell::new(None) };
}
static CALLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn calls_again(
    user: *mut c_void,
    lent: *const slat_thread,
    hva: u64,
    access: u32,
    page: *mut slat_page,
) -> slat_status_raw {
    let (outer, vm, vcpu) = OUTER.get().unwrap();
    // SAFETY: good until this returns, which is all that is needed: entering with it is refused.
    let token: &'static slat_thread = unsafe { &*lent };
    assert_eq!(out!(slat_translate(Some(vm), Some(token), 0, 0)), Err(SLAT_ENOENT));
    assert_eq!(out!(slat_translate(Some(vm), Some(outer), 0, 0)), Err(SLAT_EBUSY));
    assert_eq!(fault(vcpu, token, 0), Err(SLAT_EBUSY), "it is in a call");
    let second = self::vcpu(vm, 1).unwrap();
    assert_eq!(out!(slat_vcpu_enter(Some(second), Some(token), 0)), Err(SLAT_EBUSY));
    assert_eq!(free(second), SLAT_OK);
    // SAFETY: live, and refused.
    assert_eq!(unsafe { slat_thread_free(lent.cast_mut()) }, SLAT_EINVAL);
    CALLED.fetch_add(1, Relaxed);
    resolve(user, lent, hva, access, page)
}

#[test]
fn a_host_calls_slat_with_the_token_that_it_was_given_and_no_other() {
    let (thread, vm) = world(&slat_host { resolve: Some(calls_again), ..HOST });
    let vcpu = vcpu(vm, 0).unwrap();
    OUTER.set(Some((thread, vm, vcpu)));
    assert_eq!(fault(vcpu, thread, 0x1000), Ok(slat_done::SLAT_MAPPED));
    assert_eq!(CALLED.load(Relaxed), 1);
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}

extern "C" fn nonsense(
    _: *mut c_void,
    _: *const slat_thread,
    hva: u64,
    _: u32,
    page: *mut slat_page,
) -> slat_status_raw {
    let mut memory = 0;
    let (pfn, level, status) = match hva >> 12 & 7 {
        0 => (1 << 40, 0, 0),
        1 => (1, 4, 0),
        2 => (1, 0, SLAT_EPOISONED as u32),
        3 => (1, 0, SLAT_ENOMEM as u32),
        4 => (1, 0, SLAT_EIO as u32),
        5 => {
            memory = 4;
            (1, 0, 0)
        }
        _ => (1, 0, 77),
    };
    // SAFETY: slat's own page.
    unsafe { *page = slat_page { pfn, level, flags: SLAT_PAGE_WRITE, memory } };
    status
}

#[test]
fn a_host_s_answers_are_checked() {
    let (thread, vm) = world(&slat_host { resolve: Some(nonsense), ..HOST });
    let vcpu = vcpu(vm, 0).unwrap();
    let answers: Vec<_> = (0..7).map(|page| fault(vcpu, thread, page << 12).unwrap_err()).collect();
    assert_eq!(
        answers,
        [SLAT_EFAULT, SLAT_EFAULT, SLAT_EPOISONED, SLAT_ENOMEM, SLAT_EIO, SLAT_EFAULT, SLAT_EFAULT]
    );
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}

#[test]
fn a_transaction_that_is_refused_says_where_and_changes_nothing() {
    use slat_slot_op_kind::*;
    let (thread, vm) = world(&HOST);
    let low = ram(0, 0).slot;
    let cases = [
        (ram(1, 0x1000), SLAT_EEXIST),
        (ram(0, RAM), SLAT_EEXIST),
        (ram(1, RAM + 1), SLAT_EINVAL),
        (ram(1, u64::MAX << 12), SLAT_EINVAL),
        (op(SLAT_SLOT_FLAGS, slat_slot { flags: SLAT_SLOT_READONLY, ..low }), SLAT_EINVAL),
        (op(SLAT_SLOT_FLAGS, slat_slot { flags: 8, ..low }), SLAT_EINVAL),
        (op(SLAT_SLOT_MOVE, slat_slot { gpa: 1, ..low }), SLAT_EINVAL),
        (op(SLAT_SLOT_MOVE, slat_slot { id: 9, ..low }), SLAT_ENOENT),
        (op(SLAT_SLOT_DELETE, slat_slot { id: 9, ..low }), SLAT_ENOENT),
        (op(SLAT_SLOT_FLAGS, slat_slot { flags: SLAT_SLOT_NO_EXECUTE, ..low }), SLAT_EINVAL),
        (op(SLAT_SLOT_CREATE, slat_slot { memory: 4, ..ram(1, RAM).slot }), SLAT_EINVAL),
        (op(SLAT_SLOT_CUT, slat_slot { gpa: 1, ..low }), SLAT_EINVAL),
        (op(SLAT_SLOT_CUT, slat_slot { gpa: 2 << 20, ..low }), SLAT_EINVAL),
        (op(SLAT_SLOT_SET_PRIVATE, low), SLAT_EINVAL),
        (op(SLAT_SLOT_SET_SHARED, slat_slot { bytes: 1 << 63, gpa: 1 << 63, ..low }), SLAT_EINVAL),
        (op(SLAT_SLOT_CREATE_WITH_PRIVATE, ram(1, RAM).slot), SLAT_EINVAL),
        (
            slat_slot_op {
                private_hva: SLAT_PRIVATE_HVA + 1,
                ..op(SLAT_SLOT_CREATE_WITH_PRIVATE, ram(1, RAM).slot)
            },
            SLAT_EINVAL,
        ),
        (slat_slot_op { kind: 8, ..ram(0, 0) }, SLAT_EINVAL),
    ];
    for (wrong, status) in cases {
        let log = op(SLAT_SLOT_FLAGS, slat_slot { flags: SLAT_SLOT_LOG_DIRTY, ..low });
        assert_eq!(commit(vm, thread, &[log, wrong]), Err((1, status)), "{wrong:?}");
        assert_eq!(out!(slat_slots_find(Some(vm), Some(thread), 0, 0x1000)), Ok(low), "as it was");
    }
    let moved = op(SLAT_SLOT_MOVE, slat_slot { gpa: RAM, ..low });
    assert_eq!(commit(vm, thread, &[moved, ram(1, 0), op(SLAT_SLOT_DELETE, low)]), Ok(()));
    assert_eq!(out!(slat_slots_find(Some(vm), Some(thread), 0, 0)).map(|slot| slot.id), Ok(1));
    assert_eq!(out!(slat_slots_find(Some(vm), Some(thread), 0, RAM)), Err(SLAT_ENOENT));
    end(thread, vm);
}

#[test]
fn every_format_maps_and_unmaps_a_page() {
    let thread = out!(slat_thread_new()).unwrap();
    // SAFETY: live until it is freed.
    let thread = unsafe { &*thread };
    for format in 0..14 {
        let vm = out!(slat_vm_new(Some(&slat_config { format, ..CONFIG }), Some(&HOST))).unwrap();
        // SAFETY: live until `slat_vm_free`.
        let vm = unsafe { &*vm };
        assert_eq!(commit(vm, thread, &[ram(0, 0)]), Ok(()));
        let vcpu = vcpu(vm, 0).unwrap();
        assert_eq!(fault(vcpu, thread, 0x5000), Ok(slat_done::SLAT_MAPPED));
        let mapping = out!(slat_translate(Some(vm), Some(thread), 0, 0x5678)).unwrap();
        assert_eq!((mapping.gfn, mapping.pfn, mapping.frames), (5, (RAM >> 12) + 5, 1));
        let access =
            || out!(slat_vcpu_access(Some(vcpu), Some(thread), 0x5678, slat_access::SLAT_WRITE as u32));
        let walked = access().unwrap();
        assert_eq!((walked.gfn, walked.pfn, walked.frames), (mapping.gfn, mapping.pfn, mapping.frames));
        assert_ne!(walked.flags & SLAT_PAGE_WRITE, 0, "{format}");
        let change = out!(slat_invalidate_begin(Some(vm), RAM, 0x10000, 0)).unwrap();
        // SAFETY: live.
        assert_eq!(slat_invalidate_apply(Some(unsafe { &*change }), Some(thread)), SLAT_OK);
        // SAFETY: live, and not used any more.
        assert_eq!(unsafe { slat_invalidate_end(change) }, SLAT_OK);
        assert_eq!(out!(slat_translate(Some(vm), Some(thread), 0, 0x5678)), Err(SLAT_ENOENT), "{format}");
        assert_eq!(access().map(|found| found.pfn), Err(SLAT_ENOENT), "{format}");
        let stats = out!(slat_vm_stats(Some(vm))).unwrap();
        assert_eq!((stats.mapped_faults, stats.leaves[0], stats.flushes), (1, 0, 1));
        assert_eq!(free(vcpu), SLAT_OK);
        // SAFETY: live, and not used any more.
        assert_eq!(unsafe { slat_vm_free(ptr::from_ref(vm).cast_mut()) }, SLAT_OK);
    }
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { slat_thread_free(ptr::from_ref(thread).cast_mut()) }, SLAT_OK);
}

#[test]
fn enumerations_are_numbered_as_in_the_engine() {
    let names = [
        slat_why::SLAT_UNMAP,
        slat_why::SLAT_REMAP,
        slat_why::SLAT_EXIT,
        slat_why::SLAT_CLEAR,
        slat_why::SLAT_MIGRATE,
        slat_why::SLAT_RECLAIM,
        slat_why::SLAT_PROTECT,
        slat_why::SLAT_WRITE_PROTECT,
        slat_why::SLAT_SOFT_DIRTY,
        slat_why::SLAT_NUMA,
        slat_why::SLAT_CHANGE_PTE,
    ];
    for (number, name) in names.into_iter().enumerate() {
        let spelled = slat::Reason::ALL[number].name().replace('-', "_").to_uppercase();
        assert_eq!((name as usize, format!("{name:?}")), (number, format!("SLAT_{spelled}")));
    }
}
