//! vCPUs: faults, and the time in the guest. A vCPU's state says which calls may use it.

use crate::any::AnyVcpu;
use crate::c_host::CTlb;
use crate::held::{Has, Held, IN_GUEST, OUT};
use crate::slat_status;
use crate::slat_status::{SLAT_EBUSY, SLAT_EINVAL, SLAT_ENOENT};
use crate::status::{given, guarded};
use crate::types::access;
use crate::vm::{Child, space_id};
use crate::{slat_access_raw, slat_done, slat_mapping, slat_thread, slat_tlb, slat_vm};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use slat::{CpuId, Emulate, Fault, FaultError, Gpa, Idle, InGuest, Leave, Next, Resume, VcpuId};

/// A vCPU. One call at a time may use it, from any thread; from `slat_vcpu_enter` to `slat_vcpu_leave` only that
/// thread.
#[derive(Debug)]
pub struct slat_vcpu {
    held: Held<Inner>,
}

struct Inner {
    /// The guard while it is in the guest, which borrows the vCPU and the token.
    guest: Option<(InGuest<'static>, &'static slat_thread)>,
    /// Made by `Box::leak`.
    vcpu: NonNull<dyn AnyVcpu>,
    tlb: CTlb,
    vm: Child,
}

impl slat_vcpu {
    /// Takes access in the guest, by the thread that entered.
    fn have_in_guest(&self) -> Result<Has<'_, Inner>, slat_status> {
        let has = self.held.have(IN_GUEST)?;
        has.guest.as_ref().map_or(Err(SLAT_EBUSY), |(_, thread)| thread.check_owner())?;
        Ok(has)
    }

    /// Calls `ask` with its guest guard, by the thread that entered.
    pub(crate) fn ask_guest<R>(
        &self,
        ask: impl FnOnce(&InGuest<'static>, &Child) -> Result<R, slat_status>,
    ) -> Result<R, slat_status> {
        let has = self.have_in_guest()?;
        let Inner { guest, vm, .. } = &*has;
        ask(&given(guest.as_ref())?.0, vm)
    }

    /// Takes access out of the guest.
    pub(crate) fn out<R>(
        &self,
        ask: impl FnOnce(&mut dyn AnyVcpu) -> Result<R, slat_status>,
    ) -> Result<R, slat_status> {
        let mut has = self.held.have(OUT)?;
        // SAFETY: this call has the vCPU, and no guard borrows it: it is out of the guest.
        ask(unsafe { has.vcpu.as_mut() })
    }
}

/// Makes vCPU number `id` of a VM, out of the guest, in `vcpu`. Copies `tlb`. Any thread; never sleeps.
///
/// The caller promises that the functions of `tlb` do what their comments say. Owed: `slat_vcpu_free`. Errors:
/// `SLAT_ENOENT` if the VM was made with fewer; `SLAT_EBUSY` if this vCPU exists already; `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_vcpu_new(
    vm: Option<&'static slat_vm>,
    id: u32,
    tlb: Option<&slat_tlb>,
    vcpu: Option<&mut MaybeUninit<*mut slat_vcpu>>,
) -> slat_status {
    guarded(|| {
        let (vm, tlb, vcpu) = (given(vm)?, given(tlb)?, given(vcpu)?);
        if id >= vm.vcpus {
            return Err(SLAT_ENOENT);
        }
        let tlb = CTlb::new(tlb).ok_or(SLAT_EINVAL)?;
        let child = Child::of(vm);
        let made = child.vm().vcpu(VcpuId(id)).ok_or(SLAT_EBUSY)?;
        let inner = Inner { guest: None, vcpu: NonNull::from(Box::leak(made)), tlb, vm: child };
        let made = slat_vcpu { held: Held::new(inner) };
        vcpu.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// Frees a vCPU, so that its number can be used again. Any thread; never sleeps.
///
/// Errors, after which the vCPU is unchanged: `SLAT_EBUSY` in the guest or in another call; `SLAT_EINVAL`. Not checked:
/// that no thread uses it later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_vcpu_free(vcpu: *mut slat_vcpu) -> slat_status {
    guarded(|| {
        // SAFETY: null, or a live vCPU, by the caller's contract.
        let has = given(unsafe { vcpu.as_ref() })?.held.have(OUT)?;
        // SAFETY: made by `Box::leak`; out of the guest, so nothing borrows it; dropped once, since the state stays.
        drop(unsafe { Box::from_raw(has.vcpu.as_ptr()) });
        core::mem::forget(has);
        // SAFETY: made by `slat_vcpu_new`, and no other call has it.
        drop(unsafe { Box::from_raw(vcpu) });
        Ok(())
    })
}

/// Handles an access to guest address `gpa` that the hardware could not complete. `done` gets the result. Out of the
/// guest. May sleep in the host's `resolve`, and waits for an invalidation that covers the page. A processor that
/// caches a missing permission or mapping (Arm, RISC-V) forgets this page itself before the guest tries again.
///
/// Errors, after which the VM can continue: `SLAT_EFAULT`, `SLAT_EPOISONED`, `SLAT_EIO` from the host; `SLAT_ENOMEM`;
/// `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for vCPU and token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_fault(
    vcpu: Option<&slat_vcpu>,
    thread: Option<&slat_thread>,
    gpa: u64,
    wants: slat_access_raw,
    done: Option<&mut MaybeUninit<slat_done>>,
) -> slat_status {
    fault(vcpu, thread, (gpa, wants), done, |vcpu, idle, fault| vcpu.fault(idle, fault))
}

/// The same for a guest with private and shared memory that names the kind of memory: by a bit of the address (TDX),
/// which `gpa` lacks, or as the exit reports it (SEV-SNP). If the frame is of the other kind, `done` gets
/// `SLAT_MEMORY_FAULT`, also if a page is mapped.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_fault_as(
    vcpu: Option<&slat_vcpu>,
    thread: Option<&slat_thread>,
    gpa: u64,
    wants: slat_access_raw,
    is_private: bool,
    done: Option<&mut MaybeUninit<slat_done>>,
) -> slat_status {
    fault(vcpu, thread, (gpa, wants), done, |vcpu, idle, fault| vcpu.fault_as(idle, fault, is_private))
}

