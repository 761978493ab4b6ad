//! Memory that a vCPU shares with its VMM.

use kvm_bindings::kvm_run;
use std::ffi::{c_int, c_void};

/// The first pages of a vCPU's descriptor, which the VMM also maps.
pub struct Shared {
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Shared {}
// SAFETY: the same; what is in it is reached by raw pointers alone.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn map(fd: c_int, pages: usize) -> Result<Self, c_int> {
        let bytes = pages * slat::PAGE_SIZE as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED { Err(libc::ENOMEM) } else { Ok(Self { at, bytes }) }
    }

    /// `immediate_exit`, which any thread may write.
    pub fn exits_at_once(&self) -> bool {
        // SAFETY: the first page is a `kvm_run`.
        unsafe { (&raw const (*self.page::<kvm_run>(0)).immediate_exit).read_volatile() != 0 }
    }

    pub fn page<T>(&self, page: usize) -> *mut T {
        self.at.wrapping_add(page * slat::PAGE_SIZE as usize).cast()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}
