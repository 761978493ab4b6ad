//! A nested page table for axaddrspace 0.6, which keeps the areas of a guest's space itself and asks for pages one by one.
//!
//! AxVisor names pages, not memslots, so the table is a [`Map`], not a `Vm`. Its owner makes the flushes: in AxVisor
//! 0.8 axvm's gate keeps every guest out while it edits a table. Table pages stay until the map is dropped.
//!
//! Compiled with `SLAT_MISTAKE=no-unmap`, it keeps mappings that its caller removes, and tests must find this.

#![no_std]

use ax_memory_addr::{PhysAddr, VirtAddr};
use axaddrspace::{AddrSpaceError, AddrSpaceResult, MappingFlags, NestedPageTableOps, PageSize};
use axvm_types::GuestPhysAddr;
use core::marker::PhantomData;
use core::ptr::NonNull;
use slat::map::{Map, ReachError};
use slat::table::NoMemory;
use slat::{
    Access, Format, Gfn, Leaf, Level, MemoryType, PAGE_SHIFT, PAGE_SIZE, Perms, Pfn, Span, TableMemory,
};

/// The hypervisor's frames of 4 KiB.
pub trait Frames: 'static {
    /// A frame with any contents.
    fn alloc() -> Option<PhysAddr>;
    /// Takes a frame back.
    fn dealloc(frame: PhysAddr);
    /// The hypervisor's address of a frame.
    fn seen_at(frame: PhysAddr) -> VirtAddr;
}

struct Tables<H>(PhantomData<fn() -> H>);

// SAFETY: frames of the hypervisor's, which are the map's until they are given back. It sees each of them at one place.
unsafe impl<H: Frames> TableMemory for Tables<H> {
    const SINGLE_PAGES: bool = true;

    fn lend(&self, frames: usize) -> Option<(NonNull<u8>, Pfn)> {
        debug_assert_eq!(frames, 1, "roots have one page");
        let pfn = frame_of(H::alloc()?);
        Some((self.at(pfn), pfn))
    }

    unsafe fn take_back(&self, _: NonNull<u8>, pfn: Pfn, _: usize) {
        H::dealloc(address_of(pfn));
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        NonNull::new(H::seen_at(address_of(pfn)).as_mut_ptr()).expect("no frame is seen at address zero")
    }
}

fn frame_of(frame: PhysAddr) -> Pfn {
    Pfn(frame.as_usize() as u64 >> PAGE_SHIFT)
}

fn address_of(pfn: Pfn) -> PhysAddr {
    PhysAddr::from(pfn.address() as usize)
}

fn page_of(gpa: GuestPhysAddr) -> Gfn {
    Gfn(gpa.as_usize() as u64 >> PAGE_SHIFT)
}

fn failed(error: ReachError) -> AddrSpaceError {
    match error {
        ReachError::Beyond(_) => AddrSpaceError::InvalidMapping,
        _ => AddrSpaceError::MappingState,
    }
}

fn leaf(frame: PhysAddr, flags: MappingFlags) -> Leaf {
    let device = flags.contains(MappingFlags::DEVICE);
    Leaf {
        perms: Perms::of(true, flags.contains(MappingFlags::WRITE), flags.contains(MappingFlags::EXECUTE)),
        memory: match (device, flags.contains(MappingFlags::UNCACHED)) {
            (true, false) => MemoryType::Device,
            (_, true) => MemoryType::Uncached,
            (false, false) => MemoryType::WriteBack,
        },
        ..Leaf::plain(frame_of(frame))
    }
}

fn flags(leaf: &Leaf) -> MappingFlags {
    let mut flags = MappingFlags::READ;
    flags.set(MappingFlags::WRITE, leaf.perms.allows(Access::Write));
    flags.set(MappingFlags::EXECUTE, leaf.perms.allows(Access::Fetch));
    flags.set(MappingFlags::DEVICE, leaf.memory == MemoryType::Device);
    flags.set(MappingFlags::UNCACHED, leaf.memory == MemoryType::Uncached);
    flags
}

/// A page table in the format `F` with a root of one page, on the hypervisor's frames.
pub struct NestedPageTable<F: Format, H: Frames> {
    map: Map<F, Tables<H>>,
}

impl<F: Format, H: Frames> NestedPageTable<F, H> {
    /// Makes an empty table.
    pub fn try_new() -> Result<Self, NoMemory> {
        const { assert!(F::ROOT_PAGES == 1) };
        Ok(Self { map: Map::new(Tables(PhantomData))? })
    }

    /// Makes an empty table.
    ///
    /// # Panics
    /// Without a frame for the root.
    #[expect(clippy::new_without_default, reason = "a default does not panic")]
    pub fn new() -> Self {
        Self::try_new().expect("a frame for the root")
    }

    /// The mapping of a page: its leaf, with the frame of that page, and the level of the leaf.
    fn find(&self, page: Gfn) -> Option<(Leaf, Level)> {
        let place = self.map.find(page)?;
        let (leaf, level) = (place.leaf()?, place.level());
        Some((Leaf { pfn: leaf.pfn + (page.0 - page.base(level).0), ..leaf }, level))
    }

