//! Tests of a hypervisor's tables in guest memory, while this process swaps out, moves and shares their pages.

use slat::nested::{EptFeatures, EptTable, L1Access, L1Stop};
use slat::table::Word;
use slat::table::formats::Npt4;
use slat::*;
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot, Swap};
use std::sync::Arc;

const MEMORY: Hva = Hva(0x4000_0000);
/// The frames of L1's tables, the root first, and the frame that the last table maps.
const TABLES: [u64; 4] = [3, 9, 4, 7];
const MAPPED: Gfn = Gfn(0x77);

fn word(space: &AddressSpace, idle: &mut Idle, frame: u64) -> u64 {
    let mut bytes = [0; 8];
    space.read(idle, MEMORY + (frame << 12), &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn a_table_in_the_guest_is_walked_wherever_its_pages_are() {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(16 << 20).build().unwrap();
    let swap = Swap::builder().memory(8 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    let memory = space.mmap(Place::Fixed(MEMORY), 16 << 12, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let vm = Arc::new(Vm::<Npt4, _>::builder(HostView::new(&space)).build().unwrap());
    space.register(&vm);
    let slot = Slot::new(SlotId(0), Gfn(0), 16, MEMORY).log_dirty();
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let clean = |idle: &mut Idle| vm.memory().harvest(idle, SlotId(0)).unwrap().commit();
    let dirty = || TABLES.map(|frame| vm.memory().is_dirty(Gfn(frame)));

    let entries =
        [TABLES[1] << 12 | 7, TABLES[2] << 12 | 7, TABLES[3] << 12 | 7, MAPPED.0 << 12 | 6 << 3 | 7];
    for (frame, entry) in TABLES.into_iter().zip(entries) {
        space.write(&mut idle, MEMORY + (frame << 12), &entry.to_le_bytes()).unwrap();
    }
    let features = EptFeatures { accessed_dirty: true, ..EptFeatures::of(46) };
    let table = EptTable::new(TABLES[0] << 12 | 1 << 6 | 3 << 3 | 6, features).unwrap();
    let load = L1Access::new(Gpa(0x123), Access::Read);
    let store = L1Access::new(Gpa(0x123), Access::Write);

    // Swapped out: the walk requests the page, reads it back, and sets A.
    clean(&mut idle);
    space.pageout(&mut idle, memory).unwrap();
    let stop = vm.memory().try_walk_l1(&table, load);
    let gpa = Gpa(TABLES[0] << 12);
    assert_eq!(stop, Err(L1Stop::Ask { gpa, hva: MEMORY + gpa.0, access: Access::Read }));
    assert_eq!(vm.memory().walk_l1(&mut idle, &table, load).unwrap().gfn, MAPPED);
    assert_eq!(TABLES.map(|frame| word(&space, &mut idle, frame) >> 8 & 3), [1; 4]);
    assert_eq!(dirty(), [true; 4]);

    // Moved: the same bytes in another frame. D of the leaf only.
    clean(&mut idle);
    space.migrate(&mut idle, memory).unwrap();
    assert!(vm.memory().walk_l1(&mut idle, &table, store).unwrap().dirty);
    assert_eq!(
        (word(&space, &mut idle, TABLES[3]), dirty()),
        (entries[3] | 3 << 8, [false, false, false, true])
    );

    // Shared with a child, which must not see the bits set here.
    space.write(&mut idle, MEMORY + (TABLES[3] << 12), &entries[3].to_le_bytes()).unwrap();
    let child = space.fork(&mut idle).unwrap();
    assert!(vm.memory().walk_l1(&mut idle, &table, store).unwrap().dirty);
    let both = [&space, &child].map(|space| word(space, &mut idle, TABLES[3]) >> 8 & 3);
    assert_eq!(both, [3, 0]);
}

#[test]
fn a_table_is_read_as_its_words_one_by_one() {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(16 << 20).build().unwrap();
    let swap = Swap::builder().memory(8 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    let memory = space.mmap(Place::Fixed(MEMORY), 2 << 12, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let host = HostView::new(&space);
    let mut words = [Word(7); 512];
    assert!(!host.read_all(MEMORY, &mut words), "the page was never used");
    let bytes: Vec<u8> = (0..2 * 512u64).flat_map(|word| (word << 20 | 5).to_le_bytes()).collect();
    space.write(&mut idle, MEMORY, &bytes).unwrap();
    for (first, count) in [(0, 512), (0, 1), (511, 1), (100, 300), (512, 512)] {
        let (at, words) = (MEMORY + first * 8, &mut words[..count]);
        assert!(host.read_all(at, words));
        let one_by_one = (first..first + count as u64).map(|word| host.read(MEMORY + word * 8).unwrap());
        assert!(one_by_one.eq(words.iter().copied()), "{count} from {first} on");
    }
    assert!(!host.read_all(MEMORY + 8, &mut words), "the words cross a page");
    assert!(!host.read_all(MEMORY + 4, &mut words[..1]) && host.read(MEMORY + 4).is_none(), "no eight bytes");
    space.pageout(&mut idle, memory).unwrap();
    assert!(!host.read_all(MEMORY, &mut words), "swapped out");
}
