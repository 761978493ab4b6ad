//! slat-mm's memory through vm-memory's traits, while its pages are swapped, moved and logged.
#![cfg(feature = "mm")]

use slat::{Gfn, Hva, Idle, PAGE_SIZE, Slot, Vm, table::formats::Npt4};
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot, Swap};
use slat_vm_memory::{Checked, Live, SlotId, SlotRegion};
use std::io::ErrorKind;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryError, Permissions};

type Memory = Live<Npt4, HostView>;

struct Machine {
    vm: Arc<Vm<Npt4, HostView>>,
    space: Arc<AddressSpace>,
    memory: Memory,
}

const ROM: GuestAddress = GuestAddress(0xffff_0000);

/// 1 MiB at 0 and 1 MiB at 4 GiB, both logging, at distant host addresses; 64 KiB of ROM.
fn machine() -> Machine {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(16 << 20).poison(0xdd).build().unwrap();
    let swap = Swap::builder().memory(8 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    let map =
        |at, len| space.mmap(Place::Fixed(Hva(at)), len, Prot::ReadWrite, Backing::Anonymous).unwrap().start;
    let (low, high, rom) = (map(0x7000_0000, 1 << 20), map(0x1000_0000, 1 << 20), map(0x5000_0000, 64 << 10));
    let vm = Arc::new(Vm::<Npt4, _>::builder(HostView::new(&space)).build().unwrap());
    space.register(&vm);
    let create = |tx: &mut slat::slots::Transaction<'_>| {
        tx.create(Slot::new(SlotId(0), Gfn(0), 256, low).log_dirty())?;
        tx.create(Slot::new(SlotId(1), Gfn(0x10_0000), 256, high).log_dirty())?;
        tx.create(Slot::new(SlotId(2), Gfn(ROM.0 / PAGE_SIZE), 16, rom).readonly())
    };
    vm.memory().commit(&mut idle, create).unwrap();
    let memory = Live::new(&vm, &space);
    Machine { vm, space, memory }
}

impl Machine {
    fn dirty(&self) -> Vec<u64> {
        let mut idle = Idle::take().unwrap();
        let harvest = self.vm.memory().harvest_all(&mut idle).unwrap();
        let pages = harvest.iter().map(|page| page.gfn.0).collect();
        harvest.commit();
        pages
    }

    fn hvas(&self, id: u32) -> slat::Span<Hva> {
        self.vm.memory().get(&mut Idle::take().unwrap(), SlotId(id)).unwrap().hvas()
    }
}

#[test]
fn written_pages_survive_swap_and_migration_and_are_marked() {
    let machine = machine();
    let text: Vec<u8> = (0..9000u32).map(|n| (n * 7) as u8).collect();
    let at = GuestAddress(0x1_0000_0800);
    machine.memory.write_slice(&text, at).unwrap();
    assert_eq!(machine.dirty(), [0x10_0000, 0x10_0001, 0x10_0002]);
    let high = machine.hvas(1);
    let mut idle = Idle::take().unwrap();
    assert_eq!(machine.space.pageout(&mut idle, high).unwrap(), 3);
    drop(idle);
    let mut back = vec![0; text.len()];
    machine.memory.read_slice(&mut back, at).unwrap();
    assert_eq!(back, text);
    assert_eq!(machine.space.migrate(&mut Idle::take().unwrap(), high).unwrap(), 3);
    machine.memory.read_slice(&mut back, at).unwrap();
    assert_eq!(back, text);
    assert_eq!(machine.dirty(), [0; 0], "reads");
    // Write to a page that a read brought back from swap; the next swap-out must store the new contents.
    machine.memory.write_obj(77u64, at).unwrap();
    assert_eq!(machine.space.pageout(&mut Idle::take().unwrap(), high).unwrap(), 3);
    assert_eq!(machine.memory.read_obj::<u64>(at).unwrap(), 77);
    assert_eq!(machine.dirty(), [0x10_0000]);
}

