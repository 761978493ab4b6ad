//! Private memory: `guest_memfd`s, the memslots that use them, and the attribute of each guest frame.
//!
//! The engine keeps the attribute of each frame in a slot with a `guest_memfd`, and converts such frames while vCPUs fault.
//! KVM keeps attributes of a VM's other frames, too. This module has those, and gives them to the slots that come later.

use crate::moves;
use crate::process_host::Engine;
use crate::vm_ioctls::Machine;
use kvm_bindings::{
    KVM_MEM_GUEST_MEMFD, KVM_MEMORY_ATTRIBUTE_PRIVATE, kvm_memory_attributes, kvm_userspace_memory_region2,
};
use slat::{Gfn, Gpa, Hva, Idle, PAGE_SHIFT, PAGE_SIZE, PrivateMemory, Slot, SlotId, Span, Why};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

/// A `guest_memfd`: memory of the kernel that no process may map, read or write. Here this library maps it, for the guest.
pub struct GuestMemory {
    memory: PrivateMemory,
    bytes: u64,
    /// KVM's `guest_memfd` keeps its VM, too.
    machine: Arc<Machine>,
}

impl GuestMemory {
    /// Makes it in `fd`, a new memfd of no bytes.
    pub fn new(machine: Arc<Machine>, fd: c_int, bytes: u64) -> Result<Self, c_int> {
        // SAFETY: the caller's descriptor.
        if unsafe { libc::ftruncate(fd, bytes as i64) } != 0 {
            return Err(libc::ENOMEM);
        }
        let memory = moves::add(fd, bytes)?;
        Ok(Self { memory, bytes, machine })
    }

    /// The name of its memory.
    pub fn name(&self) -> PrivateMemory {
        self.memory
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
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
            let hole = Span::sized(self.memory.at(start), end - start);
            self.vm().change(idle, hole, Why::Clear, |_| {
                moves::free(self.memory, (start, end - start), || call(end - start));
            });
        }
        Ok(0)
    }
}

impl Drop for GuestMemory {
    /// The last descriptor was closed. Slots that use the memory stay, and their private frames have no page any more.
    fn drop(&mut self) {
        let all = Span::sized(self.memory.at(0), self.bytes);
        let mut idle = Idle::take().expect("no test closes a descriptor inside the engine");
        let unmap = self.vm().change(&mut idle, all, Why::Unmap, |_| moves::forget(self.memory));
        unmap();
    }
}

/// The private memory of a VM of the type `KVM_X86_SW_PROTECTED_VM`.
#[derive(Default)]
pub struct Private {
    /// Private frames: the end of each range, by its start. Ranges neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
    bound: Vec<Bound>,
}

/// A slot with private memory.
struct Bound {
    slot: SlotId,
    gfns: Span<Gfn>,
    /// Its addresses in the `guest_memfd`.
    memory: Span<Hva>,
}

impl Private {
    pub fn is_private(&self, gfn: Gfn) -> bool {
        self.ranges.range(..=gfn.0).next_back().is_some_and(|(_, &end)| gfn.0 < end)
    }

    /// Whether the frame's slot has private memory, so that the engine keeps its attribute.
    pub fn is_bound(&self, gfn: Gfn) -> bool {
        self.bound.iter().any(|bound| bound.gfns.contains(gfn))
    }

    /// The first private frame in `gfns` of which no slot has private memory.
    pub fn first_without_memory(&self, gfns: Span<Gfn>) -> Option<Gfn> {
        self.inside(gfns).into_iter().find_map(|range| {
            let mut at = range.start;
            while let Some(bound) = self.bound.iter().find(|bound| bound.gfns.contains(at)) {
                at = bound.gfns.end;
            }
            (at < range.end).then_some(at)
        })
    }

    /// The private ranges in `gfns`.
    fn inside(&self, gfns: Span<Gfn>) -> Vec<Span<Gfn>> {
        let ranges = self.ranges.iter().map(|(&start, &end)| Span::new(Gfn(start), Gfn(end)).clamp(&gfns));
        ranges.filter(|range| !range.is_empty()).collect()
    }

    fn set(&mut self, gfns: Span<Gfn>, private: bool) {
        let (mut start, mut end) = (gfns.start.0, gfns.end.0);
        let touching: Vec<_> =
            self.ranges.range(..=end).filter(|(_, other)| **other >= start).map(|(&a, &b)| (a, b)).collect();
        for (a, b) in touching {
            self.ranges.remove(&a);
            if private {
                (start, end) = (start.min(a), end.max(b));
                continue;
            }
            for (a, b) in [(a, b.min(start)), (a.max(end), b)] {
                if a < b {
                    self.ranges.insert(a, b);
                }
            }
        }
        if private {
            self.ranges.insert(start, end);
        }
    }

