//! Maps frames before the guest touches them.

use crate::slat_status;
use crate::slat_status::{SLAT_EBUSY, SLAT_EINVAL};
use crate::status::{given, guarded};
use crate::types::{access, frames};
use crate::{slat_access_raw, slat_thread, slat_vcpu};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use slat::{PAGE_SIZE, Population, Prefault};

/// Frames that several vCPUs map together. It belongs to no VM. Any thread may use it.
#[derive(Debug)]
pub struct slat_population {
    population: Population,
    /// Number of calls that use it.
    calls: AtomicUsize,
}

/// Counts a call until it is dropped.
struct Call<'p>(&'p slat_population);

impl<'p> Call<'p> {
    fn of(population: &'p slat_population) -> Self {
        population.calls.fetch_add(1, AcqRel);
        Self(population)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Release);
    }
}

/// Maps [gpa, gpa + bytes) from the first frame on, in the vCPU's address space, so that such an access needs no fault
/// afterwards. Pages are young (`is_young`) or not. `mapped` gets the number of mapped bytes. It is smaller if the next
/// frame has no memslot, if such an access is a device's or tracked, or if the host has no page for it now; another
/// call from there returns the reason. Out of the guest. May sleep in `resolve`. If a page is on its way, the vCPU
/// waits for its token as after a fault.
///
/// Errors if the first frame could not be mapped: as `slat_vcpu_fault`; `SLAT_EINPROGRESS`, `SLAT_ENODATA` for its
/// page.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_prefault(
    vcpu: Option<&slat_vcpu>,
    thread: Option<&slat_thread>,
    gpa: u64,
    bytes: u64,
    wants: slat_access_raw,
    is_young: bool,
    mapped: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vcpu, mapped, mut call) = (given(vcpu)?, given(mapped)?, given(thread)?.call()?);
        let gfns = frames(gpa, bytes).ok_or(SLAT_EINVAL)?;
        let how = Prefault { access: access(wants).ok_or(SLAT_EINVAL)?, young: is_young };
        mapped.write(vcpu.out(|vcpu| Ok(vcpu.prefault(call.idle(), gfns, how)?))? * PAGE_SIZE);
        Ok(())
    })
}

/// Makes a population of the frames of [gpa, gpa + bytes), in `population`. vCPUs then map them together by
/// `slat_vcpu_populate`. Never sleeps.
///
/// Owed: `slat_population_free`. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_population_new(
    gpa: u64,
    bytes: u64,
    wants: slat_access_raw,
    is_young: bool,
    population: Option<&mut MaybeUninit<*mut slat_population>>,
) -> slat_status {
    guarded(|| {
        let population = given(population)?;
        let gfns = frames(gpa, bytes).ok_or(SLAT_EINVAL)?;
        let how = Prefault { access: access(wants).ok_or(SLAT_EINVAL)?, young: is_young };
        let made = slat_population { population: Population::new(gfns, how), calls: AtomicUsize::new(0) };
        population.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// Frees a population. Never sleeps. Errors: `SLAT_EBUSY` while a vCPU maps frames of it; `SLAT_EINVAL`. Not checked:
/// that no thread uses it later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_population_free(population: *mut slat_population) -> slat_status {
    guarded(|| {
        // SAFETY: null, or a live handle, by the caller's contract.
        if given(unsafe { population.as_ref() })?.calls.load(Acquire) != 0 {
            return Err(SLAT_EBUSY);
        }
        // SAFETY: made by `slat_population_new`; no call is in it.
        drop(unsafe { Box::from_raw(population) });
        Ok(())
    })
}

/// Takes stretches of a population and maps them, in the vCPU's address space, until none is left. Then `rest_bytes` is
/// zero, though other vCPUs may still map theirs. If a frame could not be mapped, `rest_gpa` and `rest_bytes` are the
/// rest of this vCPU's stretch, which no other vCPU maps. `slat_vcpu_prefault` of it returns the reason; the next call
/// takes the next stretch. Out of the guest. May sleep in `resolve`. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM`
/// for vCPU and token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_populate(
    vcpu: Option<&slat_vcpu>,
    thread: Option<&slat_thread>,
    population: Option<&slat_population>,
    rest_gpa: Option<&mut MaybeUninit<u64>>,
    rest_bytes: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vcpu, all, mut call) = (given(vcpu)?, Call::of(given(population)?), given(thread)?.call()?);
        let (rest_gpa, rest_bytes) = (given(rest_gpa)?, given(rest_bytes)?);
        let rest = vcpu.out(|vcpu| Ok(vcpu.populate(call.idle(), &all.0.population)))?;
        rest_gpa.write(rest.map_or(0, |rest| rest.start.gpa().0));
        rest_bytes.write(rest.map_or(0, |rest| rest.len() * PAGE_SIZE));
        Ok(())
    })
}

/// Returns the bytes mapped so far, in `mapped`, and all bytes, in `all`. Any thread; never sleeps. Errors:
/// `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_population_progress(
    population: Option<&slat_population>,
    mapped: Option<&mut MaybeUninit<u64>>,
    all: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (mapped, all) = (given(mapped)?, given(all)?);
        let (done, frames) = given(population)?.population.progress();
        mapped.write(done * PAGE_SIZE);
        all.write(frames * PAGE_SIZE);
        Ok(())
    })
}

/// Makes vCPUs take no further stretch. Each finishes its current one: 32 MiB at most. Any thread; never sleeps.
/// Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_population_stop(population: Option<&slat_population>) -> slat_status {
    guarded(|| {
        given(population)?.population.stop();
        Ok(())
    })
}
