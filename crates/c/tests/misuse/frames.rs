//! Held frames, tracked stores, pending pages, populations.

use super::*;

fn hold(vm: &'static slat_vm, thread: &slat_thread, hardware: bool) -> Result<*mut slat_held, slat_status> {
    out!(slat_hold(Some(vm), Some(thread), 0, 0x5000, slat_access::SLAT_READ as u32, hardware))
}

fn release(held: *mut slat_held) -> slat_status {
    // SAFETY: live, and not used any more where this succeeds.
    unsafe { slat_release(held) }
}

#[test]
fn a_held_frame_in_a_use_is_its_thread_s_and_neither_given_back_nor_used_again() {
    let (thread, vm) = world(&HOST);
    let pointer = hold(vm, thread, false).unwrap();
    // SAFETY: live until it is released.
    let held = unsafe { &*pointer };
    assert_eq!(slat_held_done(Some(held)), SLAT_EBUSY, "there is no use");
    assert_eq!(out!(slat_held_use(Some(held), Some(thread), true)), Err(SLAT_EINVAL), "held to read");
    let pfn = out!(slat_held_use(Some(held), Some(thread), false));
    assert_eq!(pfn, Ok((RAM >> 12) + 5));
    assert_eq!(out!(slat_held_use(Some(held), Some(thread), false)), Err(SLAT_EBUSY));
    assert_eq!(slat_held_refresh(Some(held), Some(thread)), SLAT_EBUSY);
    assert_eq!(slat_held_mark_dirty(Some(held)), SLAT_EBUSY);
    assert_eq!(release(pointer), SLAT_EBUSY);
    assert_eq!(
        out!(slat_translate(Some(vm), Some(thread), 0, 0)),
        Err(SLAT_EBUSY),
        "nor does its thread wait"
    );
    let other = pointer as usize;
    thread::spawn(move || {
        // SAFETY: live.
        assert_eq!(slat_held_done(Some(unsafe { &*(other as *const slat_held) })), SLAT_EPERM);
    })
    .join()
    .unwrap();
    assert_eq!(slat_held_done(Some(held)), SLAT_OK);
    // SAFETY: live, and refused.
    assert_eq!(unsafe { slat_vm_free(ptr::from_ref(vm).cast_mut()) }, SLAT_EBUSY);
    assert_eq!(release(pointer), SLAT_OK);
    assert_eq!(release(ptr::null_mut()), SLAT_EINVAL);
    assert_eq!(slat_held_done(None), SLAT_EINVAL);
    end(thread, vm);
}

#[test]
fn a_frame_for_hardware_is_asked_for_in_the_guest_of_its_own_vm() {
    let (thread, vm) = world(&HOST);
    let second = out!(slat_vm_new(Some(&CONFIG), Some(&HOST))).unwrap();
    // SAFETY: live until it is freed.
    let other = vcpu(unsafe { &*second }, 0).unwrap();
    let own = vcpu(vm, 0).unwrap();
    let [plain, hardware] = [false, true].map(|hardware| hold(vm, thread, hardware).unwrap());
    let current = |held: *mut slat_held, vcpu| {
        // SAFETY: live.
        out!(slat_held_current(Some(unsafe { &*held }), Some(vcpu)))
    };
    assert_eq!(current(hardware, own), Err(SLAT_EBUSY), "out of the guest");
    out!(slat_vcpu_enter(Some(other), Some(thread), 0)).unwrap();
    assert_eq!(current(hardware, other), Err(SLAT_EINVAL), "it would not be kicked");
    assert_eq!(slat_vcpu_leave(Some(other)), SLAT_OK);
    out!(slat_vcpu_enter(Some(own), Some(thread), 0)).unwrap();
    assert_eq!((current(plain, own), current(hardware, own)), (Err(SLAT_EINVAL), Ok((RAM >> 12) + 5)));
    assert_eq!(slat_vcpu_leave(Some(own)), SLAT_OK);
    assert_eq!([release(plain), release(hardware), free(own), free(other)], [SLAT_OK; 4]);
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { slat_vm_free(second) }, SLAT_OK);
    end(thread, vm);
}

