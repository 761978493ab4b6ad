//! ckb-vm's `Memory` on slat. A software TLB caches the engine's translations. An access that misses the TLB exits the
//! guest ([`run`](crate::run)). The engine decides which pages are mapped, executable or dirty.

use crate::{
    ram::{RAM, Ram, new_vm, set_flags},
    tlb::{Tlb, no_entries},
};
use ckb_vm::memory::{FLAG_DIRTY, FLAG_FREEZED, fill_page_data};
use ckb_vm::{Bytes, Error, Memory, RISCV_MAX_MEMORY};
use slat::table::formats::Ept4;
use slat::{Access, Fault, Gfn, Gpa, Host, Hva, Idle, PAGE_SHIFT, PAGE_SIZE, Span, Vm};
use std::{iter::successors, sync::Arc};

type Result<T = ()> = std::result::Result<T, Error>;
type Part = std::ops::Range<usize>;

/// A guest's memory.
pub struct SlatMemory {
    /// The VM, which other threads may harvest while the guest runs.
    pub vm: Arc<Vm<Ept4, Ram>>,
    /// The cached translations.
    pub tlb: Tlb,
    /// Whether the guest makes the accesses: those take translations from the TLB alone.
    pub in_guest: bool,
    /// The access that missed the TLB.
    pub missed: Option<Fault>,
    /// The error of the next access, where the engine could not resolve the fault.
    pub refused: Option<Error>,
    reservation: u64,
}

impl SlatMemory {
    /// The host address of `addr`, for this access.
    #[inline(always)]
    fn at(&mut self, addr: u64, access: Access) -> Result<*mut u8> {
        let (pages, bytes) = &self.tlb[(addr >> PAGE_SHIFT) as usize % self.tlb.len()];
        if pages[access as usize] == addr >> PAGE_SHIFT {
            return Ok(bytes.wrapping_add(Gpa(addr).offset() as usize));
        }
        self.miss(addr, access)
    }

    /// In the guest: ends the instruction, which runs again after the fault. Outside: ckb-vm loads a program, or reads
    /// memory.
    #[cold]
    fn miss(&mut self, addr: u64, access: Access) -> Result<*mut u8> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        if self.in_guest {
            self.missed = Some(Fault { gpa: Gpa(addr), access });
            return Err(Error::Yield);
        }
        self.vm.host().check(addr, 1)?;
        let page = self.vm.host().lookup(Hva(addr), access).ok_or(Error::MemWriteOnExecutablePage)?;
        Ok(self.vm.host().page(page.pfn.0).wrapping_add(Gpa(addr).offset() as usize))
    }

    /// Calls `copy` with the part of an access in each page, once all of them are translated.
    #[inline(always)]
    fn access(&mut self, addr: u64, len: usize, how: Access, mut copy: impl FnMut(*mut u8, Part)) -> Result {
        if Gpa(addr).offset() + len as u64 <= PAGE_SIZE {
            return self.at(addr, how).map(|here| copy(here, 0..len));
        }
        let end = addr.checked_add(len as u64).ok_or(Error::MemOutOfBound)?;
        let next = |at: &u64| (at | (PAGE_SIZE - 1)).checked_add(1).filter(|&at| at < end);
        successors(Some(addr), next).try_for_each(|at| self.at(at, how).map(drop))?;
        for at in successors(Some(addr), next) {
            let from = (at - addr) as usize;
            copy(self.at(at, how)?, from..len.min(from + (PAGE_SIZE - Gpa(at).offset()) as usize));
        }
        Ok(())
    }

    #[inline(always)]
    fn load(&mut self, addr: u64, into: &mut [u8], access: Access) -> Result {
        // SAFETY: `from` is in RAM, and as many bytes of its page follow.
        self.access(addr, into.len(), access, |from, part| unsafe {
            from.copy_to_nonoverlapping(into[part.clone()].as_mut_ptr(), part.len());
        })
    }

    #[inline(always)]
    fn word<const N: usize>(&mut self, addr: u64, access: Access) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.load(addr, &mut bytes, access).map(|()| bytes)
    }

    #[inline(always)]
    fn store(&mut self, addr: u64, from: &[u8]) -> Result {
        // SAFETY: as in `load`.
        self.access(addr, from.len(), Access::Write, |to, part| unsafe {
            to.copy_from_nonoverlapping(from[part.clone()].as_ptr(), part.len());
        })?;
        if !self.in_guest && !from.is_empty() && !mistake!(StoreUnmarked) {
            // The guest did not make this store, so no fault has logged it.
            let last = Gpa(addr + from.len() as u64 - 1).gfn();
            self.vm.memory().mark_dirty(Span::new(Gpa(addr).gfn(), last + 1));
        }
        Ok(())
    }
}

