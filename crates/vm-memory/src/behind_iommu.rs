//! Memory of a device behind an IOMMU.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use vm_memory::bitmap::{BS, BitmapSlice};
use vm_memory::guest_memory::{GuestMemorySliceIterator, Result};
use vm_memory::iommu::{Iommu, MappedRange};
use vm_memory::{Address, GuestAddress, GuestMemory, GuestMemoryError, Permissions, VolatileSlice};

/// The memory of a device whose addresses an [`Iommu`] translates.
///
/// The memory below must also allow what the IOMMU allows: a device cannot write to a read-only memslot. A
/// store is marked in the dirty log at the guest frame that it reaches, so a migration sends it. (vm-memory's
/// `IommuMemory` takes raw memory, and marks in a bitmap by device addresses, as vhost-user needs.)
///
/// An access holds the guard of the IOMMU's IOTLB until it has made its last slice. With [`Live`](crate::Live)
/// below, this may include the time to bring a page in.
///
/// ```
/// use slat_vm_memory::{BehindIommu, Checked, Memory, Region, SlotId};
/// use std::sync::{Arc, RwLock, RwLockReadGuard};
/// use vm_memory::iommu::{Error, Iommu, Iotlb, IotlbIterator, IovaRange};
/// use vm_memory::{Bytes, GuestAddress, MmapRegion, Permissions};
///
/// /// An IOMMU that only knows its IOTLB.
/// #[derive(Debug, Default)]
/// struct Table(RwLock<Iotlb>);
///
/// impl Iommu for Table {
///     type IotlbGuard<'a> = RwLockReadGuard<'a, Iotlb>;
///
///     fn translate(
///         &self,
///         iova: GuestAddress,
///         length: usize,
///         access: Permissions,
///     ) -> Result<IotlbIterator<Self::IotlbGuard<'_>>, Error> {
///         Iotlb::lookup(self.0.read().unwrap(), iova, length, access).map_err(|_| Error::CannotResolve {
///             iova_range: IovaRange { base: iova, length },
///             reason: "not mapped".into(),
///         })
///     }
/// }
///
/// let ram = Region::new(SlotId(0), GuestAddress(0), MmapRegion::<()>::new(1 << 20)?)?;
/// let memory = Checked::new(Memory::new([Arc::new(ram)])?);
/// let table = Arc::new(Table::default());
/// let device = BehindIommu::new(memory.clone(), Some(table.clone()));
/// assert!(device.write_obj(7u64, GuestAddress(0xf000)).is_err(), "not mapped");
///
/// table.0.write().unwrap().set_mapping(GuestAddress(0xf000), GuestAddress(0x5000), 0x1000, Permissions::ReadWrite)?;
/// device.write_obj(7u64, GuestAddress(0xf000))?;
/// assert_eq!(memory.read_obj::<u64>(GuestAddress(0x5000))?, 7);
/// let mut pages = Vec::new();
/// memory.raw().harvest(|gfn| pages.push(gfn.0));
/// assert_eq!(pages, [5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BehindIommu<M, I> {
    memory: M,
    iommu: Option<Arc<I>>,
}

impl<M: Clone, I> Clone for BehindIommu<M, I> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), iommu: self.iommu.clone() }
    }
}

impl<M: fmt::Debug, I> fmt::Debug for BehindIommu<M, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BehindIommu").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl<M, I> BehindIommu<M, I> {
    /// Creates `memory` behind `iommu`. With `None` the guest has not enabled the IOMMU: device addresses are
    /// guest addresses.
    pub fn new(memory: M, iommu: Option<Arc<I>>) -> Self {
        Self { memory, iommu }
    }

    /// Returns the memory without the IOMMU.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M: GuestMemory, I: Iommu> BehindIommu<M, I> {
    /// Returns the parts of guest memory that the device's addresses translate to, in order.
    fn parts(
        &self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl Iterator<Item = MappedRange>> {
        // vm-memory's IOTLB adds the two without a check.
        if self.iommu.is_some() && addr.checked_add(count as u64).is_none() {
            return Err(GuestMemoryError::GuestAddressOverflow);
        }
        let translated = match &self.iommu {
            Some(iommu) if count > 0 => {
                Some(iommu.translate(addr, count, access).map_err(GuestMemoryError::IommuError)?)
            }
            _ => None,
        };
        let same = self.iommu.is_none().then_some(MappedRange { base: addr, length: count });
        Ok(translated.into_iter().flatten().chain(same))
    }
}

/// The slices of one access, up to the first error.
struct UpToAnError<I> {
    slices: I,
    ended: bool,
}

impl<'a, B: BitmapSlice, I: Iterator<Item = Result<VolatileSlice<'a, B>>>> Iterator for UpToAnError<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        if self.ended {
            return None;
        }
        let slice = self.slices.next();
        self.ended = !matches!(slice, Some(Ok(_)));
        slice
    }
}

impl<'a, B: BitmapSlice, I: Iterator<Item = Result<VolatileSlice<'a, B>>>> FusedIterator for UpToAnError<I> {}

impl<'a, B: BitmapSlice, I: Iterator<Item = Result<VolatileSlice<'a, B>>>> GuestMemorySliceIterator<'a, B>
    for UpToAnError<I>
{
}

impl<M: GuestMemory, I: Iommu> GuestMemory for BehindIommu<M, I> {
    type PhysicalMemory = M::PhysicalMemory;
    type Bitmap = M::Bitmap;

    fn check_range(&self, addr: GuestAddress, count: usize, access: Permissions) -> bool {
        let allows = |part: MappedRange| self.memory.check_range(part.base, part.length, access);
        self.parts(addr, count, access).is_ok_and(|mut parts| parts.all(allows))
    }

    fn get_slices(
        &self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'_, BS<'_, M::Bitmap>>> {
        let slices = self.parts(addr, count, access)?.flat_map(move |part| {
            let (slices, refused) = match self.memory.get_slices(part.base, part.length, access) {
                Ok(slices) => (Some(slices), None),
                Err(error) => (None, Some(Err(error))),
            };
            slices.into_iter().flatten().chain(refused)
        });
        Ok(UpToAnError { slices, ended: false })
    }

    /// Returns the memory's own, if there is no IOMMU.
    fn physical_memory(&self) -> Option<&M::PhysicalMemory> {
        if self.iommu.is_none() { self.memory.physical_memory() } else { None }
    }
}
