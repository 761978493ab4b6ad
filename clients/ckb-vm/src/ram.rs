//! The host of a ckb-vm guest: the memory at each address, and the accesses that are allowed there.

use ckb_vm::Error as VmError;
use ckb_vm::memory::{FLAG_DIRTY, FLAG_EXECUTABLE};
use slat::table::formats::Ept4;
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, PAGE_SHIFT, PAGE_SIZE, Pfn};
use slat::{Reason, Slot, SlotId, Span, Vm};
use std::cell::UnsafeCell;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The only memslot.
pub const RAM: SlotId = SlotId(0);

/// The host. Page n of RAM is frame n at host address n × 4096, with ckb-vm's flags.
pub struct Ram(Box<[(UnsafeCell<[u8; PAGE_SIZE as usize]>, AtomicU8)]>);

// SAFETY: its bytes are reached through raw pointers alone. A guest and a copy may race there, as in real memory.
unsafe impl Sync for Ram {}

impl Host for Ram {
    /// Write XOR execute, by ckb-vm's rule: a page with the executable flag is not writable, and any other page is not
    /// executable.
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let pfn = Pfn(hva.0 >> PAGE_SHIFT);
        let execute = self.0.get(pfn.0 as usize)?.1.load(Relaxed) & FLAG_EXECUTABLE != 0;
        let allowed = access == Access::Read || (access == Access::Fetch) == execute;
        allowed.then_some(HostPage { pfn, writable: !execute, execute, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

impl Ram {
    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.0.len()
    }

    /// The address of a page's bytes.
    pub fn page(&self, page: u64) -> *mut u8 {
        self.0[page as usize].0.get().cast()
    }

    /// Checks that all of these bytes exist.
    pub fn check(&self, addr: u64, len: u64) -> Result<(), VmError> {
        let end = addr.checked_add(len).filter(|&end| end <= self.0.len() as u64 * PAGE_SIZE);
        end.map(drop).ok_or(VmError::MemOutOfBound)
    }

    /// A page's flags.
    pub fn flags(&self, page: u64) -> Result<u8, VmError> {
        self.0.get(page as usize).map(|page| page.1.load(Relaxed)).ok_or(VmError::MemOutOfBound)
    }
}

/// A VM with this many pages of RAM, all zero. Its memslot logs dirty pages from the beginning.
pub fn new_vm(pages: usize) -> Result<Arc<Vm<Ept4, Ram>>, Box<dyn Error>> {
    let ram = (0..pages).map(|_| (UnsafeCell::new([0; _]), AtomicU8::new(0))).collect();
    let vm = Vm::builder(Ram(ram)).build()?;
    let mut idle = Idle::take().ok_or("a guest runs on this thread")?;
    vm.memory()
        .commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), pages as u64, Hva(0)).log_dirty()))?;
    Ok(Arc::new(vm))
}

/// Changes a page's flags, as a host changes a mapping: it invalidates the guest's translations first.
pub fn set_flags(vm: &Vm<Ept4, Ram>, page: u64, flags: u8) -> Result<(), VmError> {
    let mut idle = Idle::take().ok_or(VmError::Unexpected("flags change outside of the guest".into()))?;
    let _change = vm
        .invalidate(Span::sized(Hva(page << PAGE_SHIFT), PAGE_SIZE), Reason::Migrate)
        .apply(&mut idle)
        .settle();
    vm.host().0[page as usize].1.store(flags & !FLAG_DIRTY, Relaxed);
    Ok(())
}
