//! Tests that axaddrspace's own leave out: pages of every size.

use ax_memory_addr::{PhysAddr, VirtAddr};
use axaddrspace::{AddrSpaceError, MappingFlags, NestedPageTableOps, PageSize};
use axvm_types::GuestPhysAddr;
use slat::table::formats::Arm64NoAd;
use slat_nested::{Frames, NestedPageTable};
use std::cell::Cell;

const PAGE: usize = 4096;
const LARGE: usize = 2 << 20;
const RAM: MappingFlags = MappingFlags::from_bits_retain(0b111);

thread_local! {
    /// The number of free frames, and of frames in use.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    static OUT: Cell<usize> = const { Cell::new(0) };
}

struct Machine;

impl Frames for Machine {
    fn alloc() -> Option<PhysAddr> {
        LEFT.set(LEFT.get().checked_sub(1)?);
        OUT.set(OUT.get() + 1);
        let pages = vec![0_u8; 2 * PAGE].leak();
        Some(PhysAddr::from(pages.as_ptr().expose_provenance().next_multiple_of(PAGE)))
    }

    fn dealloc(_: PhysAddr) {
        OUT.set(OUT.get() - 1);
    }

    fn seen_at(frame: PhysAddr) -> VirtAddr {
        VirtAddr::from(frame.as_usize())
    }
}

type Table = NestedPageTable<Arm64NoAd, Machine>;

fn at(address: usize) -> GuestPhysAddr {
    GuestPhysAddr::from(address)
}

fn query(table: &Table, address: usize) -> Option<(usize, MappingFlags, PageSize)> {
    table.query(at(address)).ok().map(|(frame, flags, size)| (frame.as_usize(), flags, size))
}

#[test]
fn a_part_of_a_large_page_is_protected_mapped_anew_and_unmapped() {
    let mut table = Table::new();
    table.map_linear(at(LARGE), PhysAddr::from(8 * LARGE), 2 * LARGE, RAM, true).unwrap();
    assert_eq!(query(&table, LARGE + 0x1234), Some((8 * LARGE + 0x1234, RAM, PageSize::Size2M)));
    assert!(table.protect_region(at(LARGE + PAGE), PAGE, MappingFlags::READ));
    assert_eq!(query(&table, LARGE + PAGE), Some((8 * LARGE + PAGE, MappingFlags::READ, PageSize::Size4K)));
    assert_eq!(query(&table, LARGE), Some((8 * LARGE, RAM, PageSize::Size4K)));
    assert!(table.remap(at(LARGE + 0x1fff), PhysAddr::from(0x7000), RAM));
    assert_eq!(query(&table, LARGE + PAGE), Some((0x7000, RAM, PageSize::Size4K)));
    table.unmap_region(at(LARGE), PAGE).unwrap();
    assert_eq!((query(&table, LARGE), query(&table, LARGE + PAGE).is_some()), (None, true));
    // The second one is whole.
    assert_eq!(
        table.unmap(at(2 * LARGE + 0x5000)).unwrap(),
        (PhysAddr::from(9 * LARGE), RAM, PageSize::Size2M)
    );
    assert!(!table.protect_region(at(2 * LARGE), PAGE, RAM), "nothing is there");
}

#[test]
fn small_pages_stay_small_where_they_are_asked_for() {
    let mut table = Table::new();
    table.map_linear(at(0), PhysAddr::from(0), LARGE, RAM, false).unwrap();
    assert_eq!(query(&table, 0x3000), Some((0x3000, RAM, PageSize::Size4K)));
    let device = MappingFlags::READ | MappingFlags::WRITE | MappingFlags::DEVICE;
    table.map(at(1 << 30), PhysAddr::from(1 << 30), PageSize::Size1G, device).unwrap();
    assert_eq!(query(&table, 1 << 30), Some((1 << 30, device, PageSize::Size1G)));
}

#[test]
fn an_impossible_mapping_is_refused_and_changes_nothing() {
    let mut table = Table::new();
    table.map(at(PAGE), PhysAddr::from(0x9000), PageSize::Size4K, RAM).unwrap();
    let map = |table: &mut Table, address, frame, bytes, flags| {
        table.map_linear(at(address), PhysAddr::from(frame), bytes, flags, true).unwrap_err()
    };
    assert_eq!(map(&mut table, 0, 0, 4 * PAGE, RAM), AddrSpaceError::MappingConflict);
    assert_eq!(map(&mut table, 12, 0, PAGE, RAM), AddrSpaceError::InvalidMapping);
    assert_eq!(map(&mut table, LARGE, 0, PAGE, MappingFlags::empty()), AddrSpaceError::InvalidMapping);
    assert_eq!(map(&mut table, 1 << 48, 0, PAGE, RAM), AddrSpaceError::InvalidMapping);
    assert_eq!(query(&table, 0), None);
    assert_eq!(query(&table, PAGE), Some((0x9000, RAM, PageSize::Size4K)));
}

#[test]
fn without_memory_nothing_is_mapped_and_all_goes_back() {
    for frames in 0..6 {
        LEFT.set(frames);
        if let Ok(mut table) = Table::try_new() {
            // Two tables of the lowest level are needed.
            let mapped = table.map_linear(at(LARGE - PAGE), PhysAddr::from(0), 2 * PAGE, RAM, true);
            assert_eq!(mapped.is_ok(), frames >= 5, "{mapped:?}");
            assert_eq!(query(&table, LARGE - PAGE).is_some(), mapped.is_ok());
        }
        assert_eq!(OUT.get(), 0);
    }
}
