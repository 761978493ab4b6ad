//! /dev/kvm without KVM, for KVM's own selftests: a preloaded library that answers their system calls. The engine
//! provides memslots, second-level tables, dirty logs and rings, exits to devices, aging and error numbers; an emulator
//! runs the instructions.
//!
//! | file | contents |
//! |---|---|
//! | this one | the functions of the C library that the library replaces |
//! | `objects` | the object of each descriptor |
//! | `abi` | KVM's numbers |
//! | `capabilities` | ioctls of /dev/kvm; module parameters |
//! | `machine` | a VM |
//! | `vm_ioctls`, `private` | its ioctls; those of private memory |
//! | `attributes` | which guest frames are private |
//! | `guest_memory` | a `guest_memfd` |
//! | `moves` | the pages of `guest_memfd`s, which may move |
//! | `nx` | large pages that do not execute |
//! | `stats` | files of statistics |
//! | `vcpu` | ioctls of a vCPU; its entries into the guest and its exits |
//! | `running_guest` | misses of the TLB: a walk of the guest's table, each entry of which is found by a walk of the engine's |
//! | `emulator` | Unicorn |
//! | `ring` | a dirty ring in shared memory |
//! | `process_host` | the process as the engine's host |
//! | `idle` | idle page tracking |

mod abi;
mod attributes;
mod capabilities;
mod emulator;
mod guest_memory;
mod idle;
mod machine;
mod moves;
mod nx;
mod objects;
mod private;
mod process_host;
mod ring;
mod running_guest;
mod shared;
mod stats;
mod vcpu;
mod vm_ioctls;

use machine::Machine;
use objects::Object;
use slat::{Hva, Idle, PAGE_SIZE, Span, VcpuId, Why};
use stats::Statistics;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::sync::Arc;

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
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    if let Some(contents) = capabilities::module_parameter(name) {
        return returned(objects::add_file(contents));
    }
    let object = match name {
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
            Some(Object::Kvm) if number == abi::CREATE_VM => objects::add_machine(argument as u64),
            Some(Object::Kvm) => capabilities::ioctl(number, argument),
            Some(Object::Vm(machine)) => match number {
                abi::CREATE_VCPU => objects::add_vcpu(&machine, VcpuId(argument as u32)),
                abi::CREATE_GUEST_MEMFD => objects::add_memory(&machine, &*argument.cast()),
                abi::GET_STATS_FD => objects::add(Object::Statistics(Statistics { machine, of_vcpu: false })),
                _ if request == abi::GET_TSC_KHZ_REQUEST => Ok(abi::TSC_KHZ),
                _ => machine.ioctl(number, argument, objects::memory),
            },
            Some(Object::Vcpu(cpu)) => {
                let mut cpu = cpu.lock().unwrap();
                if number == abi::GET_STATS_FD {
                    let machine = cpu.machine().clone();
                    return returned(objects::add(Object::Statistics(Statistics { machine, of_vcpu: true })));
                }
                cpu.ioctl(number, argument)
            }
            _ => return libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int,
        }
    })
}

/// # Safety
/// As dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: required of the caller (see `# Safety`).
    let copy = unsafe { libc::syscall(libc::SYS_dup, fd) as c_int };
    if copy >= 0 {
        objects::copy(fd, copy);
    }
    copy
}

/// Refuses to map a `guest_memfd`, and to map a dirty ring privately or executable, as KVM does.
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
    let of_ring = offset == abi::RING_PAGE as i64 * PAGE_SIZE as i64
        && (flags & libc::MAP_PRIVATE != 0 || access & libc::PROT_EXEC != 0);
    let refused = match if fd < 0 { None } else { objects::get(fd) } {
        Some(Object::Vcpu(_)) if of_ring => Some(libc::EINVAL),
        Some(Object::Memory(_)) => Some(libc::ENODEV),
        _ => None,
    };
    if let Some(errno) = refused {
        returned(Err(errno));
        return libc::MAP_FAILED;
    }
    // SAFETY: required of the caller (see `# Safety`).
    let at = unsafe { libc::syscall(libc::SYS_mmap, at, bytes, access, flags, fd, offset) as *mut c_void };
    if at != libc::MAP_FAILED && (flags & libc::MAP_HUGETLB != 0 || fd >= 0 && has_large_pages(fd)) {
        process_host::advised(Span::sized(Hva(at as u64), bytes as u64), true);
    }
    at
}

/// Whether the file is made of large pages.
fn has_large_pages(fd: c_int) -> bool {
    // SAFETY: plain data, which the call fills.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut status) == 0 && status.st_blksize as u64 >= slat::Level::M2.bytes()
    }
}

