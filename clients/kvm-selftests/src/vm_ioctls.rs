//! Ioctls of a VM: memslots, dirty logs. Each ioctl is a call of the engine, whose errors have KVM's numbers.

use crate::abi;
use crate::capabilities::{capability, manual_options};
use crate::guest_memory::GuestMemory;
use crate::machine::Machine;
use crate::process_host::{Process, harvesting};
use kvm_bindings::{
    KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_DISABLE_QUIRKS2, KVM_CAP_EXIT_HYPERCALL,
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_CAP_VM_DISABLE_NX_HUGE_PAGES, KVM_DIRTY_LOG_INITIALLY_SET,
    KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, KVM_MEM_GUEST_MEMFD, kvm_clear_dirty_log, kvm_dirty_log,
    kvm_enable_cap, kvm_userspace_memory_region, kvm_userspace_memory_region2,
};
use slat::slots::{Change, Region};
use slat::table::formats::Ept4;
use slat::{DirtyError, DirtyLog, Gpa, GuestSpace, Hva, Idle, RingSize, SlotError, SlotId, SpaceId};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Machine {
    /// `find` returns the `guest_memfd` of a descriptor.
    ///
    /// # Safety
    /// `argument` is what the ioctl of this number takes.
    pub unsafe fn ioctl(
        &self,
        number: u32,
        argument: *mut c_void,
        find: impl FnOnce(c_int) -> Result<Arc<GuestMemory>, c_int>,
    ) -> Result<c_int, c_int> {
        let idle = &mut Idle::take().ok_or(libc::EDEADLK)?;
        // SAFETY: required of the caller (see `# Safety`).
        unsafe {
            match number {
                abi::CHECK_EXTENSION => return Ok(capability(argument as u32, self.private.is_some())),
                abi::SET_USER_MEMORY_REGION => self.set_region(idle, &*argument.cast())?,
                abi::SET_USER_MEMORY_REGION2 => self.set_region2(idle, &*argument.cast(), find)?,
                abi::SET_MEMORY_ATTRIBUTES => {
                    let _changing = self.slots.lock().unwrap();
                    self.set_attributes(idle, &*argument.cast())?;
                }
                abi::GET_DIRTY_LOG => harvesting(|| self.get_dirty_log(idle, &*argument.cast()))?,
                abi::CLEAR_DIRTY_LOG => harvesting(|| self.clear_dirty_log(idle, &*argument.cast()))?,
                abi::RESET_DIRTY_RINGS => {
                    return harvesting(|| self.reset_rings(idle)).map_err(|error| error.errno());
                }
                abi::ENABLE_CAP => self.enable(idle, &*argument.cast())?,
                abi::SET_NR_MMU_PAGES | abi::CREATE_IRQCHIP => {}
                _ => return Err(libc::ENOTTY),
            }
        }
        Ok(0)
    }

    /// The address space in the upper half of a slot's number.
    fn space(&self, slot: u32) -> Result<GuestSpace<'_, Ept4, Process>, c_int> {
        let id = u8::try_from(slot >> 16).map_err(|_| libc::EINVAL)?;
        self.vm().space(SpaceId(id)).ok_or(libc::EINVAL)
    }

    fn set_region(&self, idle: &mut Idle, asked: &kvm_userspace_memory_region) -> Result<(), c_int> {
        let _changing = self.slots.lock().unwrap();
        self.change_region(idle, asked)
    }

    fn change_region(&self, idle: &mut Idle, asked: &kvm_userspace_memory_region) -> Result<(), c_int> {
        let region = Region {
            slot: SlotId(asked.slot & 0xffff),
            flags: asked.flags,
            gpa: Gpa(asked.guest_phys_addr),
            bytes: asked.memory_size,
            hva: Hva(asked.userspace_addr),
        };
        let change = self.space(asked.slot)?.set(idle, region).map_err(|error: SlotError| error.errno())?;
        if let (Change::Deleted(slot), Some(private)) = (change, &self.private) {
            private.write().unwrap().unbind(slot.id);
        }
        Ok(())
    }

    /// The later ioctl, with a `guest_memfd`. Without the flag, KVM ignores the descriptor. In a VM that has no private
    /// memory the engine refuses the flag, as KVM does.
    fn set_region2(
        &self,
        idle: &mut Idle,
        asked: &kvm_userspace_memory_region2,
        find: impl FnOnce(c_int) -> Result<Arc<GuestMemory>, c_int>,
    ) -> Result<(), c_int> {
        let &kvm_userspace_memory_region2 {
            slot,
            mut flags,
            guest_phys_addr,
            memory_size,
            userspace_addr,
            ..
        } = asked;
        let _changing = self.slots.lock().unwrap();
        if self.private.is_some() && flags & KVM_MEM_GUEST_MEMFD != 0 {
            if memory_size != 0 {
                return self.bind(idle, asked, find);
            }
            flags &= !KVM_MEM_GUEST_MEMFD;
        }
        let region =
            kvm_userspace_memory_region { slot, flags, guest_phys_addr, memory_size, userspace_addr };
        self.change_region(idle, &region)
    }

    /// # Safety
    /// The bitmap has room for the slot.
    unsafe fn get_dirty_log(&self, idle: &mut Idle, asked: &kvm_dirty_log) -> Result<(), c_int> {
        let (space, id) = (self.space(asked.slot)?, SlotId(asked.slot & 0xffff));
        let slot = space.get(idle, id).ok_or(libc::ENOENT)?;
        let words = slot.gfns.len().div_ceil(64) as usize;
        // SAFETY: required of the caller (see `# Safety`).
        let into = unsafe {
            std::slice::from_raw_parts_mut(asked.__bindgen_anon_1.dirty_bitmap.cast::<u64>(), words)
        };
        let copied: Result<(), DirtyError> = (|| {
            if self.dirty.lock().unwrap().manual {
                space.dirty_bits(idle, id, into)?;
            } else {
                let harvest = space.harvest(idle, id)?;
                into.fill(0);
                for word in harvest.words() {
                    into[(word.first.page / 64) as usize] = word.bits;
                }
                harvest.commit();
            }
            Ok(())
        })();
        copied.map_err(|error| error.errno())
    }

    /// # Safety
    /// The bitmap has these pages.
    unsafe fn clear_dirty_log(&self, idle: &mut Idle, asked: &kvm_clear_dirty_log) -> Result<(), c_int> {
        let (space, id) = (self.space(asked.slot)?, SlotId(asked.slot & 0xffff));
        let (first, pages) = (asked.first_page, u64::from(asked.num_pages));
        // SAFETY: required of the caller (see `# Safety`).
        let bits = unsafe {
            let bits = asked.__bindgen_anon_1.dirty_bitmap.cast::<u64>();
            std::slice::from_raw_parts(bits, pages.div_ceil(64) as usize)
        };
        space.clear_dirty(idle, id, first, pages, bits).map_err(|error| error.errno())?;
        Ok(())
    }

    fn reset_rings(&self, idle: &mut Idle) -> Result<c_int, DirtyError> {
        let rings = self.rings.lock().unwrap();
        let mut rings: HashMap<_, _> = rings.iter().map(|(id, ring)| (*id, ring.lock().unwrap())).collect();
        let collected: HashMap<_, _> = rings.iter().map(|(id, ring)| (*id, ring.collected())).collect();
        self.vm().reset_rings_in_part(idle, |id| collected.get(&id).copied().unwrap_or(0) as u64)?;
        for (id, ring) in &mut rings {
            ring.free(collected[id]);
        }
        Ok(collected.values().sum::<usize>() as c_int)
    }

    fn enable(&self, idle: &mut Idle, asked: &kvm_enable_cap) -> Result<(), c_int> {
        let mut chosen = self.dirty.lock().unwrap();
        let option = asked.args[0];
        match asked.cap {
            KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 => {
                let manual = option & u64::from(KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE) != 0;
                let allowed = if manual { manual_options() } else { 0 };
                if option & !u64::from(allowed) != 0 {
                    return Err(libc::EINVAL);
                }
                let ring = chosen.ring.map_or(DirtyLog::bitmap(), DirtyLog::ring);
                let set = option & u64::from(KVM_DIRTY_LOG_INITIALLY_SET) != 0;
                let log = if set { ring.initially_set() } else { ring };
                self.vm().set_dirty_log(idle, log).map_err(|error| error.errno())?;
                (chosen.manual, chosen.log) = (manual, log);
            }
            KVM_CAP_DIRTY_LOG_RING | KVM_CAP_DIRTY_LOG_RING_ACQ_REL => {
                let bytes = u32::try_from(option).map_err(|_| libc::E2BIG)?;
                let size = RingSize::new(bytes).map_err(|error| error.errno())?;
                let log = DirtyLog::ring(size);
                self.vm().set_dirty_log(idle, log).map_err(|error| error.errno())?;
                (chosen.ring, chosen.log) = (Some(size), log);
            }
            KVM_CAP_EXIT_HYPERCALL => {
                if option & !(1 << abi::MAP_GPA_RANGE) != 0 {
                    return Err(libc::EINVAL);
                }
                self.hypercalls_exit.store(option != 0, Ordering::SeqCst);
            }
            KVM_CAP_VM_DISABLE_NX_HUGE_PAGES if option == 0 => {
                drop(chosen);
                self.let_large_pages_execute(idle)?;
            }
            // The engine zaps what a slot loses, and nothing else, with the quirk and without.
            KVM_CAP_DISABLE_QUIRKS2 if option & !(capability(asked.cap, true) as u64) == 0 => {}
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }
}
