//! Memory of slat-mm in its current state: an access brings pages in.

use crate::checked::{advance, denied};
use crate::engine::{EngineLog, EngineMarks};
use crate::region::Region;
use crate::slot_regions::Memory;
use crate::view::View;
use slat::{Access, Format, Gfn, Gpa, Host, Idle, PAGE_SIZE, Slot, Vm};
use slat_mm::AddressSpace;
use std::fmt;
use std::io;
use std::iter::FusedIterator;
use std::sync::Arc;
use vm_memory::bitmap::BS;
use vm_memory::guest_memory::{GuestMemorySliceIterator, Result};
use vm_memory::{
    Address, GuestAddress, GuestMemory, GuestMemoryError, GuestUsize, Permissions, VolatileSlice,
};

/// The memory of a VM on slat-mm: each access sees its current slots and pages.
///
/// An access looks up the slot, brings the page in, and pins it while its slice lives. Other pages may be
/// swapped out, shared or moved meanwhile, and memslots may change. Writes are marked in the VM's dirty log. A
/// slice covers at most one page.
///
/// An access takes the thread's [`Idle`], since it may sleep. If the caller holds the `Idle`, the access fails
/// with an error of kind `WouldBlock`.
///
/// ```
/// use slat::{table::formats::Npt4, *};
/// use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
/// use slat_vm_memory::Live;
/// use std::sync::Arc;
/// use vm_memory::{Bytes, GuestAddress};
///
/// let mut idle = Idle::take().unwrap();
/// let arena = Arena::builder().limit(16 << 20).build()?;
/// let space = AddressSpace::builder(&arena).build()?;
/// let ram = space.mmap(Place::Fixed(Hva(1 << 30)), 1 << 20, Prot::ReadWrite, Backing::Anonymous)?;
/// let vm = Arc::new(Vm::<Npt4, _>::builder(HostView::new(&space)).build()?);
/// space.register(&vm);
/// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 256, ram.start).log_dirty()))?;
/// drop(idle);
///
/// let memory = Live::new(&vm, &space);
/// memory.write_slice(b"hello", GuestAddress(0x5ffe))?; // across a page boundary
/// let mut idle = Idle::take().unwrap();
/// space.migrate(&mut idle, ram)?; // both pages move
/// assert_eq!(vm.memory().harvest_all(&mut idle)?.pages(), 2);
/// drop(idle);
/// let mut hello = [0; 5];
/// memory.read_slice(&mut hello, GuestAddress(0x5ffe))?;
/// assert_eq!(&hello, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Live<F: Format, H: Host> {
    vm: Arc<Vm<F, H>>,
    space: Arc<AddressSpace>,
}

/// The slices of one access to [`Live`] memory, page by page.
pub struct LiveSlices<'a, F: Format, H: Host> {
    live: &'a Live<F, H>,
    at: GuestAddress,
    left: usize,
    access: Access,
}

impl<F: Format, H: Host> Clone for Live<F, H> {
    fn clone(&self) -> Self {
        Self { vm: self.vm.clone(), space: self.space.clone() }
    }
}

impl<F: Format, H: Host> fmt::Debug for Live<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("slots", &self.vm.memory().len()).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> fmt::Debug for LiveSlices<'_, F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveSlices").field("at", &self.at).field("left", &self.left).finish_non_exhaustive()
    }
}

/// Takes this thread's `Idle`.
fn idle() -> io::Result<Idle> {
    Idle::take().ok_or_else(|| io::Error::new(io::ErrorKind::WouldBlock, "the calling thread holds its Idle"))
}

