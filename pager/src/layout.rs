//! Addresses of the guest's memory in its process, and the page of the image for each address.

use crate::uffd::{HUGE_PAGE, PAGE};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Most regions of a guest.
pub const MOST_REGIONS: usize = 512;

/// A range of the guest's process, and the start of its content in the image. All in bytes, whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// First address in the guest's process.
    pub base: u64,
    /// Length.
    pub size: u64,
    /// Offset in the image.
    pub offset: u64,
}

impl Region {
    fn addresses(&self) -> Range<u64> {
        self.base..self.base + self.size
    }

    fn image(&self) -> Range<u64> {
        self.offset..self.offset + self.size
    }
}

/// Why regions are refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// No region, or too many.
    #[error("{0} regions: there must be 1 to {MOST_REGIONS}")]
    Count(usize),
    /// An address, a size or an offset that is no multiple of the page size, or a size of zero.
    #[error("{0:?} is not in whole pages of {PAGE} bytes, or is empty")]
    Unaligned(Region),
    /// The same for memory in huge pages.
    #[error("{0:?} is not in whole pages of {HUGE_PAGE} bytes, or is empty")]
    UnalignedHuge(Region),
    /// A region ends beyond the address space.
    #[error("{0:?} ends beyond the address space")]
    Overflow(Region),
    /// Two regions have a page in common, in memory or in the image.
    #[error("{0:?} and {1:?} overlap")]
    Overlap(Region, Region),
    /// A region is not in the image.
    #[error("{region:?} ends beyond the image, which has {image} bytes")]
    BeyondImage {
        /// The region.
        region: Region,
        /// The image's size in bytes.
        image: u64,
    },
}

/// Checked regions: whole pages, disjoint, and inside the image. A page has its number in the image, in pages of 4 KiB,
/// also if the memory has huge pages: a huge page is the 512 pages from its first one on.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Regions, by address.
    regions: Vec<Region>,
    /// Bytes of a page of the guest's memory.
    page_size: usize,
}

impl Layout {
    /// Checks a VMM's regions against an image of `image` bytes.
    pub fn new(regions: Vec<Region>, image: u64) -> Result<Self, LayoutError> {
        Self::check(regions, image, PAGE)
    }

    /// As [`Layout::new`], for memory in pages of hugetlbfs, which have [`HUGE_PAGE`] bytes.
    pub fn of_huge_pages(regions: Vec<Region>, image: u64) -> Result<Self, LayoutError> {
        Self::check(regions, image, HUGE_PAGE)
    }

    fn check(mut regions: Vec<Region>, image: u64, page_size: usize) -> Result<Self, LayoutError> {
        if regions.is_empty() || regions.len() > MOST_REGIONS {
            return Err(LayoutError::Count(regions.len()));
        }
        for region in &regions {
            let numbers = [region.base, region.size, region.offset];
            if region.size == 0 || numbers.iter().any(|number| number % page_size as u64 != 0) {
                let is_huge = page_size == HUGE_PAGE;
                return Err(if is_huge {
                    LayoutError::UnalignedHuge(*region)
                } else {
                    LayoutError::Unaligned(*region)
                });
            }
            if region.base.checked_add(region.size).is_none() {
                return Err(LayoutError::Overflow(*region));
            }
            if region.offset.checked_add(region.size).is_none_or(|end| end > image) {
                return Err(LayoutError::BeyondImage { region: *region, image });
            }
        }
        regions.sort_by_key(|region| region.offset);
        let meets = |pair: &&[Region]| pair[0].image().end > pair[1].offset;
        let in_image = regions.windows(2).find(meets).map(|pair| (pair[0], pair[1]));
        regions.sort_by_key(|region| region.base);
        let meets = |pair: &&[Region]| pair[0].addresses().end > pair[1].base;
        let in_memory = regions.windows(2).find(meets).map(|pair| (pair[0], pair[1]));
        match in_image.or(in_memory) {
            Some((one, other)) => Err(LayoutError::Overlap(one, other)),
            None => Ok(Self { regions, page_size }),
        }
    }

    /// Returns the bytes of a page of the guest's memory, the smallest unit of a fill.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Returns the number of 4 KiB pages in each page of the guest's memory.
    pub(crate) fn unit(&self) -> usize {
        self.page_size / PAGE
    }

    /// Returns the regions, by address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the region of an address, and its page of the image.
    pub fn page(&self, address: u64) -> Option<(&Region, usize)> {
        let after = self.regions.partition_point(|region| region.base <= address);
        let region = self.regions[..after].last().filter(|region| region.addresses().contains(&address))?;
        Some((region, ((region.offset + (address - region.base)) / PAGE as u64) as usize))
    }

