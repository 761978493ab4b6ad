//! The object of each descriptor. Each descriptor is a memfd, so that the kernel itself maps, copies and numbers it.

use crate::guest_memory::{self, GuestMemory};
use crate::machine::Machine;
use crate::nx;
use crate::shared::Shared;
use crate::stats::Statistics;
use crate::vcpu::Cpu;
use kvm_bindings::kvm_create_guest_memfd;
use slat::VcpuId;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, LazyLock, Mutex};

/// The object of a descriptor.
#[derive(Clone)]
pub enum Object {
    /// `/dev/kvm`.
    Kvm,
    Vm(Arc<Machine>),
    Vcpu(Arc<Mutex<Cpu>>),
    /// Of `KVM_CREATE_GUEST_MEMFD`.
    Memory(Arc<GuestMemory>),
    /// Of `KVM_GET_STATS_FD`.
    Statistics(Statistics),
    /// `/proc/self/pagemap`.
    Pagemap,
    /// `/sys/kernel/mm/page_idle/bitmap`.
    PageIdle,
}

static OBJECTS: LazyLock<Mutex<HashMap<c_int, Object>>> = LazyLock::new(Mutex::default);

/// Makes a descriptor of one page for this object.
pub fn add(object: Object) -> Result<c_int, c_int> {
    with_descriptor(|fd| resized(fd, 1).map(|()| object))
}

/// Makes a VM of this type.
pub fn add_machine(kind: u64) -> Result<c_int, c_int> {
    let machine = Arc::new(Machine::new(kind)?);
    nx::start(&machine);
    add(Object::Vm(machine))
}

/// Makes a `guest_memfd` of a VM.
pub fn add_memory(machine: &Arc<Machine>, asked: &kvm_create_guest_memfd) -> Result<c_int, c_int> {
    if asked.flags != 0
        || asked.size == 0
        || !asked.size.is_multiple_of(slat::PAGE_SIZE)
        || asked.size >> 63 != 0
    {
        return Err(libc::EINVAL);
    }
    with_descriptor(|fd| {
        let memory = Arc::new(GuestMemory::new(machine.clone(), fd, asked.size)?);
        guest_memory::start(&memory);
        Ok(Object::Memory(memory))
    })
}

/// Makes a descriptor from which the process reads `contents`.
pub fn add_file(contents: &[u8]) -> Result<c_int, c_int> {
    // SAFETY: a new descriptor, and plain bytes.
    unsafe {
        let fd = libc::memfd_create(c"parameter".as_ptr(), libc::MFD_CLOEXEC);
        let written = libc::syscall(libc::SYS_pwrite64, fd, contents.as_ptr(), contents.len(), 0);
        if written == contents.len() as i64 { Ok(fd) } else { Err(libc::EMFILE) }
    }
}

/// The `guest_memfd` of a descriptor.
pub fn memory(fd: c_int) -> Result<Arc<GuestMemory>, c_int> {
    match get(fd) {
        Some(Object::Memory(memory)) => Ok(memory),
        // SAFETY: any number may be asked.
        _ => Err(if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 { libc::EBADF } else { libc::EINVAL }),
    }
}

/// Makes a vCPU of a VM. Its descriptor has the memory that it shares with its VMM.
pub fn add_vcpu(machine: &Arc<Machine>, id: VcpuId) -> Result<c_int, c_int> {
    with_descriptor(|fd| {
        let share = |pages| resized(fd, pages).and_then(|()| Shared::map(fd, pages));
        let vcpu = Cpu::new(machine.clone(), machine.vcpu(id, share)?);
        Ok(Object::Vcpu(Arc::new(Mutex::new(vcpu))))
    })
}

/// Makes a descriptor, and calls `make` with it for its object.
fn with_descriptor(make: impl FnOnce(c_int) -> Result<Object, c_int>) -> Result<c_int, c_int> {
    // SAFETY: a new descriptor.
    let fd = unsafe { libc::memfd_create(c"kvm".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(libc::EMFILE);
    }
    match make(fd) {
        Ok(object) => {
            OBJECTS.lock().unwrap().insert(fd, object);
            Ok(fd)
        }
        Err(errno) => {
            // SAFETY: ours.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            Err(errno)
        }
    }
}

/// Gives a descriptor this many pages.
fn resized(fd: c_int, pages: usize) -> Result<(), c_int> {
    // SAFETY: the caller's descriptor.
    let done = unsafe { libc::ftruncate(fd, (pages * slat::PAGE_SIZE as usize) as i64) };
    if done == 0 { Ok(()) } else { Err(libc::ENOMEM) }
}

pub fn get(fd: c_int) -> Option<Object> {
    OBJECTS.lock().unwrap().get(&fd).cloned()
}

/// Makes `copy` a descriptor of the object of `fd`, if that has one.
pub fn copy(fd: c_int, copy: c_int) {
    let mut objects = OBJECTS.lock().unwrap();
    if let Some(object) = objects.get(&fd).cloned() {
        objects.insert(copy, object);
    }
}

pub fn remove(fd: c_int) -> Option<Object> {
    OBJECTS.lock().unwrap().remove(&fd)
}

pub fn machines() -> Vec<Arc<Machine>> {
    let machine =
        |object: &Object| if let Object::Vm(machine) = object { Some(machine.clone()) } else { None };
    OBJECTS.lock().unwrap().values().filter_map(machine).collect()
}