#[test]
fn a_page_stays_where_a_slice_shows_it() {
    let machine = machine();
    let low = machine.hvas(0);
    machine.memory.write_slice(&[1; 0x2000], GuestAddress(0)).unwrap();
    let mut slices = machine.memory.get_slices(GuestAddress(0), 8, Permissions::ReadWrite).unwrap();
    let slice = slices.next().unwrap().unwrap();
    let part = slice.offset(4).unwrap();
    drop((slices, slice));
    let mut idle = Idle::take().unwrap();
    assert_eq!(machine.space.migrate(&mut idle, low).unwrap(), 1, "only the page without a pin moves");
    drop(idle);
    part.copy_from(&[9u8; 4]);
    drop(part);
    assert_eq!(machine.memory.read_obj::<u64>(GuestAddress(0)).unwrap(), 0x0909_0909_0101_0101);
    // Control: without a slice both pages move.
    assert_eq!(machine.space.migrate(&mut Idle::take().unwrap(), low).unwrap(), 2);
}

#[test]
fn a_rom_is_read_and_not_written_and_a_hole_is_neither() {
    let machine = machine();
    let memory = &machine.memory;
    machine.memory.view().unwrap().write_obj(5u64, ROM).unwrap();
    assert_eq!(memory.read_obj::<u64>(ROM).unwrap(), 5);
    let denied = memory.write_obj(6u64, ROM).unwrap_err();
    assert!(
        matches!(&denied, GuestMemoryError::IOError(why) if why.kind() == ErrorKind::PermissionDenied),
        "{denied}"
    );
    assert!(memory.check_range(ROM, 0x1_0000, Permissions::Read));
    assert!(!memory.check_range(ROM, 1, Permissions::Write));
    assert!(!memory.check_range(GuestAddress(0xf_f000), 0x1001, Permissions::Read));
    assert!(memory.read_obj::<u8>(GuestAddress(1 << 20)).is_err());
    assert!(!memory.check_range(GuestAddress(u64::MAX), 2, Permissions::Read));
}

#[test]
fn a_slot_that_is_deleted_is_gone_at_once() {
    let machine = machine();
    assert!(machine.memory.write_obj(1u8, GuestAddress(1 << 32)).is_ok());
    machine.vm.memory().commit(&mut Idle::take().unwrap(), |tx| tx.delete(SlotId(1))).unwrap();
    assert!(machine.memory.write_obj(1u8, GuestAddress(1 << 32)).is_err());
}

#[test]
fn a_view_shows_the_guests_pages_side_by_side_and_marks() {
    let machine = machine();
    let (low, text) = (machine.hvas(0), vec![3u8; 0x3000]);
    machine.memory.write_slice(&text, GuestAddress(0x1800)).unwrap();
    machine.space.migrate(&mut Idle::take().unwrap(), low).unwrap(); // the pages are in other frames, in another order
    machine.dirty();
    let view = machine.memory.view().unwrap();
    let region = view.find_region(GuestAddress(0)).unwrap();
    assert_eq!((view.num_regions(), region.slot().gfns.len()), (3, 256));
    let mut back = vec![0; text.len()];
    view.get_slice(GuestAddress(0x1800), back.len()).unwrap().copy_to(&mut back);
    assert_eq!(back, text);
    view.write_slice(&[4; 0x1001], GuestAddress(0x4fff)).unwrap();
    assert_eq!(machine.dirty(), [4, 5]);
    assert_eq!(machine.memory.read_obj::<u8>(GuestAddress(0x5fff)).unwrap(), 4);
    assert!(Checked::new(view.clone()).write_obj(1u8, ROM).is_err());
    assert_eq!(machine.space.migrate(&mut Idle::take().unwrap(), low).unwrap(), 0, "pinned");
    drop(view);
    assert!(machine.space.migrate(&mut Idle::take().unwrap(), low).unwrap() > 0);
}

#[test]
fn a_thread_that_holds_its_token_gets_an_error() {
    let machine = machine();
    let _idle = Idle::take().unwrap();
    let busy = machine.memory.read_obj::<u8>(GuestAddress(0)).unwrap_err();
    assert!(matches!(busy, GuestMemoryError::IOError(why) if why.kind() == ErrorKind::WouldBlock));
}
