//! Memslots, permissions and dirty logs through vm-memory's traits. A control shows that each oracle finds its
//! mistake.

use slat_slots::Rule;
use slat_vm_memory::{Checked, Mapped, Marks, Memory, Region, SlotId, SlotMemory, SlotRegion};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use vm_memory::bitmap::{Bitmap, NewBitmap};
use vm_memory::{
    Bytes, GuestAddress, GuestAddressSpace, GuestMemory, GuestMemoryBackend, GuestMemoryError,
    GuestMemoryRegion, MemoryRegionAddress, MmapRegion, Permissions,
};

type Ram = MmapRegion<()>;

fn region(id: u32, start: u64, len: usize) -> Region<Ram> {
    Region::new(SlotId(id), GuestAddress(start), Ram::new(len).unwrap()).unwrap()
}

fn memory_of<R: SlotRegion>(regions: impl IntoIterator<Item = R>) -> Memory<R> {
    Memory::new(regions.into_iter().map(Arc::new)).unwrap()
}

fn harvest(memory: &Memory<Region<Ram>>) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    memory.harvest(|gfn| assert!(pages.insert(gfn.0), "once")); // taken at once
    pages
}

#[test]
fn regions_have_lengths_in_bytes_and_slots_whole_pages() {
    let memory = memory_of([region(0, 0, 0x1004), region(1, 0x10_0000, 0x2000)]);
    assert_eq!((memory.num_regions(), memory.last_addr()), (2, GuestAddress(0x10_1fff)));
    let first = memory.find_region(GuestAddress(0x1003)).unwrap();
    assert_eq!((GuestMemoryRegion::len(first), first.slot().gfns.len()), (0x1004, 2));
    for outside in [0x1004, 0x1fff, 0xf_ffff, 0x10_2000, u64::MAX] {
        assert!(memory.find_region(GuestAddress(outside)).is_none(), "{outside:#x}");
    }
    assert_eq!(memory.slots().len(), 2);
    let at = memory.get_host_address(GuestAddress(0x1003)).unwrap();
    assert_eq!(at as usize, Mapped::as_ptr(&**first) as usize + 0x1003);
    assert!(memory.get_slice(GuestAddress(0x1000), 5).is_err(), "past the last byte");
    assert!(first.get_slice(MemoryRegionAddress(u64::MAX), 2).is_err());
}

#[test]
fn an_access_spans_adjacent_regions_and_ends_at_a_hole() {
    let memory =
        Checked::new(memory_of([region(0, 0, 0x1000), region(1, 0x1000, 0x1000), region(2, 0x3000, 0x1000)]));
    memory.write_slice(&[7; 0x2000], GuestAddress(0)).unwrap();
    assert_eq!(memory.write(&[8; 0x2000], GuestAddress(0x1800)).unwrap(), 0x800);
    let error = memory.write_slice(&[9; 0x2000], GuestAddress(0x1800)).unwrap_err();
    assert!(
        matches!(error, GuestMemoryError::PartialBuffer { expected: 0x2000, completed: 0x800 }),
        "{error}"
    );
    assert!(memory.check_range(GuestAddress(0x800), 0x1000, Permissions::ReadWrite));
    assert!(!memory.check_range(GuestAddress(0x1800), 0x1000, Permissions::Read));
    assert!(memory.check_range(GuestAddress(0x1800), 0, Permissions::Read), "nothing");
    assert!(memory.read_obj::<u64>(GuestAddress(u64::MAX - 3)).is_err());
}

#[test]
fn what_breaks_a_rule_of_memslots_is_refused_and_changes_nothing() {
    let memory = SlotMemory::default();
    memory.commit(|tx| tx.insert(region(0, 0, 0x1004))).unwrap();
    let rule = |id, start| memory.commit(|tx| tx.insert(region(id, start, 0x1000))).unwrap_err().rule;
    assert!(matches!(rule(1, 0x1000), Rule::Overlaps(_)), "its last page");
    assert_eq!(rule(0, 0x8000), Rule::Exists);
    let both = memory.commit(|tx| {
        tx.remove(SlotId(0))?;
        tx.insert(region(1, 0, 0x1000))?;
        tx.remove(SlotId(5))
    });
    assert_eq!(both.unwrap_err().rule, Rule::Missing);
    assert_eq!(memory.memory().raw().find_region(GuestAddress(0)).unwrap().slot().id, SlotId(0));

    let odd = |start, len| Region::new(SlotId(0), GuestAddress(start), Part(len)).unwrap_err().rule;
    assert_eq!((odd(0x800, 0x1000), odd(0, 0)), (Rule::GuestAddress, Rule::Empty));
    assert_eq!(odd(!0xfff, 0x1000), Rule::Wraps);
}

/// Memory of this length at an address that is never used.
#[derive(Debug)]
struct Part(usize);
// SAFETY: never accessed, since it is refused for its length or address.
unsafe impl Mapped for Part {
    fn as_ptr(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(0x1000)
    }