    fn is_free(&self, pages: Span<Gfn>) -> bool {
        let mut free = true;
        self.map.for_each(pages, |_, place| free &= place.leaf().is_none());
        free
    }
}

impl<F: Format, H: Frames> NestedPageTableOps for NestedPageTable<F, H> {
    fn root_paddr(&self) -> PhysAddr {
        address_of(self.map.root())
    }

    fn levels(&self) -> usize {
        F::LEVELS.into()
    }

    fn alloc_frame(&self) -> Option<PhysAddr> {
        H::alloc()
    }

    fn dealloc_frame(&self, frame: PhysAddr) {
        H::dealloc(frame);
    }

    fn phys_to_virt(&self, frame: PhysAddr) -> VirtAddr {
        H::seen_at(frame)
    }

    fn map(
        &mut self,
        gpa: GuestPhysAddr,
        frame: PhysAddr,
        size: PageSize,
        flags: MappingFlags,
    ) -> AddrSpaceResult {
        self.map_linear(gpa, frame, size.into(), flags, size.is_huge())
    }

    fn unmap(&mut self, gpa: GuestPhysAddr) -> AddrSpaceResult<(PhysAddr, MappingFlags, PageSize)> {
        let (leaf, level) = self.find(page_of(gpa)).ok_or(AddrSpaceError::MappingState)?;
        let first = page_of(gpa).base(level);
        let pfn = Pfn(leaf.pfn.0 - (page_of(gpa).0 - first.0));
        if option_env!("SLAT_MISTAKE") == Some("no-unmap") {
            return Ok((address_of(pfn), flags(&leaf), size(level)));
        }
        self.map.unmap(Span::sized(first, level.pages())).map_err(failed)?;
        Ok((address_of(pfn), flags(&leaf), size(level)))
    }

    fn map_linear(
        &mut self,
        gpa: GuestPhysAddr,
        frame: PhysAddr,
        size: usize,
        flags: MappingFlags,
        allow_huge: bool,
    ) -> AddrSpaceResult {
        let (first, bytes) = (page_of(gpa), size as u64);
        if !((gpa.as_usize() | frame.as_usize() | size) as u64).is_multiple_of(PAGE_SIZE)
            || !flags.contains(MappingFlags::READ)
        {
            return Err(AddrSpaceError::InvalidMapping);
        }
        let pages = Span::sized(first, bytes >> PAGE_SHIFT);
        if !self.is_free(pages) {
            return Err(AddrSpaceError::MappingConflict);
        }
        let leaf = leaf(frame, flags);
        let step = if allow_huge { pages.len() } else { 1 };
        let mut at = pages.start;
        while at < pages.end {
            let part = Span::new(at, (at + step).min(pages.end));
            let first = Leaf { pfn: leaf.pfn + (at.0 - pages.start.0), ..leaf };
            if let Err(error) = self.map.map(part, &first) {
                let _ = self.map.unmap(pages);
                return Err(failed(error));
            }
            at = part.end;
        }
        Ok(())
    }

    fn unmap_region(&mut self, start: GuestPhysAddr, size: usize) -> AddrSpaceResult {
        let pages = Span::sized(page_of(start), size as u64 >> PAGE_SHIFT);
        self.map.unmap(pages).map(drop).map_err(failed)
    }

    fn remap(&mut self, start: GuestPhysAddr, frame: PhysAddr, flags: MappingFlags) -> bool {
        self.map.map(Span::sized(page_of(start), 1), &leaf(frame, flags)).is_ok()
    }

    fn protect_region(&mut self, start: GuestPhysAddr, size: usize, new_flags: MappingFlags) -> bool {
        let pages = Span::sized(page_of(start), size as u64 >> PAGE_SHIFT);
        let mut at = pages.start;
        while at < pages.end {
            let Some((found, level)) = self.find(at) else { return false };
            let part = Span::new(at, (at.base(level) + level.pages()).min(pages.end));
            // A large page that reaches beyond the range is split.
            if self.map.map(part, &leaf(address_of(found.pfn), new_flags)).is_err() {
                return false;
            }
            at = part.end;
        }
        true
    }

    fn query(&self, gpa: GuestPhysAddr) -> AddrSpaceResult<(PhysAddr, MappingFlags, PageSize)> {
        let (leaf, level) = self.find(page_of(gpa)).ok_or(AddrSpaceError::MappingState)?;
        let offset = gpa.as_usize() % PAGE_SIZE as usize;
        Ok((PhysAddr::from(address_of(leaf.pfn).as_usize() + offset), flags(&leaf), size(level)))
    }
}

fn size(level: Level) -> PageSize {
    match level {
        Level::K4 => PageSize::Size4K,
        Level::M2 => PageSize::Size2M,
        _ => PageSize::Size1G,
    }
}
