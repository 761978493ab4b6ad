//! Tests that axaddrspace's own leave out: behaviour that AxVisor's guests, and the hardware, rely on.

use axaddrspace::{AddrSpace, GuestPhysAddr, MappingFlags};
use axerrno::AxError;
use memory_addr::{PhysAddr, VirtAddr};
use page_table_multiarch::PagingHandler;
use std::sync::{Mutex, MutexGuard};

const PAGE: usize = 4096;
const RAM: MappingFlags = MappingFlags::from_bits_retain(0b111);

/// A machine's frames: the free ones, and the offset of virtual addresses from physical ones.
struct Frames {
    free: Vec<usize>,
    seen_at: usize,
}

static FRAMES: Mutex<Frames> = Mutex::new(Frames { free: Vec::new(), seen_at: 0 });
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Machine;

impl PagingHandler for Machine {
    fn alloc_frames(_: usize, _: usize) -> Option<PhysAddr> {
        FRAMES.lock().unwrap().free.pop().map(PhysAddr::from)
    }

    fn dealloc_frames(first: PhysAddr, _: usize) {
        FRAMES.lock().unwrap().free.push(first.as_usize());
    }

    fn phys_to_virt(frame: PhysAddr) -> VirtAddr {
        VirtAddr::from(FRAMES.lock().unwrap().seen_at + frame.as_usize())
    }
}

fn free() -> usize {
    FRAMES.lock().unwrap().free.len()
}

fn at(address: usize) -> GuestPhysAddr {
    GuestPhysAddr::from(address)
}

/// Makes a machine with this many frames, filled with old contents. Their virtual addresses equal the physical ones.
fn machine(frames: usize) -> MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let memory = vec![0xa5_u8; (frames + 1) * PAGE].leak();
    let first = memory.as_ptr().expose_provenance().next_multiple_of(PAGE);
    *FRAMES.lock().unwrap() =
        Frames { free: (0..frames).map(|nth| first + nth * PAGE).collect(), seen_at: 0 };
    alone
}

/// A space on a machine with enough frames. The caller drops the guard last: a space gives its frames back to its own
/// machine.
fn space() -> (MutexGuard<'static, ()>, AddrSpace<Machine>) {
    let alone = machine(64);
    (alone, AddrSpace::new_empty(at(0), 1 << 40).unwrap())
}

/// The leaf that a walker finds, at four levels of 512 entries.
fn descriptor(space: &AddrSpace<Machine>, address: usize) -> u64 {
    let mut table = space.page_table_root().as_usize();
    for level in (0..4).rev() {
        let index = address >> (12 + 9 * level) & 511;
        // SAFETY: no other thread has the space, and frames are seen where they are.
        let entry = unsafe { std::ptr::with_exposed_provenance::<u64>(table).add(index).read() };
        if entry & 1 == 0 || level == 0 || entry & 2 == 0 {
            return entry;
        }
        table = (entry & 0xffff_ffff_f000) as usize;
    }
    unreachable!()
}

#[test]
fn a_part_is_unmapped_and_the_rest_stays() {
    let (_alone, mut space) = space();
    space.map_linear(at(0x4000_0000), PhysAddr::from(0x8000_0000), 4 << 20, RAM).unwrap();
    space.unmap(at(0x4010_0000), PAGE).unwrap();
    assert_eq!(space.translate(at(0x4010_0000)), None);
    for kept in [0x4000_0000, 0x400f_f123, 0x4010_1000, 0x403f_ffff] {
        assert_eq!(space.translate(at(kept)), Some(PhysAddr::from(kept + 0x4000_0000)));
    }
    space.map_linear(at(0x4010_0000), PhysAddr::from(0x1234_5000), PAGE, RAM).unwrap();
    assert_eq!(space.translate(at(0x4010_0042)), Some(PhysAddr::from(0x1234_5042)));
    // Across the borders of three areas and of an unmapped range.
    space.unmap(at(0x4000_0000), 64 << 20).unwrap();
    assert_eq!(space.translate(at(0x4010_0000)).or(space.translate(at(0x4000_0000))), None);
}

#[test]
fn an_overlap_is_refused_and_changes_nothing() {
    let (_alone, mut space) = space();
    space.map_linear(at(0x1000), PhysAddr::from(0x8000), 4 * PAGE, RAM).unwrap();
    let refused = space.map_linear(at(0x4000), PhysAddr::from(0x2_0000), 4 * PAGE, RAM);
    assert_eq!(refused, Err(AxError::AlreadyExists));
    assert_eq!(space.translate(at(0x4000)), Some(PhysAddr::from(0xb000)));
    assert_eq!(space.translate(at(0x5000)), None);
}

#[test]
fn invalid_ranges_and_flags_are_refused() {
    let (_alone, mut space) = space();
    let frame = PhysAddr::from(0x8000);
    let mut refused = |address, frame, bytes, flags| {
        assert_eq!(space.map_linear(at(address), frame, bytes, flags), Err(AxError::InvalidInput));
    };
    refused(0x1001, frame, PAGE, RAM);
    refused(0x1000, PhysAddr::from(0x8001), PAGE, RAM);
    refused(0x1000, frame, PAGE + 1, RAM);
    refused(0x1000, frame, 0, RAM);
    refused((1 << 40) - PAGE, frame, 2 * PAGE, RAM);
    refused(usize::MAX - PAGE + 1, frame, 2 * PAGE, RAM);
    refused(0x1000, PhysAddr::from(usize::MAX - PAGE + 1), 2 * PAGE, RAM);
    refused(0x1000, PhysAddr::from(1 << 48), PAGE, RAM);
    refused(0x1000, frame, PAGE, MappingFlags::WRITE);
    assert_eq!(space.unmap(at(0x1000), 12), Err(AxError::InvalidInput));
    assert!(!space.handle_page_fault(at(usize::MAX), MappingFlags::READ));
    assert!(space.translated_byte_buffer(at(usize::MAX), 2).is_none());
}