fn fault(
    vcpu: Option<&slat_vcpu>,
    thread: Option<&slat_thread>,
    (gpa, wants): (u64, slat_access_raw),
    done: Option<&mut MaybeUninit<slat_done>>,
    deal: impl FnOnce(&mut dyn AnyVcpu, &mut Idle, Fault) -> Result<Next, FaultError>,
) -> slat_status {
    guarded(|| {
        let (vcpu, thread, done) = (given(vcpu)?, given(thread)?, given(done)?);
        let fault = Fault { gpa: Gpa(gpa), access: access(wants).ok_or(SLAT_EINVAL)? };
        let mut call = thread.call()?;
        done.write(match vcpu.out(|vcpu| Ok(deal(vcpu, call.idle(), fault)?))? {
            Next::Resume(Resume::Mapped(_)) => slat_done::SLAT_MAPPED,
            Next::Resume(Resume::Fixed) => slat_done::SLAT_FIXED,
            Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly) => slat_done::SLAT_MMIO,
            Next::Leave(Leave::RingFull) => slat_done::SLAT_RING_FULL,
            Next::Emulate(Emulate::Tracked) => slat_done::SLAT_WRITE_TRACKED,
            Next::Leave(Leave::MemoryFault { .. }) => slat_done::SLAT_MEMORY_FAULT,
            Next::Leave(Leave::Pending(_)) => slat_done::SLAT_PENDING,
            Next::Leave(Leave::NeedsPage) => slat_done::SLAT_NEEDS_PAGE,
            _ => slat_done::SLAT_SPURIOUS,
        });
        Ok(())
    })
}

/// Translates an access by a guest in software, as the hardware's walk does on a TLB miss, in `mapping`. Sets Accessed
/// in links and leaf, and Dirty for a store, if the format has them: aging and dirty logs by Dirty bits then see the
/// guest's accesses. Out of the guest. Never sleeps.
///
/// The vCPU puts the mapping into its TLB and uses it in the guest: the entry forgets what was flushed in between. In a
/// format with Dirty bits a store uses a mapping only if it has `SLAT_PAGE_DIRTY`.
///
/// Errors: `SLAT_ENOENT` if no leaf allows the access: call `slat_vcpu_fault`, then this again; `SLAT_EINVAL`;
/// `SLAT_EBUSY`, `SLAT_EPERM` for vCPU and token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_access(
    vcpu: Option<&slat_vcpu>,
    thread: Option<&slat_thread>,
    gpa: u64,
    wants: slat_access_raw,
    mapping: Option<&mut MaybeUninit<slat_mapping>>,
) -> slat_status {
    guarded(|| {
        let (vcpu, thread, mapping) = (given(vcpu)?, given(thread)?, given(mapping)?);
        let wants = access(wants).ok_or(SLAT_EINVAL)?;
        let mut call = thread.call()?;
        let found = vcpu.out(|vcpu| vcpu.access(call.idle(), Gpa(gpa), wants).map_err(|_| SLAT_ENOENT))?;
        mapping.write(found.into());
        Ok(())
    })
}