impl<F: Format, H: Host + 'static> Live<F, H> {
    /// Wraps the memory of `vm`, whose memslots are backed by `space`.
    pub fn new(vm: &Arc<Vm<F, H>>, space: &Arc<AddressSpace>) -> Self {
        Self { vm: vm.clone(), space: space.clone() }
    }

    /// Returns the current slots as raw memory, for kernel loaders and other users of regions. Brings in and
    /// pins every page, and maps it a second time, so that each region is contiguous. Guests use the same
    /// pages. They stay pinned until the value is dropped. Fails for a slot whose host mapping is read-only.
    /// May sleep.
    pub fn view(&self) -> io::Result<Memory<Region<View, EngineLog<F, H>>>> {
        let mut idle = idle()?;
        let mut slots = Vec::new();
        self.vm.memory().for_each(&mut idle, |slot| slots.push(slot));
        let mut region = |slot: Slot| {
            let view = View::new(&self.space, &mut idle, slot.hvas())?;
            let log = EngineLog::new(&self.vm, &slot);
            let start = GuestAddress(slot.gpas().start.0);
            let region = Region::with_bitmap(slot.id, start, view, log).map_err(io::Error::other)?;
            Ok(Arc::new(if slot.readonly { region.readonly() } else { region }))
        };
        let regions = slots.into_iter().map(&mut region).collect::<io::Result<Vec<_>>>()?;
        Memory::new(regions).map_err(io::Error::other)
    }
}

impl<'a, F: Format, H: Host + 'static> LiveSlices<'a, F, H> {
    fn slice(&mut self) -> Result<VolatileSlice<'a, EngineMarks<'a, F, H>>> {
        let Live { vm, space } = self.live;
        let gpa = Gpa(self.at.raw_value());
        let len = self.left.min((PAGE_SIZE - gpa.offset()) as usize);
        let next = advance(self.at, len)?;
        let mut idle = idle().map_err(GuestMemoryError::IOError)?;
        let slot =
            vm.memory().find(&mut idle, gpa.gfn()).ok_or(GuestMemoryError::InvalidGuestAddress(self.at))?;
        if slot.readonly && self.access == Access::Write {
            return Err(denied());
        }
        let hva = slot.hva_of(gpa.gfn()) + gpa.offset();
        let pin = space.pin_page(&mut idle, hva, self.access);
        let pin = pin.map_err(|error| GuestMemoryError::IOError(io::Error::other(error)))?;
        let (at, marks) = (pin.as_ptr(), EngineMarks::pinned(vm, gpa, hva, pin));
        (self.at, self.left) = (next, self.left - len);
        // SAFETY: up to the end of its page. The slice holds the marks, which hold the pin, which keeps the
        // page in place. vm-memory keeps the bitmap with every part of a slice, and copies by volatile
        // accesses.
        Ok(unsafe { VolatileSlice::with_bitmap(at, len, marks, None) })
    }
}

impl<'a, F: Format, H: Host + 'static> Iterator for LiveSlices<'a, F, H> {
    type Item = Result<VolatileSlice<'a, EngineMarks<'a, F, H>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let slice = self.slice();
        if slice.is_err() {
            self.left = 0;
        }
        Some(slice)
    }
}

impl<F: Format, H: Host + 'static> FusedIterator for LiveSlices<'_, F, H> {}

impl<'a, F: Format, H: Host + 'static> GuestMemorySliceIterator<'a, EngineMarks<'a, F, H>>
    for LiveSlices<'a, F, H>
{
}

impl<F: Format, H: Host + 'static> GuestMemory for Live<F, H> {
    type PhysicalMemory = Memory<Region<View, EngineLog<F, H>>>;
    type Bitmap = EngineLog<F, H>;

    /// Whether slots exist that allow the access. Brings no page in.
    fn check_range(&self, addr: GuestAddress, count: usize, access: Permissions) -> bool {
        let (Some(end), Ok(mut idle)) = (addr.checked_add(count as GuestUsize), idle()) else { return false };
        let (mut at, end) = (Gpa(addr.0).gfn(), Gfn(end.0.div_ceil(PAGE_SIZE)));
        while count > 0 && at < end {
            match self.vm.memory().find(&mut idle, at) {
                Some(slot) if !(slot.readonly && access.has_write()) => at = slot.gfns.end,
                _ => return false,
            }
        }
        true
    }

    fn get_slices(
        &self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'_, BS<'_, EngineLog<F, H>>>> {
        let access = if access.has_write() { Access::Write } else { Access::Read };
        Ok(LiveSlices { live: self, at: addr, left: count, access })
    }
}