#[test]
fn descriptors_match_the_flags() {
    let (_alone, mut space) = space();
    let kinds = [
        (RAM, 0b1111 << 2 | 0b11 << 6),
        (MappingFlags::READ | MappingFlags::EXECUTE, 0b1111 << 2 | 0b01 << 6),
        (MappingFlags::READ | MappingFlags::WRITE, 0b1111 << 2 | 0b11 << 6 | 0b10 << 53),
        (
            MappingFlags::READ | MappingFlags::WRITE | MappingFlags::DEVICE,
            0b0001 << 2 | 0b11 << 6 | 0b10 << 53,
        ),
        (RAM | MappingFlags::DEVICE | MappingFlags::UNCACHED, 0b0101 << 2 | 0b11 << 6),
    ];
    for (nth, (flags, bits)) in kinds.into_iter().enumerate() {
        // A page, two megabytes, and a gigabyte, each in a piece of its own.
        for (size, page) in [(PAGE, 0b10), (2 << 20, 0), (1 << 30, 0)] {
            let address = nth << 33 | size << 1;
            space.map_linear(at(address), PhysAddr::from(address), size, flags).unwrap();
            let valid_and_accessed = 1 | 1 << 10;
            // The flags say nothing of shareability, nor of the bits for software.
            let told = descriptor(&space, address) & !(0b11 << 8 | 0xf << 55);
            assert_eq!(told, address as u64 | valid_and_accessed | page | bits, "{flags:?}, {size:#x}");
        }
    }
}

#[test]
fn accesses_that_the_flags_forbid_are_no_faults_to_be_handled() {
    let (_alone, mut space) = space();
    space.map_alloc(at(0x1000), PAGE, MappingFlags::READ, false).unwrap();
    assert!(!space.handle_page_fault(at(0x1000), MappingFlags::WRITE));
    assert!(!space.handle_page_fault(at(0x1000), MappingFlags::EXECUTE));
    assert!(!space.handle_page_fault(at(0x2000), MappingFlags::READ));
    assert!(space.handle_page_fault(at(0x1000), MappingFlags::READ));
}

#[test]
fn a_page_that_faults_twice_keeps_its_bytes() {
    let (_alone, mut space) = space();
    space.map_alloc(at(0x1000), 2 * PAGE, RAM, false).unwrap();
    assert!(space.handle_page_fault(at(0x1234), MappingFlags::WRITE));
    let frame = space.translate(at(0x1000));
    space.translated_byte_buffer(at(0x1234), 1).unwrap()[0][0] = 7;
    // Another vCPU had the same fault.
    assert!(space.handle_page_fault(at(0x1234), MappingFlags::WRITE));
    assert_eq!(space.translated_byte_buffer(at(0x1000), PAGE).unwrap()[0][0x234], 7);
    assert_eq!(space.translate(at(0x1000)), frame);
}

#[test]
fn allocated_memory_is_zero_and_is_freed() {
    let (_alone, mut space) = space();
    space.map_alloc(at(0x1000), 4 * PAGE, RAM, true).unwrap();
    let bytes = space.translated_byte_buffer(at(0x1000), 4 * PAGE).unwrap();
    assert!(bytes.iter().all(|part| part.iter().all(|&byte| byte == 0)));
    let left = free();
    space.unmap(at(0x2000), PAGE).unwrap();
    assert_eq!(free(), left + 1);
    drop(space);
    assert_eq!(free(), 64);
}

#[test]
fn tables_take_few_frames() {
    let (_alone, mut space) = space();
    assert_eq!(free(), 63, "the root");
    space.map_linear(at(0x1000), PhysAddr::from(0x8000), PAGE, RAM).unwrap();
    assert_eq!(free(), 55, "a table of each level below, and as many as a vCPU has at hand");
}

#[test]
fn wherever_memory_runs_out_nothing_is_mapped_and_all_goes_back() {
    let mut refused = 0;
    for frames in 0..16 {
        let _alone = machine(frames);
        match AddrSpace::<Machine>::new_empty(at(0), 1 << 40) {
            Err(error) => assert_eq!((error, frames), (AxError::NoMemory, 0)),
            Ok(mut space) => match space.map_alloc(at(0x1000), 4 * PAGE, RAM, true) {
                Ok(()) => assert!(frames >= 1 + 3 + 4 && space.translate(at(0x4000)).is_some()),
                Err(error) => {
                    assert_eq!((error, space.translate(at(0x1000))), (AxError::NoMemory, None));
                    refused += 1;
                }
            },
        }
        assert_eq!(free(), frames);
    }
    // At least a root, three tables, and three pages are needed; while there are free frames, a vCPU takes more of them
    // for tables.
    assert!((7..14).contains(&refused), "{refused}");
}
