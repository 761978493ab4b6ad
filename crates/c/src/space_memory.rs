//! The memory of an address space as a whole: manual clearing of dirty logs, write protection, page sizes, tables.

use crate::any_memory::{AnySpace, ClearedPages};
use crate::slat_status::SLAT_EINVAL;
use crate::status::{given, guarded};
use crate::types::frames;
use crate::vm::space_id;
use crate::{slat_status, slat_thread, slat_vm};
use core::mem::MaybeUninit;
use core::slice;
use slat::{Idle, Level, SlotId};

/// Calls `work` with address space `space`.
fn in_space<R>(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    work: impl FnOnce(&dyn AnySpace, &mut Idle) -> Result<R, slat_status>,
) -> Result<R, slat_status> {
    let (vm, mut call) = (given(vm)?, given(thread)?.call()?);
    work(&*vm.any.space(space_id(space)?)?, call.idle())
}

/// Checks a range of words that C passes.
fn bits<'b>(words: *const u64, count: usize) -> Result<&'b [u64], slat_status> {
    if words.is_null() || !words.is_aligned() || count > isize::MAX as usize / 8 {
        return Err(SLAT_EINVAL);
    }
    // SAFETY: as many words may be read until the call ends, by the caller's contract.
    Ok(unsafe { slice::from_raw_parts(words, count) })
}

/// Copies the dirty log of memslot `id` to `words`, without a change: bit n mod 64 of word n / 64 stands for page n of
/// the slot. `count` is the room, one word for each 64 pages of the slot. `pages` gets the number of dirty pages. Clean
/// the pages with `slat_dirty_clear`, and copy them **after** that call. Any thread; never sleeps.
///
/// Errors: `SLAT_ENOENT` if there is no such space or slot, or it does not log; `SLAT_ENXIO` in a VM with dirty rings;
/// `SLAT_EINVAL`, also if there is no room; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_dirty_bits(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    id: u32,
    words: *mut u64,
    count: usize,
    pages: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let out = given(pages)?;
        out.write(in_space(vm, thread, space, |space, idle| {
            bits(words, count)?;
            // SAFETY: as in `bits`; they may be written, too, and nothing else uses them, by the caller's contract.
            let words = unsafe { slice::from_raw_parts_mut(words, count) };
            Ok(space.dirty_bits(idle, SlotId(id), words)?)
        })?);
        Ok(())
    })
}

/// Cleans pages of memslot `id`: of the `pages` pages from number `first` on, those whose bit is set in `words` (bit 0
/// of the first word is page `first`), of which there are `count`. The next store to each is logged again. `cleared`
/// gets how many were dirty. `first` is a multiple of 64, and so is `pages`, unless they end the slot. KVM's
/// `KVM_CLEAR_DIRTY_LOG`. Any thread; waits for vCPUs in the guest.
///
/// Errors, after which nothing is cleared: those of `slat_dirty_bits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_dirty_clear(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    id: u32,
    first: u64,
    pages: u64,
    words: *const u64,
    count: usize,
    cleared: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let out = given(cleared)?;
        out.write(in_space(vm, thread, space, |space, idle| {
            let of = ClearedPages { id: SlotId(id), first, pages, bits: bits(words, count)? };
            Ok(space.clear_dirty(idle, of)?)
        })?);
        Ok(())
    })
}

/// Marks pages of memslot `id` that another log found, such as a device's: those whose bit is set in `words`, from page
/// `first` on, a multiple of 64. Bits past the end of the slot are ignored. Any thread; never sleeps. Errors:
/// those of `slat_dirty_bits`, without `SLAT_ENXIO`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_dirty_mark(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    id: u32,
    first: u64,
    words: *const u64,
    count: usize,
) -> slat_status {
    guarded(|| {
        in_space(vm, thread, space, |space, _| {
            Ok(space.mark_dirty_bits(SlotId(id), first, bits(words, count)?)?)
        })
    })
}

/// Takes the write permission from every mapping of [gpa, gpa + bytes). The next store to each page faults, and
/// `slat_vcpu_fault` restores the permission. Any thread; waits for vCPUs in the guest, unless nothing was writable.
/// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_write_protect(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    bytes: u64,
) -> slat_status {
    guarded(|| {
        in_space(vm, thread, space, |space, idle| {
            space.write_protect(idle, frames(gpa, bytes).ok_or(SLAT_EINVAL)?);
            Ok(())
        })
    })
}

/// Splits the large pages of [gpa, gpa + bytes) down to `level` (1 is 4 KiB, 2 is 2 MiB), before a dirty log needs small
/// ones. No vCPU stops, and no permission changes. `pages` gets the number of large pages that were split. Any thread;
/// may sleep in the host's `alloc_tables`. Errors: `SLAT_ENOMEM`, after which some are split; `SLAT_ENOENT`,
/// `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_split(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    bytes: u64,
    level: u32,
    pages: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let out = given(pages)?;
        out.write(in_space(vm, thread, space, |space, idle| {
            let level = u8::try_from(level).ok().and_then(Level::new).ok_or(SLAT_EINVAL)?;
            Ok(space.split(idle, frames(gpa, bytes).ok_or(SLAT_EINVAL)?, level)?)
        })?);
        Ok(())
    })
}

/// Replaces tables of small pages in [gpa, gpa + bytes) by large pages, where the host's `lookup` now returns one and no
/// log needs small ones. `pages` gets the number of large pages. Any thread; waits for vCPUs in the guest. Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_recover(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    bytes: u64,
    pages: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let out = given(pages)?;
        out.write(in_space(vm, thread, space, |space, idle| {
            Ok(space.recover(idle, frames(gpa, bytes).ok_or(SLAT_EINVAL)?))
        })?);
        Ok(())
    })
}

/// Zaps all mappings of all address spaces at once, by new roots. `slat_vcpu_enter` loads the new root. Waits for vCPUs
/// in the guest; may sleep in the host's functions for tables. Errors: `SLAT_ENOMEM`, after which some address spaces are
/// zapped; `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_zap_all(vm: Option<&'static slat_vm>, thread: Option<&slat_thread>) -> slat_status {
    guarded(|| Ok(given(vm)?.any.zap_all(given(thread)?.call()?.idle())?))
}

/// Returns free table memory to the host. `bytes` gets by how much the VM's memory shrank. May sleep in the host's
/// `free_tables`. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_shrink(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vm, bytes, mut call) = (given(vm)?, given(bytes)?, given(thread)?.call()?);
        bytes.write(vm.any.shrink(call.idle()));
        Ok(())
    })
}