    /// Forgets a slot that is deleted.
    pub fn unbind(&mut self, slot: SlotId) {
        self.bound.retain(|bound| bound.slot != slot);
    }
}

impl Machine {
    /// `KVM_SET_USER_MEMORY_REGION2` with `KVM_MEM_GUEST_MEMFD`, with KVM's checks in KVM's order. `find` returns the
    /// `guest_memfd` of a descriptor.
    pub fn bind(
        &self,
        idle: &mut Idle,
        asked: &kvm_userspace_memory_region2,
        find: impl FnOnce(c_int) -> Result<Arc<GuestMemory>, c_int>,
    ) -> Result<(), c_int> {
        let &kvm_userspace_memory_region2 {
            slot: id, flags, guest_phys_addr: gpa, memory_size: bytes, ..
        } = asked;
        let offset = asked.guest_memfd_offset;
        let private = self.private.as_ref().ok_or(libc::EINVAL)?;
        let aligned = (gpa | bytes | offset).is_multiple_of(PAGE_SIZE);
        let wraps = gpa.checked_add(bytes).is_none() || offset.checked_add(bytes).is_none();
        if flags != KVM_MEM_GUEST_MEMFD || !aligned || wraps || bytes == 0 {
            return Err(libc::EINVAL);
        }
        let id = SlotId(id);
        if self.vm().memory().get(idle, id).is_some() {
            return Err(libc::EINVAL); // it cannot change
        }
        let found = find(asked.guest_memfd as c_int)?;
        if !std::ptr::eq(&raw const *found.machine, self) || offset + bytes > found.bytes {
            return Err(libc::EINVAL);
        }
        let slot = Slot::new(id, Gpa(gpa).gfn(), bytes >> PAGE_SHIFT, Hva(asked.userspace_addr));
        let memory = Span::sized(found.memory.at(offset), bytes);
        // Before the transaction: a fault that holds this lock may wait for it.
        let mut private = private.write().unwrap();
        if private.bound.iter().any(|other| other.memory.overlaps(&memory)) {
            return Err(libc::EEXIST);
        }
        let created = self.vm().memory().commit(idle, |tx| {
            tx.create_with_private(slot, memory.start)?;
            private.inside(slot.gfns).into_iter().try_for_each(|gfns| tx.set_private(gfns, true))
        });
        created.map_err(|error| error.errno())?;
        private.bound.push(Bound { slot: id, gfns: slot.gfns, memory });
        Ok(())
    }

    /// `KVM_SET_MEMORY_ATTRIBUTES`.
    pub fn set_attributes(&self, idle: &mut Idle, asked: &kvm_memory_attributes) -> Result<(), c_int> {
        let &kvm_memory_attributes { address, size, attributes, flags } = asked;
        let known = if self.private.is_some() { u64::from(KVM_MEMORY_ATTRIBUTE_PRIVATE) } else { 0 };
        let end = address.checked_add(size).ok_or(libc::EINVAL)?;
        if flags != 0 || attributes & !known != 0 || size == 0 || !(address | size).is_multiple_of(PAGE_SIZE)
        {
            return Err(libc::EINVAL);
        }
        let Some(private) = &self.private else { return Ok(()) };
        let (gfns, to) = (Span::new(Gpa(address).gfn(), Gpa(end).gfn()), attributes != 0);
        let bound: Vec<_> = {
            let mut private = private.write().unwrap();
            private.set(gfns, to);
            private
                .bound
                .iter()
                .map(|bound| bound.gfns.clamp(&gfns))
                .filter(|gfns| !gfns.is_empty())
                .collect()
        };
        let converted =
            self.vm().memory().commit(idle, |tx| bound.iter().try_for_each(|&gfns| tx.set_private(gfns, to)));
        converted.map_err(|error| error.errno())?;
        // The other slots lose what they have mapped there: a private access to them must fault.
        let mut others = Vec::new();
        self.vm().memory().for_each(idle, |slot| {
            let inside = slot.gfns.clamp(&gfns);
            if !inside.is_empty() && !bound.iter().any(|gfns| gfns.covers(&inside)) {
                others.push(inside);
            }
        });
        for gfns in others {
            drop(self.vm().memory().invalidate(gfns, Why::Unmap).apply(idle).settle());
        }
        Ok(())
    }
}
