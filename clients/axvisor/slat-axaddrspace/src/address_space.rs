//! `AddrSpace`: a guest's physical address space, on slat.

use crate::frames::{self, Frames};
use crate::{GuestPhysAddr, GuestPhysAddrRange, MappingFlags, mistake};
use alloc::vec::Vec;
use axerrno::{AxError, AxResult};
use core::fmt;
use memory_addr::PhysAddr;
use page_table_multiarch::PagingHandler;
use slat::{
    Access, Fault, FaultError, Gfn, Gpa, HostError, Hva, Idle, MemoryType, Next, PAGE_SIZE, Pfn, Prefault,
    Slot, SlotError, SlotId, Span, Stats, VcpuId, Vm,
};

#[cfg(all(target_os = "none", not(target_arch = "aarch64")))]
compile_error!("this second stage is Arm's");

/// The format that matches arm_vcpu's `VTCR_EL2`: neither HA nor HD.
#[cfg(feature = "4-level-ept")]
type Stage2 = slat::table::formats::Arm64<48, false>;
#[cfg(not(feature = "4-level-ept"))]
type Stage2 = slat::table::formats::Arm64<39, false>;

/// A guest's physical address space. Its areas are memslots.
pub struct AddrSpace<H: PagingHandler> {
    range: GuestPhysAddrRange,
    vm: Vm<Stage2, Frames<H>>,
    /// The next free memslot number.
    next: u32,
    /// The statistics that the log printed last.
    told: Stats,
}

/// The token of this thread.
fn idle() -> Idle {
    // SAFETY: each function below makes one, and drops it before it returns. While a function has one, it calls no
    // other function that makes one, and the host's functions that the engine calls make none.
    unsafe { Idle::assume() }
}

fn refused(error: SlotError) -> AxError {
    log::warn!("{error}");
    match error.errno() {
        12 => AxError::NoMemory,
        17 => AxError::AlreadyExists,
        _ => AxError::InvalidInput,
    }
}

impl<H: PagingHandler> AddrSpace<H> {
    /// Returns the address space base.
    pub const fn base(&self) -> GuestPhysAddr {
        self.range.start
    }

    /// Returns the address space end.
    pub const fn end(&self) -> GuestPhysAddr {
        self.range.end
    }

    /// Returns the address space size.
    pub fn size(&self) -> usize {
        self.range.size()
    }

    /// Returns the root physical address of the page table, for `VTTBR_EL2`. It stays the same.
    pub fn page_table_root(&self) -> PhysAddr {
        PhysAddr::from(self.vm.memory().root().address() as usize)
    }

    /// Checks if the address space contains the given address range.
    pub fn contains_range(&self, start: GuestPhysAddr, size: usize) -> bool {
        let end = start.as_usize().checked_add(size);
        end.is_some_and(|end| self.base() <= start && end <= self.end().as_usize())
    }

    /// Creates a new empty address space.
    pub fn new_empty(base: GuestPhysAddr, size: usize) -> AxResult<Self> {
        let builder = Vm::builder(Frames::new()).max_slots(u32::MAX);
        let vm = builder.build().map_err(|_| AxError::NoMemory)?;
        Ok(Self {
            range: GuestPhysAddrRange::from_start_size(base, size),
            vm,
            next: 0,
            told: Stats::default(),
        })
    }

    /// Maps `size` bytes to the physical memory from `start_paddr` on, all of it at once.
    pub fn map_linear(
        &mut self,
        start_vaddr: GuestPhysAddr,
        start_paddr: PhysAddr,
        size: usize,
        flags: MappingFlags,
    ) -> AxResult {
        let hva = frames::linear(start_paddr, size).ok_or(AxError::InvalidInput)?;
        self.map(start_vaddr, size, hva, flags, true)
    }

    /// Allocates memory for `size` bytes: at once with `populate`, else page by page on faults.
    pub fn map_alloc(
        &mut self,
        start: GuestPhysAddr,
        size: usize,
        flags: MappingFlags,
        populate: bool,
    ) -> AxResult {
        self.map(start, size, frames::allocated(gpa(start)), flags, populate)
    }

