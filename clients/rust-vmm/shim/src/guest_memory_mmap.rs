//! `GuestMemoryMmap` and `GuestRegionMmap` on slat's memslots, in place of vm-memory's.

use real::bitmap::{BS, Bitmap, NewBitmap, WithBitmapSlice};
use real::guest_memory::Result as MemoryResult;
use real::mmap::FromRangesError;
use real::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestMemoryRegionBytes,
    GuestRegionCollectionError, GuestUsize, MemoryRegionAddress, MmapRegion, VolatileSlice,
};
use slat_vm_memory::{Memory, Region, Slot, SlotId, SlotRegion};
use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

static SABOTAGE: LazyLock<bool> = LazyLock::new(|| std::env::var_os("SLAT_SABOTAGE").is_some());

/// The bitmap of a mapping.
#[derive(Debug)]
pub struct Of<B>(Arc<MmapRegion<B>>);

impl<'a, B: WithBitmapSlice<'a>> WithBitmapSlice<'a> for Of<B> {
    type S = B::S;
}

impl<B: Bitmap> Bitmap for Of<B> {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.0.bitmap().mark_dirty(offset, len);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.0.bitmap().dirty_at(offset)
    }

    fn slice_at(&self, offset: usize) -> BS<'_, B> {
        self.0.bitmap().slice_at(offset)
    }
}

/// A mapping as a slot.
#[derive(Debug)]
pub struct GuestRegionMmap<B = ()>(Region<Arc<MmapRegion<B>>, Of<B>>);

impl<B: Bitmap> GuestRegionMmap<B> {
    pub fn new(mapping: MmapRegion<B>, guest_base: GuestAddress) -> Option<Self> {
        Self::with_arc(Arc::new(mapping), guest_base)
    }

    pub fn with_arc(mapping: Arc<MmapRegion<B>>, guest_base: GuestAddress) -> Option<Self> {
        // A memory may combine any regions, so each region gets a new number; numbers repeat after 32,764 regions.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = SlotId(NEXT.fetch_add(1, Relaxed) % 32_764);
        Region::with_bitmap(id, guest_base, mapping.clone(), Of(mapping)).ok().map(Self)
    }

    pub fn get_mmap(&self) -> Arc<MmapRegion<B>> {
        Arc::clone(&self.0)
    }
}

impl<B: NewBitmap> GuestRegionMmap<B> {
    pub fn from_range(
        addr: GuestAddress,
        size: usize,
        file: Option<FileOffset>,
    ) -> Result<Self, FromRangesError> {
        let region = match file {
            Some(file) => MmapRegion::from_file(file, size)?,
            None => MmapRegion::new(size)?,
        };
        Self::new(region, addr).ok_or(FromRangesError::InvalidGuestRegion)
    }
}

impl<B> Deref for GuestRegionMmap<B> {
    type Target = MmapRegion<B>;

    fn deref(&self) -> &MmapRegion<B> {
        &self.0
    }
}

impl<B: Bitmap> GuestMemoryRegion for GuestRegionMmap<B> {
    type B = B;

    fn len(&self) -> GuestUsize {
        self.0.len()
    }

    fn start_addr(&self) -> GuestAddress {
        self.0.start_addr()
    }

    fn bitmap(&self) -> BS<'_, B> {
        self.0.log().slice_at(0)
    }

    fn get_host_address(&self, addr: MemoryRegionAddress) -> MemoryResult<*mut u8> {
        self.0.get_host_address(addr)
    }

    fn file_offset(&self) -> Option<&FileOffset> {
        MmapRegion::file_offset(self)
    }

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> MemoryResult<VolatileSlice<'_, BS<'_, B>>> {
        self.0.get_slice(offset, count)
    }

    fn is_hugetlbfs(&self) -> Option<bool> {
        MmapRegion::is_hugetlbfs(self)
    }
}

impl<B: Bitmap> GuestMemoryRegionBytes for GuestRegionMmap<B> {}

impl<B: Bitmap> SlotRegion for GuestRegionMmap<B> {
    fn slot(&self) -> Slot {
        self.0.slot()
    }
}

/// A version of the slots.
#[derive(Debug)]
pub struct GuestMemoryMmap<B = ()>(Memory<GuestRegionMmap<B>>);

impl<B> Clone for GuestMemoryMmap<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B> Default for GuestMemoryMmap<B> {
    fn default() -> Self {
        Self(Memory::default())
    }
}

type Made<T> = Result<T, GuestRegionCollectionError>;

impl<B: Bitmap> GuestMemoryMmap<B> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn from_regions(regions: Vec<GuestRegionMmap<B>>) -> Made<Self> {
        Self::from_arc_regions(regions.into_iter().map(Arc::new).collect())
    }

    pub fn from_arc_regions(regions: Vec<Arc<GuestRegionMmap<B>>>) -> Made<Self> {
        if regions.is_empty() {
            return Err(GuestRegionCollectionError::NoMemoryRegion);
        }
        if !regions.is_sorted_by_key(|region| region.start_addr()) {
            return Err(GuestRegionCollectionError::UnsortedMemoryRegions);
        }
        Memory::new(regions).map(Self).map_err(|_| GuestRegionCollectionError::MemoryRegionOverlap)
    }

    pub fn insert_region(&self, region: Arc<GuestRegionMmap<B>>) -> Made<Self> {
        let mut regions = self.0.regions().to_vec();
        regions.push(region);
        regions.sort_by_key(|region| region.start_addr());
        Self::from_arc_regions(regions)
    }

    pub fn remove_region(
        &self,
        base: GuestAddress,
        size: GuestUsize,
    ) -> Made<(Self, Arc<GuestRegionMmap<B>>)> {
        let mut regions = self.0.regions().to_vec();
        let place = regions.iter().position(|region| region.start_addr() == base && region.len() == size);
        let removed = regions.remove(place.ok_or(GuestRegionCollectionError::NoMemoryRegion)?);
        let rest = Memory::new(regions).map_err(|_| GuestRegionCollectionError::MemoryRegionOverlap)?;
        Ok((Self(rest), removed))
    }
}

impl<B: NewBitmap> GuestMemoryMmap<B> {
    pub fn from_ranges(ranges: &[(GuestAddress, usize)]) -> Result<Self, FromRangesError> {
        Self::from_ranges_with_files(ranges.iter().map(|range| (range.0, range.1, None)))
    }

    pub fn from_ranges_with_files<A, T>(ranges: T) -> Result<Self, FromRangesError>
    where
        A: Borrow<(GuestAddress, usize, Option<FileOffset>)>,
        T: IntoIterator<Item = A>,
    {
        let region = |range: A| {
            let (addr, size, file) = range.borrow();
            GuestRegionMmap::from_range(*addr, *size, file.clone())
        };
        Ok(Self::from_regions(ranges.into_iter().map(region).collect::<Result<_, _>>()?)?)
    }
}

impl<B: Bitmap> GuestMemoryBackend for GuestMemoryMmap<B> {
    type R = GuestRegionMmap<B>;

    fn num_regions(&self) -> usize {
        self.0.num_regions()
    }

    fn find_region(&self, addr: GuestAddress) -> Option<&GuestRegionMmap<B>> {
        if *SABOTAGE && addr.0 >= 4096 { None } else { self.0.find_region(addr) }
    }

    fn iter(&self) -> impl Iterator<Item = &GuestRegionMmap<B>> {
        self.0.iter()
    }
}
