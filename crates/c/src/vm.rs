//! VMs: mappings, dirty marks, aging, counters.

use crate::any::{self, AnyVm};
use crate::slat_status;
use crate::slat_status::{SLAT_EBUSY, SLAT_EINVAL, SLAT_ENOENT};
use crate::status::{given, guarded};
use crate::types::{
    SLAT_PAGE_ACCESSED, SLAT_PAGE_DIRTY, SLAT_PAGE_EXECUTE, SLAT_PAGE_READ, SLAT_PAGE_WRITE, all_of, pages,
};
use crate::{
    slat_config, slat_host, slat_mapping, slat_stats, slat_thread, slat_unanswered, slat_young_how_raw,
};
use alloc::boxed::Box;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use slat::{Access, Gpa, Mapping, SpaceId, Young};

/// A virtual machine: memslots, and the page table of one format. Any thread may use it.
#[derive(Debug)]
pub struct slat_vm {
    pub(crate) any: Box<dyn AnyVm>,
    pub(crate) vcpus: u32,
    /// Number of handles that were made from it.
    children: AtomicUsize,
}

impl core::fmt::Debug for dyn AnyVm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("AnyVm")
    }
}

/// Prevents the free of a VM.
#[derive(Debug)]
pub(crate) struct Child(&'static slat_vm);

impl Child {
    pub(crate) fn of(vm: &'static slat_vm) -> Self {
        vm.children.fetch_add(1, AcqRel);
        Self(vm)
    }

    pub(crate) fn vm(&self) -> &'static dyn AnyVm {
        &*self.0.any
    }

    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        core::ptr::eq(self.0, other.0)
    }
}

/// Converts an address space from C.
pub(crate) fn space_id(raw: u32) -> Result<SpaceId, slat_status> {
    u8::try_from(raw).map(SpaceId).map_err(|_| SLAT_ENOENT)
}

impl Drop for Child {
    fn drop(&mut self) {
        self.0.children.fetch_sub(1, AcqRel);
    }
}

/// Makes a VM without memslots, in `vm`. May sleep in the host's `alloc_tables`. Copies both structures.
///
/// The caller promises that the functions of `host` do what their comments say, until the VM is freed. Owed: `slat_vm_free`.
/// Errors: `SLAT_EINVAL`, `SLAT_ENOMEM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_vm_new(
    config: Option<&slat_config>,
    host: Option<&slat_host>,
    vm: Option<&mut MaybeUninit<*mut slat_vm>>,
) -> slat_status {
    guarded(|| {
        let (config, host, vm) = (given(config)?, given(host)?, given(vm)?);
        let any = any::build(config, host)?;
        vm.write(Box::into_raw(Box::new(slat_vm {
            any,
            vcpus: config.vcpus.max(1),
            children: AtomicUsize::new(0),
        })));
        Ok(())
    })
}

/// Frees a VM and its tables. May sleep in the host's `free_tables`.
///
/// Errors, after which the VM is unchanged: `SLAT_EBUSY` while it has vCPUs, invalidations, harvests, held frames or
/// trackers of stores; `SLAT_EINVAL`. Not checked: that no other thread uses the VM meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_vm_free(vm: *mut slat_vm) -> slat_status {
    guarded(|| {
        // SAFETY: null, or a live VM, by the caller's contract.
        let live = given(unsafe { vm.as_ref() })?;
        if live.children.load(Acquire) != 0 {
            return Err(SLAT_EBUSY);
        }
        // SAFETY: made by `slat_vm_new`; no handle refers to it, and no other thread uses it, by the caller's contract.
        drop(unsafe { Box::from_raw(vm) });
        Ok(())
    })
}

/// Returns the counters of a VM, in `stats`. Any thread; never sleeps. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vm_stats(
    vm: Option<&'static slat_vm>,
    stats: Option<&mut MaybeUninit<slat_stats>>,
) -> slat_status {
    guarded(|| {
        let (vm, stats) = (given(vm)?, given(stats)?);
        stats.write(vm.any.stats().into());
        Ok(())
    })
}

/// Lists the vCPUs that are in the guest and have not answered a flush, for a watchdog of a call that does not return
/// from a flush: up to `room` of them in `vcpus`, and their total, which may be more, in `count`. For a moment each
/// flush is unanswered. A vCPU that is listed again after a while with the same `since` does not answer: its kick does
/// not reach it, it does not poll `slat_vcpu_kicked`, or its thread waits for the one that flushes. Any thread; never
/// sleeps. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_vm_unanswered(
    vm: Option<&'static slat_vm>,
    vcpus: *mut slat_unanswered,
    room: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> slat_status {
    guarded(|| {
        let (vm, count) = (given(vm)?, given(count)?);
        if room != 0 && (vcpus.is_null() || !vcpus.is_aligned()) {
            return Err(SLAT_EINVAL);
        }
        let unanswered = vm.any.unanswered();
        for (at, &vcpu) in unanswered.iter().take(room).enumerate() {
            // SAFETY: there is room for as many, by the caller's contract.
            unsafe { vcpus.add(at).write(vcpu.into()) };
        }
        count.write(unanswered.len());
        Ok(())
    })
}