/// Switches to another address space, such as that of system management mode. The vCPU loads its root at the next
/// entry. Out of the guest. Any thread; never sleeps. Errors: `SLAT_ENOENT` if the VM was made with fewer;
/// `SLAT_EBUSY`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_switch_to(vcpu: Option<&slat_vcpu>, space: u32) -> slat_status {
    guarded(|| {
        let space = space_id(space)?;
        given(vcpu)?.out(|vcpu| if vcpu.switch_to(space) { Ok(()) } else { Err(SLAT_ENOENT) })
    })
}

/// Enters the guest on processor `cpu`, on which the thread stays until it has left. `root` gets the frame from which
/// the hardware must walk (EPTP, nCR3, VTTBR, hgatp). Before this returns, slat calls the vCPU's `flush` and
/// `flush_all` for flushes that came while it was out. It calls only `flush_all` if processor or root have changed, and
/// at the first entry. A software vCPU whose TLB moves with it always passes the same `cpu`.
///
/// On hardware the vCPU's thread then disables interrupts and calls `slat_vcpu_kicked`. If that is true, it leaves,
/// enables interrupts, and enters again. Otherwise the hardware may enter the guest, and a later kick brings it out.
///
/// Owed: an answer to kicks, soon, by `slat_vcpu_answer` or `slat_vcpu_leave`, because invalidations wait for it. Until
/// the vCPU leaves, the thread's token is in use. Never sleeps. Errors: `SLAT_EBUSY` if vCPU or token are in use, and
/// for the token that `resolve` was given; `SLAT_EPERM`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_enter(
    vcpu: Option<&'static slat_vcpu>,
    thread: Option<&'static slat_thread>,
    cpu: u64,
    root: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vcpu, thread, root) = (given(vcpu)?, given(thread)?, given(root)?);
        let mut call = thread.call()?;
        call.may_enter()?;
        let mut has = vcpu.held.have(OUT)?;
        let inner = &mut *has;
        inner.tlb.cpu = CpuId(cpu);
        // SAFETY: as in `slat_vcpu_fault`. The guard borrows the vCPU, which the state keeps from other calls until it is
        // dropped, and the token, which is kept likewise.
        let (entered, idle) = unsafe { (&mut *inner.vcpu.as_ptr(), &mut *core::ptr::from_mut(call.idle())) };
        let guest = entered.enter(idle, &mut inner.tlb);
        root.write(guest.root().0);
        inner.guest = Some((guest, thread));
        has.then = IN_GUEST;
        call.in_guest();
        Ok(())
    })
}

/// Returns whether an operation waits for this vCPU. A software vCPU calls this between accesses; a vCPU on hardware
/// calls it before each entry, with interrupts disabled. Only the thread that entered, in the guest. Returns false for
/// null, and out of the guest. Not checked: that the thread is this one.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_kicked(vcpu: Option<&slat_vcpu>) -> bool {
    let Some(inner) = vcpu.and_then(|vcpu| vcpu.held.peek(IN_GUEST)) else { return false };
    // SAFETY: in the guest only calls of this thread change it, and none is under way.
    let guest = unsafe { &(*inner).guest };
    guest.as_ref().is_some_and(|(guest, _)| guest.kicked())
}

/// Forgets flushed translations by the vCPU's `flush` and `flush_all`, and answers the operations that wait. The guest
/// continues from `root`, which may have changed. Only the thread that entered, in the guest, on the same processor;
/// never sleeps.
///
/// Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_answer(
    vcpu: Option<&slat_vcpu>,
    root: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (root, mut has) = (given(root)?, given(vcpu)?.have_in_guest()?);
        let Inner { guest, tlb, .. } = &mut *has;
        let (guest, _) = given(guest.as_mut())?;
        guest.answer(tlb);
        root.write(guest.root().0);
        Ok(())
    })
}

/// Leaves the guest, and frees the thread's token. Only the thread that entered; never sleeps.
///
/// Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_leave(vcpu: Option<&slat_vcpu>) -> slat_status {
    guarded(|| {
        let mut has = given(vcpu)?.have_in_guest()?;
        if let Some((guest, thread)) = has.guest.take() {
            drop(guest);
            thread.left_guest();
        }
        has.then = OUT;
        Ok(())
    })
}