    fn map(
        &mut self,
        start: GuestPhysAddr,
        size: usize,
        hva: Hva,
        flags: MappingFlags,
        populate: bool,
    ) -> AxResult {
        let gfns = self.frames(start, size)?;
        if !flags.contains(MappingFlags::READ) {
            log::warn!("{gfns:?}: memory that the guest may not read is not mapped");
            return Err(AxError::InvalidInput);
        }
        let device = flags.contains(MappingFlags::DEVICE);
        let slot = Slot {
            readonly: !flags.contains(MappingFlags::WRITE),
            execute: flags.contains(MappingFlags::EXECUTE),
            memory: match device {
                // The same as in axaddrspace's descriptors.
                true if flags.contains(MappingFlags::UNCACHED) => MemoryType::WriteCombining,
                true => MemoryType::Device,
                false => MemoryType::WriteBack,
            },
            ..Slot::new(self.name(), gfns.start, gfns.len(), hva)
        };
        self.vm.memory().commit(&mut idle(), |tx| tx.create(slot)).map_err(refused)?;
        let populated = if populate { self.populate(&slot) } else { Ok(()) };
        if populated.is_err() {
            self.take(gfns)?;
        }
        populated
    }

    fn populate(&self, slot: &Slot) -> AxResult {
        let access = if slot.readonly { Access::Read } else { Access::Write };
        let mut vcpu = self.vm.vcpu(VcpuId(0)).ok_or(AxError::BadState)?;
        let mut idle = idle();
        let mut next = slot.gfns.start;
        while next < slot.gfns.end {
            let rest = Span::new(next, slot.gfns.end);
            match vcpu.prefault(&mut idle, rest, Prefault::young(access)) {
                Ok(0) => return Err(AxError::BadState),
                Ok(frames) => next = next + frames,
                Err(FaultError::NoMemory | FaultError::Host(HostError::NoMemory)) => {
                    return Err(AxError::NoMemory);
                }
                Err(_) => return Err(AxError::BadState),
            }
        }
        Ok(())
    }

    fn name(&mut self) -> SlotId {
        self.next += 1;
        SlotId(self.next - 1)
    }

    /// The range in frames, if this space contains it.
    fn frames(&self, start: GuestPhysAddr, size: usize) -> AxResult<Span<Gfn>> {
        let (gpa, bytes) = (gpa(start), size as u64);
        if !self.contains_range(start, size) || (gpa.0 | bytes) % PAGE_SIZE != 0 {
            log::warn!("{start:?}, {size:#x} bytes: the space is {:?}, by pages of 4 KiB", self.range);
            return Err(AxError::InvalidInput);
        }
        Ok(Span::sized(gpa.gfn(), bytes / PAGE_SIZE))
    }

    /// Removes mappings within the specified range. The parts of areas outside it stay mapped.
    pub fn unmap(&mut self, start: GuestPhysAddr, size: usize) -> AxResult {
        let gone = self.frames(start, size)?;
        self.take(gone)
    }

    /// Removes all mappings.
    pub fn clear(&mut self) {
        let all =
            Span::new(gpa(self.base()).gfn(), Gfn(self.end().as_usize().div_ceil(PAGE_SIZE as usize) as u64));
        if let Err(error) = self.take(all) {
            log::error!("slat: what is mapped stays: {error:?}");
        }
    }

    fn take(&mut self, gone: Span<Gfn>) -> AxResult {
        if mistake("no-unmap") {
            return Ok(());
        }
        let slots: Vec<Slot> = self.vm.memory().snapshot(&mut idle()).range(gone).collect();
        if slots.is_empty() {
            return Ok(());
        }
        self.tell();
        // The upper part of a slot that is cut in two needs its own number.
        let parts: Vec<(Slot, SlotId)> = slots.into_iter().map(|slot| (slot, self.name())).collect();
        // All of them or none. When `commit` returns, no processor has a translation of them.
        let cut = self.vm.memory().commit(&mut idle(), |tx| {
            parts.iter().try_for_each(|(slot, rest)| tx.cut(slot.id, slot.gfns.clamp(&gone), *rest).map(drop))
        });
        cut.map_err(refused)?;
        for (slot, _) in parts {
            let gfns = slot.gfns.clamp(&gone);
            let first = slot.hva_of(gfns.start);
            self.vm.host().free(Span::sized(first, gfns.len() * PAGE_SIZE));
        }
        self.vm.collect(&mut idle());
        self.tell();
        Ok(())
    }