#[test]
fn a_refused_hold_returns_its_reason() {
    let (thread, vm) = world(&HOST);
    let held = |space, gpa, access| out!(slat_hold(Some(vm), Some(thread), space, gpa, access, false)).err();
    assert_eq!(held(0, 2 << 20, 0), Some(SLAT_ENOENT));
    assert_eq!(held(1, 0, 0), Some(SLAT_ENOENT));
    assert_eq!(held(256, 0, 0), Some(SLAT_ENOENT));
    assert_eq!(held(0, 0, 3), Some(SLAT_EINVAL));
    let rom = slat_slot { flags: SLAT_SLOT_READONLY, ..ram(1, RAM).slot };
    assert_eq!(commit(vm, thread, &[op(slat_slot_op_kind::SLAT_SLOT_CREATE, rom)]), Ok(()));
    assert_eq!(held(0, RAM, 1), Some(SLAT_EFAULT));
    end(thread, vm);
}

static RELEASED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn released(_: *mut c_void) {
    RELEASED.fetch_add(1, Relaxed);
}

extern "C" fn nowhere(_: *mut c_void, _: u64) {}

#[test]
fn a_listener_is_released_once_and_only_where_it_was_taken() {
    let (thread, vm) = world(&HOST);
    let listener =
        slat_listener { user: ptr::null_mut(), before: None, after: None, release: Some(released) };
    let track = |space, gpa, bytes| {
        out!(slat_track_writes(Some(vm), Some(thread), space, gpa, bytes, Some(&listener)))
    };
    assert_eq!(track(1, 0, 4096).err(), Some(SLAT_ENOENT));
    for (gpa, bytes) in [(1, 4096), (0, 0), (0, 1), (u64::MAX << 12, 8192)] {
        assert_eq!(track(0, gpa, bytes).err(), Some(SLAT_EINVAL));
    }
    assert_eq!(RELEASED.load(Relaxed), 0);
    let tracking = track(0, 0, 4096).unwrap();
    // SAFETY: live, and refused.
    assert_eq!(unsafe { slat_vm_free(ptr::from_ref(vm).cast_mut()) }, SLAT_EBUSY);
    let store = |space, gpa, bytes, count, function| {
        // SAFETY: as many bytes as are read.
        unsafe {
            slat_emulate_store(Some(vm), Some(thread), space, gpa, bytes, count, function, ptr::null_mut())
        }
    };
    let (byte, function) =
        (ptr::from_ref(&[0_u8; 8]).cast::<c_void>(), nowhere as unsafe extern "C" fn(*mut c_void, u64));
    assert_eq!(store(0, 8, byte, 8, Some(function)), SLAT_OK);
    assert_eq!(store(0, 4092, byte, 8, Some(function)), SLAT_EINVAL, "it crosses a page");
    assert_eq!(store(0, 0, byte, usize::MAX, Some(function)), SLAT_EINVAL);
    assert_eq!(store(0, 0, ptr::null(), 8, Some(function)), SLAT_EINVAL);
    assert_eq!(store(0, 0, byte, 8, None), SLAT_EINVAL);
    assert_eq!(store(0, 2 << 20, byte, 8, Some(function)), SLAT_ENOENT);
    assert_eq!(store(1, 0, byte, 8, Some(function)), SLAT_ENOENT);
    // SAFETY: live, and not used any more; null is allowed.
    unsafe {
        assert_eq!(slat_untrack_writes(tracking), SLAT_OK);
        assert_eq!(slat_untrack_writes(ptr::null_mut()), SLAT_EINVAL);
    }
    assert_eq!(RELEASED.load(Relaxed), 1);
    end(thread, vm);
}

thread_local! {
    static POPULATION: Cell<*mut slat_population> = const { Cell::new(ptr::null_mut()) };
    static HELD: Cell<*mut slat_held> = const { Cell::new(ptr::null_mut()) };
}

/// Page 1 is pending. During `resolve` for page 2, the objects of the fault cannot be freed, and its token begins no
/// use.
extern "C" fn meddles(
    user: *mut c_void,
    lent: *const slat_thread,
    hva: u64,
    access: u32,
    page: *mut slat_page,
) -> slat_status_raw {
    if hva == RAM + 0x1000 {
        return SLAT_EINPROGRESS as u32;
    }
    if !POPULATION.get().is_null() {
        // SAFETY: live, and refused.
        assert_eq!(unsafe { slat_population_free(POPULATION.get()) }, SLAT_EBUSY);
        // SAFETY: live; the token is good until this returns.
        let (held, lent) = unsafe { (HELD.get().as_ref(), &*lent) };
        assert_eq!(out!(slat_held_use(held, Some(lent), false)), Err(SLAT_EBUSY));
    }
    resolve(user, lent, hva, access, page)
}

