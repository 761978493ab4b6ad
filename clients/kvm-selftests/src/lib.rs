//! /dev/kvm without KVM, for KVM's own selftests: a preloaded library that answers their system calls. The engine
//! provides memslots, second-level tables, dirty logs and rings, exits to devices, aging and error numbers; an emulator
//! runs the instructions.
//!
//! | file | contents |
//! |---|---|
//! | this one | the functions of the C library that the library replaces |
//! | `objects` | the object of each descriptor |
//! | `abi` | KVM's numbers |
//! | `vm_ioctls` | ioctls of /dev/kvm and of a VM |
//! | `vcpu` | ioctls of a vCPU; its entries into the guest and its exits |
//! | `running_guest` | misses of the TLB: a walk of the guest's table, each entry of which is found by a walk of the engine's |
//! | `emulator` | Unicorn |
//! | `ring` | a dirty ring in shared memory |
//! | `process_host` | the process as the engine's host |
//! | `idle` | idle page tracking |

mod abi;
mod emulator;
mod idle;
mod objects;
mod process_host;
mod ring;
mod running_guest;
mod shared;
mod vcpu;
mod vm_ioctls;

use objects::Object;
use slat::{Hva, PAGE_SIZE, Span, VcpuId};
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

/// Converts a result to the C library's convention.
fn returned(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|errno| {
        // SAFETY: this thread's.
        unsafe { *libc::__errno_location() = errno };
        -1
    })
}

/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: required of the caller (see `# Safety`).
    let object = match unsafe { CStr::from_ptr(path) }.to_bytes() {
        b"/dev/kvm" => Object::Kvm,
        b"/proc/self/pagemap" => Object::Pagemap,
        b"/sys/kernel/mm/page_idle/bitmap" => Object::PageIdle,
        // SAFETY: required of the caller (see `# Safety`).
        _ => return unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int },
    };
    returned(objects::add(object))
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    drop(objects::remove(fd));
    // SAFETY: required of the caller (see `# Safety`).
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let object = if request >> 8 & 0xff == abi::KVMIO { objects::get(fd) } else { None };
    let number = (request & 0xff) as u32;
    // SAFETY: required of the caller (see `# Safety`).
    returned(unsafe {
        match object {
            Some(Object::Kvm) if number == abi::CREATE_VM => objects::add_machine(),
            Some(Object::Kvm) => vm_ioctls::ioctl(number, argument),
            Some(Object::Vm(machine)) if number == abi::CREATE_VCPU => {
                objects::add_vcpu(&machine, VcpuId(argument as u32))
            }
            Some(Object::Vm(machine)) => machine.ioctl(number, argument),
            Some(Object::Vcpu(cpu)) => cpu.lock().unwrap().ioctl(number, argument),
            _ => return libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int,
        }
    })
}

/// Refuses to map a dirty ring privately or executable, as KVM does.
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let of_ring = fd >= 0 && offset == abi::RING_PAGE as i64 * PAGE_SIZE as i64;
    let refused = flags & libc::MAP_PRIVATE != 0 || access & libc::PROT_EXEC != 0;
    if of_ring && refused && matches!(objects::get(fd), Some(Object::Vcpu(_))) {
        returned(Err(libc::EINVAL));
        return libc::MAP_FAILED;
    }
    // SAFETY: required of the caller (see `# Safety`).
    unsafe { libc::syscall(libc::SYS_mmap, at, bytes, access, flags, fd, offset) as *mut c_void }
}

/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: required of the caller (see `# Safety`).
    let result = unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) as c_int };
    if result == 0 && matches!(advice, libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE) {
        process_host::advised(Span::sized(Hva(at as u64), bytes as u64), advice == libc::MADV_HUGEPAGE);
    }
    result
}

/// # Safety
/// As pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: c_int, into: *mut c_void, bytes: usize, offset: i64) -> isize {
    let word = offset as u64 / 8;
    let read = match objects::get(fd) {
        // Present; a frame is an address.
        Some(Object::Pagemap) => 1 << 63 | word,
        Some(Object::PageIdle) => idle::read(word),
        // SAFETY: required of the caller (see `# Safety`).
        _ => return unsafe { libc::syscall(libc::SYS_pread64, fd, into, bytes, offset) as isize },
    };
    // SAFETY: the tests read words.
    unsafe { into.cast::<u64>().write(read) };
    8
}

/// # Safety
/// As pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, bytes: usize, offset: i64) -> isize {
    if !matches!(objects::get(fd), Some(Object::PageIdle)) {
        // SAFETY: required of the caller (see `# Safety`).
        return unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, bytes, offset) as isize };
    }
    // SAFETY: the test writes words.
    idle::mark(offset as u64 / 8, unsafe { from.cast::<u64>().read() });
    8
}
