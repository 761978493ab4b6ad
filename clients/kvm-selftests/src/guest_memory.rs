//! A `guest_memfd`: what fallocate(2) does to it, and the thread that moves its pages.

use crate::machine::Machine;
use crate::moves;
use crate::process_host::Engine;
use slat::{Idle, PAGE_SIZE, PrivateMemory, Span, Why};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// A `guest_memfd`: memory of the kernel that no process may map, read or write. Here this library maps it, for the guest.
pub struct GuestMemory {
    pub name: PrivateMemory,
    pub bytes: u64,
    /// KVM's `guest_memfd` keeps its VM, too.
    pub machine: Arc<Machine>,
}

impl GuestMemory {
    /// Makes it in `fd`, a new memfd of no bytes.
    pub fn new(machine: Arc<Machine>, fd: c_int, bytes: u64) -> Result<Self, c_int> {
        // SAFETY: the caller's descriptor.
        if unsafe { libc::ftruncate(fd, bytes as i64) } != 0 {
            return Err(libc::ENOMEM);
        }
        let name = moves::add(fd, bytes)?;
        Ok(Self { name, bytes, machine })
    }

    pub fn vm(&self) -> &Arc<Engine> {
        self.machine.vm()
    }

    /// fallocate(2) of its descriptor `fd`, with KVM's checks in KVM's order.
    pub fn fallocate(&self, fd: c_int, mode: c_int, offset: i64, bytes: i64) -> Result<c_int, c_int> {
        let (keeps, punches) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
        if mode & keeps == 0 || mode & !(keeps | punches) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let (Ok(start), Ok(bytes)) = (u64::try_from(offset), u64::try_from(bytes)) else {
            return Err(libc::EINVAL);
        };
        if bytes == 0 || !(start | bytes).is_multiple_of(PAGE_SIZE) {
            return Err(libc::EINVAL);
        }
        let end = start.checked_add(bytes).ok_or(libc::EFBIG)?;
        // SAFETY: a memfd of this library.
        let call =
            |bytes: u64| unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, start, bytes) as c_int };
        if mode & punches == 0 {
            return if end <= self.bytes && call(bytes) == 0 { Ok(0) } else { Err(libc::EINVAL) };
        }
        let end = end.min(self.bytes);
        if start < end {
            let idle = &mut Idle::take().ok_or(libc::EDEADLK)?;
            let hole = Span::sized(self.name.at(start), end - start);
            self.vm().change(idle, hole, Why::Clear, |_| {
                moves::free(self.name, (start, end - start), || call(end - start));
            });
        }
        Ok(0)
    }
}

impl Drop for GuestMemory {
    /// The last descriptor was closed. Slots that use the memory stay, and their private frames have no page any more.
    fn drop(&mut self) {
        let all = Span::sized(self.name.at(0), self.bytes);
        let mut idle = Idle::take().expect("no test closes a descriptor inside the engine");
        let unmap = self.vm().change(&mut idle, all, Why::Unmap, |_| moves::forget(self.name));
        unmap();
    }
}

/// Starts the thread that moves a new memory's pages, if it is asked for. It ends with the memory.
pub fn start(memory: &Arc<GuestMemory>) {
    if std::env::var_os("SLAT_MOVES").is_none() {
        return;
    }
    moves::count();
    let (memory, mut random) = (Arc::downgrade(memory), 1u64);
    std::thread::spawn(move || {
        while let Some(memory) = memory.upgrade() {
            let Some(mut idle) = Idle::take() else { return };
            for _ in 0..32 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = (random >> 33) % (memory.bytes / PAGE_SIZE);
                let hvas = Span::sized(memory.name.at(page * PAGE_SIZE), PAGE_SIZE);
                memory
                    .vm()
                    .change(&mut idle, hvas, Why::Migrate, |_| moves::move_page(memory.name, page as usize));
            }
            // The last reference ends the memory, which needs this thread's token.
            drop(idle);
            drop(memory);
            std::thread::sleep(Duration::from_micros(200));
        }
    });
}