    fn len(&self) -> usize {
        self.0
    }
}

/// Returns how many kinds of writes reach `memory`.
fn writes_that_pass(memory: &impl GuestMemory, at: GuestAddress) -> usize {
    let ways = [
        memory.write(&[1], at).is_ok(),
        memory.write_obj(1u64, at).is_ok(),
        memory.store(1u64, at, Relaxed).is_ok(),
        memory.read_exact_volatile_from(at, &mut &[1u8][..], 1).is_ok(),
        memory.check_range(at, 1, Permissions::ReadWrite),
        memory.get_slices(at, 1, Permissions::Write).unwrap().any(|slice| slice.is_ok()),
    ];
    ways.into_iter().filter(|passed| *passed).count()
}

#[test]
fn a_read_only_slot_refuses_every_way_of_writing() {
    let raw = memory_of([region(0, 0, 0x1000).readonly(), region(1, 0x1000, 0x1000)]);
    raw.write_obj(5u64, GuestAddress(0x100)).unwrap(); // like a loader that fills a ROM
    let memory = Checked::new(raw.clone());
    assert_eq!(writes_that_pass(&memory, GuestAddress(0x100)), 0);
    assert_eq!(memory.read_obj::<u64>(GuestAddress(0x100)).unwrap(), 5);
    assert_eq!(writes_that_pass(&memory, GuestAddress(0x1000)), 6);
    // A write that begins in RAM ends before the ROM.
    let wrapped = Checked::new(memory_of([region(0, 0, 0x1000), region(1, 0x1000, 0x1000).readonly()]));
    assert_eq!(wrapped.write(&[1; 0x1000], GuestAddress(0x800)).unwrap(), 0x800);
    // Control: raw memory does not check permissions, and the count shows it.
    assert_eq!(writes_that_pass(&raw, GuestAddress(0x100)), 6);
}

/// A log that ignores stores to odd pages.
#[derive(Debug)]
struct Deaf(Marks);

impl<'a> vm_memory::bitmap::WithBitmapSlice<'a> for Deaf {
    type S = DeafFrom<'a>;
}
impl Bitmap for Deaf {
    fn mark_dirty(&self, offset: usize, len: usize) {
        if (offset / 4096).is_multiple_of(2) {
            self.0.mark_dirty(offset, len);
        }
    }
    fn dirty_at(&self, offset: usize) -> bool {
        self.0.dirty_at(offset)
    }
    fn slice_at(&self, offset: usize) -> DeafFrom<'_> {
        DeafFrom(self, offset)
    }
}
#[derive(Clone, Debug)]
struct DeafFrom<'a>(&'a Deaf, usize);
impl vm_memory::bitmap::WithBitmapSlice<'_> for DeafFrom<'_> {
    type S = Self;
}
impl vm_memory::bitmap::BitmapSlice for DeafFrom<'_> {}
impl Bitmap for DeafFrom<'_> {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.0.mark_dirty(self.1 + offset, len);
    }
    fn dirty_at(&self, offset: usize) -> bool {
        self.0.dirty_at(self.1 + offset)
    }
    fn slice_at(&self, offset: usize) -> Self {
        Self(self.0, self.1 + offset)
    }
}

const PAGES: u64 = 64;

/// A device writes while a harvester copies dirty pages, repeatedly. Returns how many pages the copy misses in
/// the end.
fn missed<B: Bitmap + Send + Sync>(marks: B, take: impl Fn(&B, &mut dyn FnMut(u64)) + Sync) -> usize {
    let ram = Ram::new((PAGES * 4096) as usize).unwrap();
    let memory = memory_of([Region::with_bitmap(SlotId(0), GuestAddress(0), ram, marks).unwrap()]);
    let mut copy = vec![0u64; PAGES as usize];
    let done = AtomicBool::new(false);
    let log = memory.regions()[0].log();
    let mut update = |memory: &Memory<_>| {
        take(log, &mut |page| copy[page as usize] = memory.read_obj(GuestAddress(page * 4096 + 8)).unwrap());
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..20_000u64 {
                let page = n.wrapping_mul(0x9e37_79b9) % PAGES;
                memory.write_obj(n, GuestAddress(page * 4096 + 8)).unwrap();
            }
            done.store(true, Relaxed);
        });
        while !done.load(Relaxed) {
            update(&memory);
        }
    });
    update(&memory);
    (0..PAGES)
        .filter(|page| copy[*page as usize] != memory.read_obj::<u64>(GuestAddress(page * 4096 + 8)).unwrap())
        .count()
}

#[test]
fn a_copy_made_by_the_log_beside_a_writing_device_is_exact() {
    let marks = || Marks::with_len((PAGES * 4096) as usize);
    assert_eq!(missed(marks(), |marks, visit| marks.take(visit)), 0);
    // Control: unmarked stores are found.
    assert_eq!(missed(Deaf(marks()), |deaf, visit| deaf.0.take(visit)), 32);
}