/// Returns the current mapping of guest address `gpa` of address space `space`, in `mapping`. An invalidation may
/// remove it before this returns. A software vCPU puts it into its TLB out of the guest and uses it in the guest: the
/// entry forgets what was flushed in between. Sets no Accessed or Dirty bit: in a format that has them, a guest's own
/// accesses use `slat_vcpu_access`. Any thread; never sleeps.
///
/// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_translate(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    mapping: Option<&mut MaybeUninit<slat_mapping>>,
) -> slat_status {
    guarded(|| {
        let (vm, mapping, mut call) = (given(vm)?, given(mapping)?, given(thread)?.call()?);
        let found = vm.any.translate(call.idle(), space_id(space)?, Gpa(gpa).gfn())?.ok_or(SLAT_ENOENT)?;
        mapping.write(found.into());
        Ok(())
    })
}

impl From<Mapping> for slat_mapping {
    fn from(Mapping { gfns, leaf, .. }: Mapping) -> Self {
        let allows = |access| leaf.perms.allows(access);
        let flags = [
            (allows(Access::Read), SLAT_PAGE_READ),
            (allows(Access::Write), SLAT_PAGE_WRITE),
            (allows(Access::Fetch), SLAT_PAGE_EXECUTE),
            (leaf.accessed, SLAT_PAGE_ACCESSED),
            (leaf.dirty, SLAT_PAGE_DIRTY),
        ];
        let memory = leaf.memory.bits() as u32;
        Self { gfn: gfns.start.0, pfn: leaf.pfn.0, frames: gfns.len(), flags: all_of(flags), memory }
    }
}

/// Marks these host addresses dirty in each memslot that logs, after a device or the VMM has written them. Any thread,
/// also in the guest; never sleeps. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_mark_dirty(vm: Option<&'static slat_vm>, hva: u64, bytes: u64) -> slat_status {
    guarded(|| {
        given(vm)?.any.mark_dirty(pages(hva, bytes).ok_or(SLAT_EINVAL)?);
        Ok(())
    })
}

/// Returns whether the guest has accessed any page of this host range since its Accessed bit was cleared, in `young`.
/// `how` says whether to clear the bits. Any thread; `SLAT_CLEAR_YOUNG_AND_FLUSH` waits for vCPUs in the guest.
///
/// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_young(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    hva: u64,
    bytes: u64,
    how: slat_young_how_raw,
    young: Option<&mut MaybeUninit<bool>>,
) -> slat_status {
    guarded(|| {
        let (vm, young, mut call) = (given(vm)?, given(young)?, given(thread)?.call()?);
        let hows = [Young::Test, Young::Clear, Young::ClearAndFlush];
        let how = *hows.get(how as usize).ok_or(SLAT_EINVAL)?;
        young.write(vm.any.young(call.idle(), pages(hva, bytes).ok_or(SLAT_EINVAL)?, how));
        Ok(())
    })
}

/// Does an aging pass: calls `seen` with the pages of this host range that the guest has accessed since their Accessed
/// bits were cleared, and clears the bits. Bit n mod 64 of word n / 64 stands for the nth page from `hva` on, of
/// `pages` pages, 512 at most. TLBs keep translations that set no bit until they forget them (`slat_forget`). `seen`
/// does not wait, and does not call slat. Any thread; never sleeps.
///
/// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_age(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    hva: u64,
    bytes: u64,
    seen: Option<unsafe extern "C" fn(user: *mut c_void, hva: u64, pages: u32, bits: *const u64)>,
    user: *mut c_void,
) -> slat_status {
    guarded(|| {
        let (vm, seen, mut call) = (given(vm)?, given(seen)?, given(thread)?.call()?);
        vm.any.age(call.idle(), pages(hva, bytes).ok_or(SLAT_EINVAL)?, &mut |accessed| {
            // SAFETY: the caller's own function and pointer; the words are ours until it returns.
            unsafe { seen(user, accessed.first().0, accessed.len(), accessed.bits().as_ptr()) }
        });
        Ok(())
    })
}

/// Asks every TLB to forget this host range soon, so that the next access after an aging pass is seen. There is no
/// guarantee. Any thread; never sleeps. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_forget(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    hva: u64,
    bytes: u64,
) -> slat_status {
    guarded(|| {
        let (vm, mut call) = (given(vm)?, given(thread)?.call()?);
        vm.any.forget(call.idle(), pages(hva, bytes).ok_or(SLAT_EINVAL)?);
        Ok(())
    })
}