/// Runs a system call that takes pages away, inside an invalidation of every VM: the kernel calls its notifiers so.
fn taking_away((at, bytes): (*mut c_void, usize), why: Why, mut call: impl FnMut() -> libc::c_long) -> c_int {
    fn through(
        machines: &[Arc<Machine>],
        idle: &mut Idle,
        (hvas, why): (Span<Hva>, Why),
        call: &mut dyn FnMut(),
    ) {
        match machines {
            [] => call(),
            [first, rest @ ..] => {
                first.vm().change(idle, hvas, why, |idle| through(rest, idle, (hvas, why), call));
            }
        }
    }
    let hvas = Span::sized(Hva(at as u64), (bytes as u64).next_multiple_of(PAGE_SIZE));
    let mut result = Err(libc::EDEADLK);
    let mut call = || {
        // SAFETY: this thread's.
        result = if call() == 0 { Ok(0) } else { Err(unsafe { *libc::__errno_location() }) };
    };
    match Idle::take() {
        Some(mut idle) if hvas.start.offset() == 0 => {
            through(&objects::machines(), &mut idle, (hvas, why), &mut call);
        }
        _ => call(),
    }
    returned(result)
}

/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: required of the caller (see `# Safety`).
    taking_away((at, bytes), Why::Unmap, || unsafe { libc::syscall(libc::SYS_munmap, at, bytes) })
}

/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: required of the caller (see `# Safety`).
    let call = || unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) };
    if matches!(advice, libc::MADV_DONTNEED | libc::MADV_REMOVE) {
        return taking_away((at, bytes), Why::Clear, call);
    }
    let result = call() as c_int;
    if result == 0 && matches!(advice, libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE) {
        process_host::advised(Span::sized(Hva(at as u64), bytes as u64), advice == libc::MADV_HUGEPAGE);
    }
    result
}

/// # Safety
/// As fallocate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: i64, bytes: i64) -> c_int {
    match objects::get(fd) {
        Some(Object::Memory(memory)) => returned(memory.fallocate(fd, mode, offset, bytes)),
        // SAFETY: required of the caller (see `# Safety`).
        _ => unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, bytes) as c_int },
    }
}

/// Whether the descriptor is a `guest_memfd`, which no process may read or write.
fn is_private(fd: c_int) -> bool {
    matches!(objects::get(fd), Some(Object::Memory(_)))
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, into: *mut c_void, bytes: usize) -> isize {
    if is_private(fd) {
        return returned(Err(libc::EINVAL)) as isize;
    }
    // SAFETY: required of the caller (see `# Safety`).
    unsafe { libc::syscall(libc::SYS_read, fd, into, bytes) as isize }
}

/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, bytes: usize) -> isize {
    if is_private(fd) {
        return returned(Err(libc::EINVAL)) as isize;
    }
    // SAFETY: required of the caller (see `# Safety`).
    unsafe { libc::syscall(libc::SYS_write, fd, from, bytes) as isize }
}

/// # Safety
/// As pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: c_int, into: *mut c_void, bytes: usize, offset: i64) -> isize {
    let word = offset as u64 / 8;
    let contents = match objects::get(fd) {
        // Present; a frame is an address.
        Some(Object::Pagemap) => (1 << 63 | word).to_le_bytes().to_vec(),
        Some(Object::PageIdle) => idle::read(word).to_le_bytes().to_vec(),
        Some(Object::Statistics(statistics)) => {
            let contents = statistics.contents();
            contents.get(offset as usize..).unwrap_or_default().to_vec()
        }
        Some(Object::Memory(_)) => return returned(Err(libc::EINVAL)) as isize,
        // SAFETY: required of the caller (see `# Safety`).
        _ => return unsafe { libc::syscall(libc::SYS_pread64, fd, into, bytes, offset) as isize },
    };
    let read = contents.len().min(bytes);
    // SAFETY: required of the caller (see `# Safety`).
    unsafe { into.cast::<u8>().copy_from_nonoverlapping(contents.as_ptr(), read) };
    read as isize
}

/// # Safety
/// As pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, bytes: usize, offset: i64) -> isize {
    match objects::get(fd) {
        Some(Object::PageIdle) => {}
        Some(Object::Memory(_)) => return returned(Err(libc::EINVAL)) as isize,
        // SAFETY: required of the caller (see `# Safety`).
        _ => return unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, bytes, offset) as isize },
    }
    // SAFETY: the test writes words.
    idle::mark(offset as u64 / 8, unsafe { from.cast::<u64>().read() });
    8
}