#[test]
fn exactly_the_pages_that_were_written_are_dirty() {
    let memory = memory_of([region(0, 0, 0x8000), region(1, 0x8000, 0x8000), region(2, 0x10_0000, 0x1004)]);
    memory.write_slice(&[1; 0x2001], GuestAddress(0x6fff)).unwrap();
    memory.write_obj(1u32, GuestAddress(0x10_1000)).unwrap();
    memory.read_slice(&mut [0; 0x1000], GuestAddress(0x2000)).unwrap();
    memory.write_slice(&[], GuestAddress(0x3000)).unwrap();
    assert!(memory.find_region(GuestAddress(0x6fff)).unwrap().bitmap().dirty_at(0x6123));
    assert_eq!(harvest(&memory), BTreeSet::from([6, 7, 8, 0x101]));
    assert_eq!(harvest(&memory), BTreeSet::new(), "taken");
}

#[test]
fn an_old_snapshot_marks_in_the_log_of_all_snapshots() {
    let memory = SlotMemory::default();
    memory.commit(|tx| tx.insert(region(0, 0, 0x4000))).unwrap();
    let old = memory.memory();
    memory.commit(|tx| tx.insert(region(1, 0x10_0000, 0x1000))).unwrap();
    old.write_obj(1u8, GuestAddress(0x2000)).unwrap();
    assert_eq!(harvest(memory.memory().raw()), BTreeSet::from([2]));
}

/// Records when it is unmapped.
struct Told(Ram, Arc<AtomicBool>);
// SAFETY: the inner mapping keeps the contract.
unsafe impl Mapped for Told {
    fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }
    fn len(&self) -> usize {
        self.0.size()
    }
}
impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, Relaxed);
    }
}

#[test]
fn a_removed_region_is_gone_from_new_snapshots_and_unmapped_with_the_last_old_one() {
    let (memory, gone) = (SlotMemory::default(), Arc::new(AtomicBool::new(false)));
    let ram = Told(Ram::new(0x1000).unwrap(), gone.clone());
    memory.commit(|tx| tx.insert(Region::new(SlotId(3), GuestAddress(0), ram)?)).unwrap();
    let old = memory.memory();
    memory.commit(|tx| tx.remove(SlotId(3)).map(drop)).unwrap();
    assert!(memory.memory().read_obj::<u8>(GuestAddress(0)).is_err());
    // Control: a stale region would still be readable, as in the old snapshot.
    assert!(old.read_obj::<u8>(GuestAddress(0)).is_ok());
    assert!(!gone.load(Relaxed), "a device holds it");
    drop(old);
    assert!(gone.load(Relaxed), "no device holds it");
}

/// Adds and removes two DIMMs, `together` or one after the other, until `enough` accepts the number of rounds
/// and of times that a device saw only one.
fn halves_seen(together: bool, enough: impl Fn(u32, u64) -> bool) -> u64 {
    let memory = SlotMemory::default();
    memory.commit(|tx| tx.insert(region(0, 0, 0x1000))).unwrap();
    let (done, halves) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for at in [0u64, 0x800] {
            let (device, done, halves) = (memory.clone(), &done, &halves);
            scope.spawn(move || {
                let mut n = 0u64;
                while !done.load(Relaxed) {
                    let seen = device.memory();
                    let parts = [0x10_0000u64, 0x20_0000]
                        .map(|part| seen.write_obj(n, GuestAddress(part + at)).is_ok());
                    halves.fetch_add(u64::from(parts[0] != parts[1]), Relaxed);
                    seen.write_obj(n, GuestAddress(at)).unwrap();
                    assert_eq!(seen.read_obj::<u64>(GuestAddress(at)).unwrap(), n);
                    n += 1;
                }
            });
        }
        let mut round = 0;
        while !enough(round, halves.load(Relaxed)) {
            let (low, high) = (region(1, 0x10_0000, 0x1000), region(2, 0x20_0000, 0x1000));
            if together {
                memory.commit(|tx| tx.insert(low).and_then(|()| tx.insert(high))).unwrap();
            } else {
                memory.commit(|tx| tx.insert(low)).unwrap();
                thread::yield_now();
                memory.commit(|tx| tx.insert(high)).unwrap();
            }
            let taken = memory.commit(|tx| Ok([tx.remove(SlotId(2))?, tx.remove(SlotId(1))?])).unwrap();
            assert_eq!(taken.map(|region| region.slot().id), [SlotId(2), SlotId(1)]);
            round += 1;
        }
        done.store(true, Relaxed);
    });
    assert_eq!(memory.memory().raw().num_regions(), 1);
    halves.into_inner()
}

#[test]
fn memory_comes_and_goes_under_devices() {
    assert_eq!(halves_seen(true, |round, _| round == 300), 0);
    // Control: with two transactions a device sees only one DIMM.
    assert_ne!(halves_seen(false, |round, halves| halves > 0 || round == 100_000), 0);
}
