//! Ioctls of private memory.

use crate::attributes::Bound;
use crate::guest_memory::GuestMemory;
use crate::machine::Machine;
use kvm_bindings::{
    KVM_MEM_GUEST_MEMFD, KVM_MEMORY_ATTRIBUTE_PRIVATE, kvm_memory_attributes, kvm_userspace_memory_region2,
};
use slat::{Gpa, Hva, Idle, PAGE_SHIFT, PAGE_SIZE, Slot, SlotId, Span, Why};
use std::ffi::c_int;
use std::sync::Arc;

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
        let memory = Span::sized(found.name.at(offset), bytes);
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