    /// Handles a page fault at the given address. Returns `true` if the guest may try again.
    pub fn handle_page_fault(&mut self, vaddr: GuestPhysAddr, access_flags: MappingFlags) -> bool {
        let access = if access_flags.contains(MappingFlags::WRITE) {
            Access::Write
        } else if access_flags.contains(MappingFlags::EXECUTE) {
            Access::Fetch
        } else {
            Access::Read
        };
        let Some(mut vcpu) = self.vm.vcpu(VcpuId(0)) else { return false };
        let done = vcpu.fault(&mut idle(), Fault { gpa: gpa(vaddr), access });
        matches!(done, Ok(Next::Resume(_)))
    }

    /// Translates a guest-physical address, if it is mapped.
    pub fn translate(&self, vaddr: GuestPhysAddr) -> Option<PhysAddr> {
        let gpa = gpa(vaddr);
        let (pfn, _) = self.mapped(gpa.gfn())?;
        Some(PhysAddr::from((pfn.address() + gpa.offset()) as usize))
    }

    /// The frame of `gfn`, and the end of the contiguous mapping around it.
    fn mapped(&self, gfn: Gfn) -> Option<(Pfn, Gfn)> {
        let found = self.vm.memory().translate(&mut idle(), gfn)?;
        Some((found.leaf.pfn + (gfn.0 - found.gfns.start.0), found.gfns.end))
    }

    fn area(&self, gfn: Gfn) -> Option<Slot> {
        self.vm.memory().find(&mut idle(), gfn)
    }

    /// The bytes of a range in one area, at the hypervisor's addresses.
    pub fn translated_byte_buffer(&self, vaddr: GuestPhysAddr, len: usize) -> Option<Vec<&'static mut [u8]>> {
        let (mut next, bytes) = (gpa(vaddr), len as u64);
        let area = self.area(next.gfn())?.gpas();
        let end = next.0.checked_add(bytes).filter(|&end| end <= area.end.0)?;
        let mut parts = Vec::new();
        while next.0 < end {
            let (pfn, until) = self.mapped(next.gfn())?;
            let until = end.min(until.gpa().0);
            let first = frames::seen_at::<H>(pfn).wrapping_add(next.offset() as usize);
            // SAFETY: as in the crate that this stands for: the caller keeps the area while it has these bytes, and the frames of a leaf
            // are seen in one piece.
            parts.push(unsafe { core::slice::from_raw_parts_mut(first, (until - next.0) as usize) });
            next = Gpa(until);
        }
        Some(parts)
    }

    /// Translates a guest-physical address, and returns the size of the area around it.
    pub fn translate_and_get_limit(&self, vaddr: GuestPhysAddr) -> Option<(PhysAddr, usize)> {
        let area = self.area(gpa(vaddr).gfn())?;
        Some((self.translate(vaddr)?, area.gpas().len() as usize))
    }

    /// Logs the engine's counters.
    fn tell(&mut self) {
        let stats = self.vm.stats();
        if core::mem::replace(&mut self.told, stats) == stats {
            return;
        }
        let ([small, medium, large], faults) = (stats.leaves, stats.mapped_faults);
        let (flushes, pages) = (stats.flushes.paid, stats.flushes.pages);
        let (used, lent) = (stats.table_bytes / 1024, stats.lent_bytes / 1024);
        log::info!(
            "slat: {faults} faults, {small} x 4K + {medium} x 2M + {large} x 1G mapped; {flushes} flushes of {pages} pages; \
             tables: {used} KiB in use, {lent} KiB lent"
        );
    }
}

fn gpa(address: GuestPhysAddr) -> Gpa {
    Gpa(address.as_usize() as u64)
}

impl<H: PagingHandler> fmt::Debug for AddrSpace<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddrSpace")
            .field("range", &self.range)
            .field("page_table_root", &self.page_table_root())
            .field("stats", &self.vm.stats())
            .finish()
    }
}

impl<H: PagingHandler> Drop for AddrSpace<H> {
    fn drop(&mut self) {
        self.clear();
    }
}
