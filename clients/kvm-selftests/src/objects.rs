//! The object of each descriptor. Each descriptor is a memfd, so that the kernel itself maps, copies and numbers it.

use crate::shared::Shared;
use crate::vcpu::Cpu;
use crate::vm_ioctls::Machine;
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

/// Makes a VM.
pub fn add_machine() -> Result<c_int, c_int> {
    add(Object::Vm(Arc::new(Machine::new()?)))
}

/// Makes a vCPU of a VM. Its descriptor has the memory that it shares with its VMM.
pub fn add_vcpu(machine: &Machine, id: VcpuId) -> Result<c_int, c_int> {
    with_descriptor(|fd| {
        let share = |pages| resized(fd, pages).and_then(|()| Shared::map(fd, pages));
        Ok(Object::Vcpu(Arc::new(Mutex::new(machine.vcpu(id, share)?))))
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

pub fn remove(fd: c_int) -> Option<Object> {
    OBJECTS.lock().unwrap().remove(&fd)
}

pub fn machines() -> Vec<Arc<Machine>> {
    let machine =
        |object: &Object| if let Object::Vm(machine) = object { Some(machine.clone()) } else { None };
    OBJECTS.lock().unwrap().values().filter_map(machine).collect()
}