#[test]
fn a_population_in_a_call_is_not_freed_and_a_pending_page_has_its_token() {
    let (thread, vm) = world(&slat_host { resolve: Some(meddles), ..HOST });
    let vcpu = vcpu(vm, 1).unwrap();
    let mut no_room = MaybeUninit::new(9_usize);
    assert_eq!(out!(slat_vcpu_pending_token(Some(vcpu))), Err(SLAT_ENOENT));
    assert_eq!(fault(vcpu, thread, 0x1000), Ok(slat_done::SLAT_PENDING));
    assert_eq!(out!(slat_vcpu_pending_token(Some(vcpu))), Ok(RAM + 0x1000));
    // SAFETY: no room is claimed; then room for one number that is not there.
    unsafe {
        assert_eq!(slat_waiters(Some(vm), RAM + 0x1000, ptr::null_mut(), 0, Some(&mut no_room)), SLAT_OK);
        assert_eq!(no_room.assume_init(), 1);
        assert_eq!(slat_waiters(Some(vm), 0, ptr::null_mut(), 1, Some(&mut no_room)), SLAT_EINVAL);
    }
    assert_eq!(slat_ready(Some(vm), 77, None), SLAT_OK, "nothing waits for it");
    assert_eq!(out!(slat_ready(Some(vm), RAM + 0x1000)), Ok(1));
    assert_eq!(out!(slat_vcpu_has_ready(Some(vcpu))), Err(SLAT_EBUSY), "out of the guest");
    out!(slat_vcpu_enter(Some(vcpu), Some(thread), 0)).unwrap();
    assert_eq!(out!(slat_vcpu_take_ready(Some(vcpu))), Err(SLAT_EBUSY), "in the guest");
    assert_eq!([slat_vcpu_forget_tokens(Some(vcpu)), slat_vcpu_switch_to(Some(vcpu), 0)], [SLAT_EBUSY; 2]);
    assert_eq!(out!(slat_vcpu_has_ready(Some(vcpu))), Ok(true));
    assert_eq!(slat_vcpu_leave(Some(vcpu)), SLAT_OK);
    assert_eq!(out!(slat_vcpu_take_ready(Some(vcpu))), Ok(RAM + 0x1000));
    assert_eq!(out!(slat_vcpu_take_ready(Some(vcpu))), Err(SLAT_ENOENT), "told once");

    let new = |gpa, bytes, access| out!(slat_population_new(gpa, bytes, access, true));
    assert_eq!([new(1, 4096, 0).err(), new(0, 0, 0).err(), new(0, 4096, 3).err()], [Some(SLAT_EINVAL); 3]);
    HELD.set(hold(vm, thread, false).unwrap());
    let population = new(0x2000, 0x1000, 0).unwrap();
    POPULATION.set(population);
    let (mut gpa, mut bytes) = (MaybeUninit::new(1), MaybeUninit::new(1));
    // SAFETY: live.
    let all = unsafe { &*population };
    let status = slat_vcpu_populate(Some(vcpu), Some(thread), Some(all), Some(&mut gpa), Some(&mut bytes));
    // SAFETY: written above.
    assert_eq!((status, unsafe { bytes.assume_init() }), (SLAT_OK, 0));
    // SAFETY: live, and not used any more; null is allowed.
    unsafe {
        assert_eq!(slat_population_free(population), SLAT_OK);
        assert_eq!(slat_population_free(ptr::null_mut()), SLAT_EINVAL);
    }
    POPULATION.set(ptr::null_mut());
    let prefault = |gpa, bytes| out!(slat_vcpu_prefault(Some(vcpu), Some(thread), gpa, bytes, 0, false));
    assert_eq!(
        [prefault(1, 4096), prefault(0, 0), prefault(2 << 20, 4096)],
        [Err(SLAT_EINVAL), Err(SLAT_EINVAL), Ok(0)]
    );
    assert_eq!(prefault(0x1000, 0x1000), Err(SLAT_EINPROGRESS));
    assert_eq!(release(HELD.get()), SLAT_OK);
    assert_eq!(free(vcpu), SLAT_OK);
    end(thread, vm);
}
