//! A device behind an IOMMU: two translations, and the permissions of both.

use slat_vm_memory::{BehindIommu, Checked, Marks, Memory, Region, SlotId};
use std::collections::BTreeSet;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use vm_memory::bitmap::NewBitmap;
use vm_memory::iommu::{Error, Iommu, IommuMemory, Iotlb, IotlbIterator, IovaRange};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryError, MmapRegion, Permissions};

/// An IOMMU that only knows its IOTLB.
#[derive(Debug, Default)]
struct Table(RwLock<Iotlb>);

impl Iommu for Table {
    type IotlbGuard<'a> = RwLockReadGuard<'a, Iotlb>;

    fn translate(
        &self,
        iova: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<IotlbIterator<Self::IotlbGuard<'_>>, Error> {
        let refused = |_| Error::CannotResolve {
            iova_range: IovaRange { base: iova, length },
            reason: "not mapped".into(),
        };
        Iotlb::lookup(self.0.read().unwrap(), iova, length, access).map_err(refused)
    }
}

impl Table {
    fn map(&self, iova: u64, to: u64, len: usize, access: Permissions) {
        self.0.write().unwrap().set_mapping(GuestAddress(iova), GuestAddress(to), len, access).unwrap();
    }
}

type Ram = Checked<Region<MmapRegion<()>>>;

/// RAM of four pages at 0, a ROM of one page at 1 MiB, and an IOMMU without mappings.
fn machine() -> (Ram, Arc<Table>, BehindIommu<Ram, Table>) {
    let region =
        |id, start, len| Region::new(SlotId(id), GuestAddress(start), MmapRegion::new(len).unwrap()).unwrap();
    let regions = [region(0, 0, 0x4000), region(1, 0x10_0000, 0x1000).readonly()];
    let (memory, table) =
        (Checked::new(Memory::new(regions.map(Arc::new)).unwrap()), Arc::new(Table::default()));
    (memory.clone(), table.clone(), BehindIommu::new(memory, Some(table)))
}

fn harvest(memory: &Ram) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    memory.raw().harvest(|gfn| assert!(pages.insert(gfn.0)));
    pages
}

#[test]
fn a_store_through_an_iommu_is_marked_at_the_guests_frame() {
    let (memory, table, device) = machine();
    table.map(0x7000, 0x3000, 0x1000, Permissions::ReadWrite);
    table.map(0x8000, 0x1000, 0x1000, Permissions::ReadWrite);
    let bytes: Vec<u8> = (0..=255).cycle().take(0x1000).collect();
    device.write_slice(&bytes, GuestAddress(0x7800)).unwrap(); // across both pages
    assert_eq!(harvest(&memory), BTreeSet::from([3, 1]));
    let mut half = [0; 0x800];
    memory.read_slice(&mut half, GuestAddress(0x1000)).unwrap();
    assert_eq!(half, bytes[0x800..]);
    memory.read_slice(&mut half, GuestAddress(0x3800)).unwrap();
    assert_eq!(half, bytes[..0x800]);
    assert!(device.physical_memory().is_none());

    // vm-memory's own `IommuMemory` marks elsewhere, so a harvest by guest frames would miss the store.
    let by_iova = Marks::with_len(0x10_0000);
    let other = IommuMemory::new(memory.raw().clone(), Table::default(), true, by_iova);
    other.iommu().map(0x7000, 0x3000, 0x1000, Permissions::ReadWrite);
    other.write_obj(1u64, GuestAddress(0x7000)).unwrap();
    assert_eq!(harvest(&memory), BTreeSet::new());
}

#[test]
fn both_the_iommu_and_the_memslot_must_allow_an_access() {
    let (memory, table, device) = machine();
    table.map(0x7000, 0x10_0000, 0x1000, Permissions::ReadWrite); // a ROM, as if it were RAM
    table.map(0x8000, 0, 0x1000, Permissions::Read);
    table.map(0x9000, 0x3000, 0x2000, Permissions::ReadWrite); // its second page is in no memslot
    let write = |at| device.write_obj(1u64, GuestAddress(at));
    let refused = write(0x7000).unwrap_err().to_string();
    assert!(refused.contains("permission denied"), "{refused}");
    assert!(matches!(write(0x8000), Err(GuestMemoryError::IommuError(_))));
    assert!(matches!(write(0xa000), Err(GuestMemoryError::InvalidGuestAddress(GuestAddress(0x4000)))));
    assert_eq!(device.write(&[1; 0x2000], GuestAddress(0x9000)).unwrap(), 0x1000, "up to the hole");
    assert!(device.read_obj::<u64>(GuestAddress(0x7000)).is_ok());
    let check = |at, count, access| device.check_range(GuestAddress(at), count, access);
    assert!(check(0x7000, 0x2000, Permissions::Read) && !check(0x7000, 0x1000, Permissions::ReadWrite));
    assert!(check(0x9000, 0x1000, Permissions::Write) && !check(0x9000, 0x1001, Permissions::Write));
    assert_eq!(harvest(&memory), BTreeSet::from([3]));

    // Control: raw memory, as vm-memory's own type takes it, lets the device write to the ROM.
    let raw = BehindIommu::new(memory.raw().clone(), Some(table));
    raw.write_obj(1u64, GuestAddress(0x7000)).unwrap();
}

#[test]
fn hostile_addresses_end_in_errors() {
    let (memory, table, device) = machine();
    table.map(0, u64::MAX - 0xfff, 0x1000, Permissions::ReadWrite);
    table.map(u64::MAX - 0xfff, 0, 0xfff, Permissions::ReadWrite);
    for (at, count) in
        [(u64::MAX, 2), (u64::MAX - 7, 8), (u64::MAX - 0xfff, 0x2000), (0, 0x1000), (0x5000, usize::MAX)]
    {
        assert!(!device.check_range(GuestAddress(at), count, Permissions::Read), "{at:#x} {count:#x}");
        let slices = device.get_slices(GuestAddress(at), count, Permissions::Read);
        assert!(slices.is_err() || slices.is_ok_and(|mut slices| slices.any(|slice| slice.is_err())));
    }
    assert!(device.check_range(GuestAddress(0x9000), 0, Permissions::Read), "nothing");
    assert_eq!(device.get_slices(GuestAddress(0x9000), 0, Permissions::Read).unwrap().count(), 0);
    // Without the IOMMU, device addresses are guest addresses.
    let direct = BehindIommu::<_, Table>::new(memory, None);
    direct.write_obj(3u64, GuestAddress(0x2000)).unwrap();
    assert!(
        direct.read_obj::<u64>(GuestAddress(u64::MAX - 7)).is_err() && direct.physical_memory().is_some()
    );
}