macro_rules! accesses {
    ($($load:ident $store:ident $type:ty),*) => {$(
        fn $load(&mut self, addr: &u64) -> Result<u64> {
            self.word(*addr, Access::Read).map(|bytes| <$type>::from_le_bytes(bytes).into())
        }

        fn $store(&mut self, addr: &u64, value: &u64) -> Result {
            self.store(*addr, &(*value as $type).to_le_bytes())
        }
    )*};
}

impl Memory for SlatMemory {
    type REG = u64;

    fn new() -> Self {
        Self::new_with_memory(RISCV_MAX_MEMORY)
    }

    fn new_with_memory(size: usize) -> Self {
        let vm = new_vm(size >> PAGE_SHIFT).expect("made outside of a guest, with memory for a table");
        Self { vm, tlb: no_entries(), in_guest: false, missed: None, refused: None, reservation: u64::MAX }
    }

    fn init_pages(&mut self, addr: u64, size: u64, flags: u8, source: Option<Bytes>, skip: u64) -> Result {
        if !addr.is_multiple_of(PAGE_SIZE) || !size.is_multiple_of(PAGE_SIZE) {
            return Err(Error::MemPageUnalignedAccess);
        }
        self.vm.host().check(addr, size)?;
        let mut pages = addr >> PAGE_SHIFT..(addr + size) >> PAGE_SHIFT;
        if pages.clone().any(|page| self.fetch_flag(page).is_ok_and(|flag| flag & FLAG_FREEZED != 0)) {
            return Err(Error::MemWriteOnFreezedPage);
        }
        fill_page_data(self, addr, size, source, skip)?;
        pages.try_for_each(|page| self.set_flag(page, flags))
    }

    fn fetch_flag(&mut self, page: u64) -> Result<u8> {
        let dirty = u8::from(self.vm.memory().is_dirty(Gfn(page))) * FLAG_DIRTY;
        Ok(self.vm.host().flags(page)? | dirty)
    }

    fn set_flag(&mut self, page: u64, flag: u8) -> Result {
        if flag & FLAG_DIRTY != 0 {
            self.vm.memory().mark_dirty(Span::sized(Gfn(page), 1));
        }
        set_flags(&self.vm, page, self.vm.host().flags(page)? | flag)
    }

    fn clear_flag(&mut self, page: u64, flag: u8) -> Result {
        if let (true, Some(mut idle)) = (flag & FLAG_DIRTY != 0, Idle::take()) {
            let (first, bits) = (page & !63, [1 << (page & 63)]);
            let pages = (self.memory_pages() as u64 - first).min(64);
            let cleared = self.vm.memory().clear_dirty(&mut idle, RAM, first, pages, &bits);
            cleared.map_err(|error| Error::External(error.to_string()))?;
        }
        set_flags(&self.vm, page, self.vm.host().flags(page)? & !flag)
    }

    fn memory_size(&self) -> usize {
        self.vm.host().pages() << PAGE_SHIFT
    }

    fn store_byte(&mut self, addr: u64, size: u64, value: u8) -> Result {
        self.vm.host().check(addr, size)?;
        self.store(addr, &vec![value; size as usize])
    }

    fn store_bytes(&mut self, addr: u64, value: &[u8]) -> Result {
        self.store(addr, value)
    }

    fn load_bytes(&mut self, addr: u64, size: u64) -> Result<Bytes> {
        self.vm.host().check(addr, size)?;
        let mut bytes = vec![0; size as usize];
        self.load(addr, &mut bytes, Access::Read).map(|()| bytes.into())
    }

    fn execute_load16(&mut self, addr: u64) -> Result<u16> {
        self.word(addr, Access::Fetch).map(u16::from_le_bytes)
    }

    fn execute_load32(&mut self, addr: u64) -> Result<u32> {
        self.word(addr, Access::Fetch).map(u32::from_le_bytes)
    }

    accesses!(load8 store8 u8, load16 store16 u16, load32 store32 u32, load64 store64 u64);

    fn lr(&self) -> &u64 {
        &self.reservation
    }

    fn set_lr(&mut self, value: &u64) {
        self.reservation = *value;
    }
}
