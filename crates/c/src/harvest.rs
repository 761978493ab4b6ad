//! Harvests of dirty logs are taken, read as words, and committed or given back.

use crate::any::{AnyHarvest, AnyVm};
use crate::slat_status;
use crate::slat_status::SLAT_EINVAL;
use crate::status::{given, guarded};
use crate::vm::{Child, space_id};
use crate::{slat_thread, slat_vm};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use slat::{DirtyPage, DirtyWord, Idle, SlotId};

/// A word of a dirty log: 64 pages of a slot.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_dirty_word {
    /// Number in the slot of the page of bit 0: a multiple of 64.
    pub first_page: u64,
    /// The guest frame of that page at the harvest. Slots move.
    pub gfn: u64,
    /// The host address behind it.
    pub hva: u64,
    /// Bit n stands for page `first_page` + n.
    pub bits: u64,
    /// The slot.
    pub slot: u32,
    /// The address space of the slot.
    pub space: u32,
}

/// One dirty page of a ring.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct slat_dirty_page {
    /// Number of the page in the slot.
    pub page: u64,
    /// The guest frame of the page when it was reported. Slots move.
    pub gfn: u64,
    /// The host address behind it.
    pub hva: u64,
    /// The slot.
    pub slot: u32,
    /// The address space of the slot.
    pub space: u32,
}

/// Pages taken from dirty logs. Any thread may read it.
pub struct slat_harvest {
    /// Given back before its VM may be freed: fields drop in order.
    any: Box<dyn AnyHarvest>,
    _vm: Child,
}

impl core::fmt::Debug for slat_harvest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("slat_harvest").field("pages", &self.any.pages()).finish_non_exhaustive()
    }
}

/// Takes the pages that memslot `id` of address space `space` has logged, in `harvest`. They are clean from now on, and
/// the next store to each is logged again. When this returns, earlier stores of vCPUs are in memory: copy the pages
/// after it. Any thread; waits for vCPUs in the guest, unless nothing was dirty.
///
/// Owed: `slat_harvest_commit` or `slat_harvest_fail`. Errors, after which the log is unchanged: `SLAT_ENOENT` if there
/// is no such space or slot, or it does not log; `SLAT_ENXIO` in a VM with dirty rings; `SLAT_ENOMEM`, `SLAT_EINVAL`;
/// `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_harvest_begin(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    id: u32,
    harvest: Option<&mut MaybeUninit<*mut slat_harvest>>,
) -> slat_status {
    begin(vm, thread, harvest, |vm, idle| vm.harvest(idle, space_id(space)?, Some(SlotId(id))))
}

/// The same for every slot of the address space that logs, with one flush for all of them. In a VM with dirty rings
/// this empties all rings, also of pages of other spaces: every vCPU has room again.
#[unsafe(no_mangle)]
pub extern "C" fn slat_harvest_all_begin(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    harvest: Option<&mut MaybeUninit<*mut slat_harvest>>,
) -> slat_status {
    begin(vm, thread, harvest, |vm, idle| vm.harvest(idle, space_id(space)?, None))
}

/// Wraps the harvest of `take` in a handle.
pub(crate) fn begin(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    harvest: Option<&mut MaybeUninit<*mut slat_harvest>>,
    take: impl FnOnce(&'static dyn AnyVm, &mut Idle) -> Result<Box<dyn AnyHarvest>, slat_status>,
) -> slat_status {
    guarded(|| {
        let (child, harvest, mut call) = (Child::of(given(vm)?), given(harvest)?, given(thread)?.call()?);
        let any = take(child.vm(), call.idle())?;
        harvest.write(Box::into_raw(Box::new(slat_harvest { any, _vm: child })));
        Ok(())
    })
}

/// Returns the number of pages; zero for null. Any thread; never sleeps.
#[unsafe(no_mangle)]
pub extern "C" fn slat_harvest_pages(harvest: Option<&slat_harvest>) -> u64 {
    harvest.map_or(0, |harvest| harvest.any.pages())
}

/// Copies the words with a dirty page to `words`, slot by slot, in order of pages: those from number `from` on, at most
/// `room`. `count` gets their number; fewer than `room` are the last ones. To skip `from` words costs a step each. Any
/// thread; never sleeps. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_harvest_words(
    harvest: Option<&slat_harvest>,
    from: usize,
    words: *mut slat_dirty_word,
    room: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> slat_status {
    guarded(|| {
        let (harvest, count) = (given(harvest)?, given(count)?);
        let most = isize::MAX as usize / size_of::<slat_dirty_word>();
        if words.is_null() || !words.is_aligned() || room > most {
            return Err(SLAT_EINVAL);
        }
        let mut copied = 0;
        for word in harvest.any.words().skip(from).take(room) {
            // SAFETY: there is room for as many words, by the caller's contract.
            unsafe { words.add(copied).write(word.into()) };
            copied += 1;
        }
        count.write(copied);
        Ok(())
    })
}

/// Ends a harvest whose pages are safe elsewhere: the log forgets them. Frees the handle. Any thread; never sleeps. Not
/// checked: that no thread uses it meanwhile or later. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_harvest_commit(harvest: *mut slat_harvest) -> slat_status {
    guarded(|| {
        // SAFETY: made by `slat_harvest_begin`, live, and used by no other call, by the caller's contract.
        let harvest = given((!harvest.is_null()).then(|| unsafe { Box::from_raw(harvest) }))?;
        harvest.any.commit();
        Ok(())
    })
}

/// Ends a harvest whose pages could not be copied: they are dirty again. Frees the handle. As `slat_harvest_commit` otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_harvest_fail(harvest: *mut slat_harvest) -> slat_status {
    guarded(|| {
        // SAFETY: as in `slat_harvest_commit`.
        drop(given((!harvest.is_null()).then(|| unsafe { Box::from_raw(harvest) }))?);
        Ok(())
    })
}

impl From<DirtyWord> for slat_dirty_word {
    fn from(DirtyWord { first, bits }: DirtyWord) -> Self {
        let DirtyPage { space, slot, page, gfn, hva } = first;
        Self { first_page: page, gfn: gfn.0, hva: hva.0, bits, slot: slot.0, space: space.0.into() }
    }
}

impl From<DirtyPage> for slat_dirty_page {
    fn from(DirtyPage { space, slot, page, gfn, hva }: DirtyPage) -> Self {
        Self { page, gfn: gfn.0, hva: hva.0, slot: slot.0, space: space.0.into() }
    }
}
