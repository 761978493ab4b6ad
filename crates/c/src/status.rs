//! One enumeration of errors for all functions, and the boundary that no panic crosses.

use core::ffi::{CStr, c_char};
use slat::slots::Rule;
use slat::table::NoMemory;
use slat::writes::StoreError;
use slat::{Again, DirtyError, FaultError, HoldError, HostError, SlotError};

/// Result of a call. The numbers are those of Linux's errno.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum slat_status {
    /// Success.
    SLAT_OK = 0,
    /// The thread token belongs to another thread.
    SLAT_EPERM = 1,
    /// There is no such address space, memslot, log, vCPU, mapping or token.
    SLAT_ENOENT = 2,
    /// The host could not read the page back. Another try may succeed.
    SLAT_EIO = 5,
    /// The VM has no dirty rings; or it has rings, and one log cannot be harvested alone.
    SLAT_ENXIO = 6,
    /// The call would have to wait for other invalidations, or for memory: try again.
    SLAT_EAGAIN = 11,
    /// No memory.
    SLAT_ENOMEM = 12,
    /// The host maps no page there for this access.
    SLAT_EFAULT = 14,
    /// A handle is in use: by another call, by a vCPU in the guest, or by handles that were made from it.
    SLAT_EBUSY = 16,
    /// Memslots would overlap, or the id is taken.
    SLAT_EEXIST = 17,
    /// An argument is out of range: a null pointer, an address that is no multiple of 4096, an unknown number.
    SLAT_EINVAL = 22,
    /// The caller must provide the page to the host.
    SLAT_ENODATA = 61,
    /// The page is on its way to the host.
    SLAT_EINPROGRESS = 115,
    /// The host has taken the held frame back: refresh it.
    SLAT_ESTALE = 116,
    /// slat panicked, which is a bug in slat; the message is on stderr. Free all handles, and do not continue.
    SLAT_EPANIC = 131,
    /// The page's memory is poisoned.
    SLAT_EPOISONED = 133,
}
use slat_status::{
    SLAT_EAGAIN, SLAT_EBUSY, SLAT_EEXIST, SLAT_EFAULT, SLAT_EINPROGRESS, SLAT_EINVAL, SLAT_EIO, SLAT_ENODATA,
    SLAT_ENOENT, SLAT_ENOMEM, SLAT_ENXIO, SLAT_EPANIC, SLAT_EPERM, SLAT_EPOISONED, SLAT_ESTALE, SLAT_OK,
};

/// A `slat_status` from C: any number.
pub type slat_status_raw = u32;

impl slat_status {
    pub(crate) const ALL: [Self; 16] = [
        SLAT_OK,
        SLAT_EPERM,
        SLAT_ENOENT,
        SLAT_EIO,
        SLAT_ENXIO,
        SLAT_EAGAIN,
        SLAT_ENOMEM,
        SLAT_EFAULT,
        SLAT_EBUSY,
        SLAT_EEXIST,
        SLAT_EINVAL,
        SLAT_ENODATA,
        SLAT_EINPROGRESS,
        SLAT_ESTALE,
        SLAT_EPANIC,
        SLAT_EPOISONED,
    ];
}

/// Returns the meaning of a status in English: a static string, also for an unknown number. Any thread; never sleeps.
#[unsafe(no_mangle)]
pub extern "C" fn slat_strerror(status: slat_status_raw) -> *const c_char {
    let known = slat_status::ALL.into_iter().find(|known| *known as u32 == status);
    let text: &CStr = match known {
        Some(SLAT_OK) => c"done",
        Some(SLAT_EPERM) => c"the thread token belongs to another thread",
        Some(SLAT_ENOENT) => c"there is no such address space, memslot, log, vCPU, mapping or token",
        Some(SLAT_EIO) => c"the host could not read the page back",
        Some(SLAT_ENXIO) => c"the VM has no dirty rings, or nothing but rings",
        Some(SLAT_EAGAIN) => c"it would have to wait: try again",
        Some(SLAT_ENOMEM) => c"no memory",
        Some(SLAT_EFAULT) => c"the host maps nothing there for this access",
        Some(SLAT_EBUSY) => c"a handle is in use",
        Some(SLAT_EEXIST) => c"memslots would overlap, or the id is taken",
        Some(SLAT_EINVAL) => c"an argument is out of range",
        Some(SLAT_ENODATA) => c"the caller has to provide the page",
        Some(SLAT_EINPROGRESS) => c"the page is on its way to the host",
        Some(SLAT_ESTALE) => c"the host has taken the held frame back",
        Some(SLAT_EPANIC) => c"slat panicked",
        Some(SLAT_EPOISONED) => c"the page's memory is broken",
        None => c"unknown status",
    };
    text.as_ptr()
}