    /// Returns the pages of the image that a range of addresses covers: one range for each region that it meets.
    pub fn pages(&self, start: u64, end: u64) -> impl Iterator<Item = Range<usize>> + '_ {
        self.regions.iter().filter_map(move |region| {
            let (from, to) = (start.max(region.base), end.min(region.addresses().end));
            let page = |address| ((region.offset + (address - region.base)) / PAGE as u64) as usize;
            // The kernel reports no partly removed page.
            (from < to).then(|| page(from)..page(to - 1) + 1)
        })
    }

    /// Returns the addresses of pages of the image, one for each part in one region.
    pub fn places(&self, pages: Range<usize>) -> impl Iterator<Item = (u64, Range<usize>)> + '_ {
        self.regions.iter().filter_map(move |region| {
            let page = |byte| (byte / PAGE as u64) as usize;
            let (first, last) = (page(region.offset), page(region.image().end));
            let (start, end) = (pages.start.max(first), pages.end.min(last));
            (start < end).then(|| (region.base + ((start - first) * PAGE) as u64, start..end))
        })
    }

    /// Returns the number of pages of the image up to the last mapped one.
    pub fn image_pages(&self) -> usize {
        self.regions.iter().map(|region| (region.image().end / PAGE as u64) as usize).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn region(base: u64, size: u64, offset: u64) -> Region {
        Region { base, size, offset }
    }

    #[test]
    fn an_address_is_a_page_of_the_image() {
        let regions = vec![region(8 * MIB, MIB, MIB), region(4 * MIB, MIB, 0)];
        let layout = Layout::new(regions, 2 * MIB).unwrap();
        assert_eq!(layout.page(4 * MIB + 5).unwrap().1, 0);
        assert_eq!(layout.page(8 * MIB + 4096).unwrap().1, 257);
        assert_eq!(
            [MIB, 5 * MIB, 9 * MIB, u64::MAX].map(|address| layout.page(address).is_some()),
            [false; 4]
        );
        let pages: Vec<_> = layout.pages(5 * MIB - 4096, 8 * MIB + 1).collect();
        assert_eq!(pages, [255..256, 256..257]);
        assert_eq!(layout.pages(0, u64::MAX).map(|pages| pages.len()).sum::<usize>(), 512);
        assert_eq!(layout.image_pages(), 512);
        let places: Vec<_> = layout.places(255..999).collect();
        assert_eq!(places, [(5 * MIB - 4096, 255..256), (8 * MIB, 256..512)]);
    }

    #[test]
    fn memory_in_huge_pages_is_in_whole_ones() {
        let new = |region| Layout::of_huge_pages(vec![region], 8 * MIB);
        let layout = new(region(4 * MIB, 4 * MIB, 2 * MIB)).unwrap();
        assert_eq!((layout.unit(), layout.image_pages()), (512, 1536));
        for bad in [region(MIB, 2 * MIB, 0), region(0, 3 * MIB, 0), region(0, 2 * MIB, 4096)] {
            assert_eq!(new(bad).unwrap_err(), LayoutError::UnalignedHuge(bad));
        }
    }

    #[test]
    fn a_hostile_layout_is_refused() {
        let new = |regions: &[Region]| Layout::new(regions.to_vec(), 4 * MIB).unwrap_err();
        assert_eq!(new(&[]), LayoutError::Count(0));
        assert_eq!(new(&vec![region(0, 4096, 0); 513]), LayoutError::Count(513));
        for bad in [region(1, 4096, 0), region(0, 0, 0), region(0, 4097, 0), region(0, 4096, 8)] {
            assert_eq!(new(&[bad]), LayoutError::Unaligned(bad));
        }
        let high = region(u64::MAX - 4095, 4096, 0);
        assert_eq!(new(&[high]), LayoutError::Overflow(high));
        for bad in [region(0, 5 * MIB, 0), region(0, MIB, 4 * MIB), region(0, MIB, u64::MAX - 4095)] {
            assert_eq!(new(&[bad]), LayoutError::BeyondImage { region: bad, image: 4 * MIB });
        }
        let (one, two) = (region(MIB, 2 * MIB, 0), region(2 * MIB, MIB, 2 * MIB));
        assert_eq!(new(&[two, one]), LayoutError::Overlap(one, two));
        let (one, two) = (region(MIB, 2 * MIB, 0), region(8 * MIB, MIB, MIB));
        assert_eq!(new(&[one, two]), LayoutError::Overlap(one, two));
    }
}