/// Converts a function's result to a status. With `std` a panic ends here.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), slat_status>) -> slat_status {
    #[cfg(feature = "std")]
    let call = || std::panic::catch_unwind(core::panic::AssertUnwindSafe(call)).unwrap_or(Err(SLAT_EPANIC));
    call().err().unwrap_or(SLAT_OK)
}

/// Checks that an argument is not null.
pub(crate) fn given<T>(argument: Option<T>) -> Result<T, slat_status> {
    argument.ok_or(SLAT_EINVAL)
}

impl From<HostError> for slat_status {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Fault => SLAT_EFAULT,
            HostError::NoMemory => SLAT_ENOMEM,
            HostError::Poisoned => SLAT_EPOISONED,
            HostError::Pending => SLAT_EINPROGRESS,
            HostError::NeedsPage => SLAT_ENODATA,
            HostError::BadFrame => SLAT_EINVAL,
            _ => SLAT_EIO,
        }
    }
}

impl From<FaultError> for slat_status {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::Host(error) => error.into(),
            _ => SLAT_ENOMEM,
        }
    }
}

impl From<HoldError> for slat_status {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::NoMemslot => SLAT_ENOENT,
            HoldError::ReadOnly | HoldError::Tracked => SLAT_EFAULT,
            HoldError::Pending(_) => SLAT_EINPROGRESS,
            HoldError::Host(error) => error.into(),
            _ => SLAT_ENOMEM,
        }
    }
}

impl From<StoreError> for slat_status {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoMemory => SLAT_ENOENT,
            StoreError::Private => SLAT_EFAULT,
            _ => SLAT_EINVAL,
        }
    }
}

impl From<NoMemory> for slat_status {
    fn from(_: NoMemory) -> Self {
        SLAT_ENOMEM
    }
}

impl From<Again> for slat_status {
    fn from(_: Again) -> Self {
        SLAT_EAGAIN
    }
}

impl From<SlotError> for slat_status {
    fn from(error: SlotError) -> Self {
        // KVM returns EINVAL for that, too.
        if error.rule == Rule::Missing { SLAT_ENOENT } else { numbered(error.errno()) }
    }
}

impl From<DirtyError> for slat_status {
    fn from(error: DirtyError) -> Self {
        numbered(error.errno())
    }
}

/// Returns the status of this number; a number that the enumeration lacks becomes `SLAT_EINVAL`.
fn numbered(errno: i32) -> slat_status {
    slat_status::ALL.into_iter().find(|status| *status as i32 == errno).unwrap_or(SLAT_EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_panic_crosses_the_boundary() {
        assert_eq!(guarded(|| panic!("on purpose")), SLAT_EPANIC);
        assert_eq!(guarded(|| Err(SLAT_ENOENT)), SLAT_ENOENT);
    }

    #[test]
    fn each_status_has_a_text_of_its_own() {
        // SAFETY: strings that live for ever.
        let text = |status| unsafe { CStr::from_ptr(slat_strerror(status)) };
        for status in slat_status::ALL {
            let same =
                slat_status::ALL.into_iter().filter(|other| text(*other as u32) == text(status as u32));
            assert_eq!(same.count(), 1, "{status:?}");
        }
        assert_eq!(text(u32::MAX), c"unknown status");
    }
}
