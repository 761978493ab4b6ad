//! Tests of swap: a page comes back byte for byte, whatever happens to its address meanwhile, and no copy is
//! leaked.

use crate::fixture::*;
use crate::vm::{coherent, guest_on};
use slat::{Access, Fault, Gfn, Level, Next, PAGE_SIZE, Reason, Resume, Span, VcpuId};
use slat_mm::{AddressSpace, Advice, Arena, Backing, Ksm, MmError, Place, Prot, Swap, SwapBuilder};

pub const PAGE: usize = PAGE_SIZE as usize;

/// A page whose first `noise` bytes of each 64 do not compress.
pub fn contents(page: u64, noise: usize) -> Vec<u8> {
    let (mut random, mut bytes) = (fastrand::Rng::with_seed(page), vec![7; PAGE]);
    bytes.chunks_mut(64).for_each(|line| random.fill(&mut line[..noise]));
    bytes
}

/// Pages of every sort: zeroes, pages that compress to almost nothing, and so on to pages that do not compress.
fn sorts() -> Vec<Vec<u8>> {
    let mut sorts = vec![vec![0; PAGE], vec![7; PAGE], [vec![0; PAGE - 1], vec![1]].concat()];
    sorts.extend((0..=64).step_by(4).map(|noise| contents(noise as u64, noise)));
    sorts
}

impl Machine {
    pub fn fill(&mut self, page: u64, bytes: &[u8]) {
        self.space.write(&mut self.idle, at(page), bytes).unwrap();
    }

    pub fn bytes(&mut self, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        self.space.read(&mut self.idle, at(page), &mut bytes).unwrap();
        bytes
    }

    pub fn page_out(&mut self, first: u64, count: u64) -> u64 {
        self.space.pageout(&mut self.idle, pages(first, count)).unwrap()
    }
}

/// A file in the system's temporary directory. It is removed on drop.
pub struct TempFile(pub std::path::PathBuf);

impl TempFile {
    pub fn new(name: &str) -> Self {
        let name = format!("slat-mm-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn every_sort_of_page_comes_back_from_memory_and_file() {
    let file = TempFile::new("sorts");
    let memory = || Swap::builder().memory(16 << 20);
    let ways: [(SwapBuilder, bool, bool); 3] = [
        (memory(), true, false),
        (Swap::builder().file(&file.0), false, true),
        (memory().file(file.0.with_extension("2")), true, true),
    ];
    let _second = TempFile(file.0.with_extension("2"));
    for (swap, has_memory, has_file) in ways {
        let (mut machine, swap) = Machine::with_swap(swap.keep_copies(false));
        let sorts = sorts();
        let count = sorts.len() as u64;
        machine.map(0, count);
        for (page, bytes) in (0..).zip(&sorts) {
            machine.fill(page, bytes);
        }
        let resident = machine.arena.stats().in_use;
        let out = machine.page_out(0, count);
        let stats = swap.stats();
        assert_eq!((stats.stored, stats.references, stats.zero), (out, out, 1));
        assert_eq!((out == count, stats.refused == 0), (has_file, has_file), "random bytes need a file");
        assert_eq!((stats.memory_bytes > 0, stats.file_bytes > 0), (has_memory, has_file));
        assert_eq!(machine.arena.stats().in_use, resident - out + stats.memory_bytes / PAGE_SIZE);
        assert!(stats.compressed_bytes <= stats.memory_bytes && swap.pool_bytes() == stats.memory_bytes);
        let gone = (0..count).filter(|&page| machine.look(page).is_none()).count() as u64;
        assert_eq!(gone, out);
        for (page, bytes) in (0..).zip(&sorts) {
            assert_eq!(machine.bytes(page), *bytes, "page {page}");
        }
        let stats = swap.stats();
        assert_eq!((stats.loaded, stats.references, stats.load_errors), (out, 0, 0));
        assert_eq!((stats.compressed_bytes, stats.memory_bytes, stats.file_bytes), (0, 0, 0));
        let counted = machine.space.stats();
        assert_eq!((counted.swapped_out, counted.swapped_in), (out, out));
        assert!(machine.all_free());
    }
}

/// Most guests hear page by page of what leaves, before anything leaves. They hear of no page that stays.
#[test]
fn secondary_mmus_hear_that_pages_are_reclaimed() {
    let (mut machine, _swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, 8);
    machine.number(1, 3);
    assert_eq!(machine.page_out(0, 8), 3);
    let seen = machine.recorder.only();
    assert_eq!((seen.hvas, seen.why, seen.may_block), (pages(1, 3), Reason::Reclaim, true));
    assert!(seen.before.iter().all(Option::is_some) && seen.after.iter().all(Option::is_none));
    assert!(seen.references.iter().all(|&references| references > 0), "no frame is free before the end");
    assert_eq!(seen.told, [1, 2, 3].map(|page| (pages(page, 1), None)));
    assert_eq!(machine.page_out(0, 8), 0, "the pages are out already");
    assert!(machine.recorder.take().is_empty(), "there is nothing to report");
    assert_eq!([1, 2, 3].map(|page| machine.get(page)), [1, 2, 3]);
    assert!(machine.recorder.take().is_empty(), "a swap-in sends no notification");
    assert!(machine.all_free());
}

#[test]
fn swapped_pages_are_unmapped_dropped_moved_and_shared_and_no_copy_is_forgotten() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, 32);
    machine.number(0, 32);
    assert_eq!(machine.page_out(0, 32), 32);
    let copies = || swap.stats().references;

    machine.space.munmap(&mut machine.idle, pages(0, 4)).unwrap();
    assert_eq!(copies(), 28);
    machine.space.dontneed(&mut machine.idle, pages(4, 4)).unwrap();
    assert_eq!((copies(), machine.get(5)), (24, 0), "the page is zero, not what was swapped out");
    assert_eq!(machine.space.reap(&mut machine.idle, pages(8, 4)), Ok(4));
    assert_eq!((copies(), machine.get(9)), (20, 0));

    machine.space.mremap(&mut machine.idle, pages(12, 4), 4 * PAGE_SIZE, Place::Fixed(at(600))).unwrap();
    assert_eq!((copies(), machine.get(602)), (20, 14), "one page was read back, and its copy was freed");
    assert_eq!(machine.page_out(602, 1), 1);

    let child = machine.space.fork(&mut machine.idle).unwrap();
    assert_eq!(copies(), 40, "a reference to each copy");
    assert_eq!([get(&child, &mut machine.idle, 602), machine.get(602)], [14, 14]);
    machine.put(602, 99);
    child.write(&mut machine.idle, at(601), &98u64.to_le_bytes()).unwrap();
    assert_eq!([602, 601].map(|page| machine.get(page)), [99, 13]);
    assert_eq!([602, 601].map(|page| get(&child, &mut machine.idle, page)), [14, 98]);
    child.exit(&mut machine.idle).unwrap();
    assert_eq!(copies(), 18);
    drop(child);

    machine.space.mprotect(&mut machine.idle, pages(20, 2), Prot::None).unwrap();
    let denied = machine.space.read(&mut machine.idle, at(20), &mut [0]);
    assert_eq!(denied, Err(MmError::Denied(at(20), Access::Read)));
    machine.space.mprotect(&mut machine.idle, pages(20, 2), Prot::Read).unwrap();
    assert_eq!([20, 21].map(|page| machine.get(page)), [20, 21]);
    let denied = machine.space.write(&mut machine.idle, at(21), &[0]);
    assert_eq!(
        denied,
        Err(MmError::Denied(at(21), Access::Write)),
        "the page came back with other permissions than its mapping's"
    );

    assert_eq!(machine.space.migrate(&mut machine.idle, pages(22, 4)), Ok(0), "there is no frame to move");
    assert!(copies() > 0);
    assert!(machine.all_free(), "dropped with pages in swap");
    assert_eq!((copies(), swap.stats().memory_bytes), (0, 0));
}

/// Pages without access keep their frames. They can be swapped out, too.
#[test]
fn parked_and_protnone_pages_go_and_come_back_as_their_mapping_says() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, 2);
    machine.number(0, 2);
    machine.space.mprotect(&mut machine.idle, pages(0, 1), Prot::None).unwrap();
    let balancer = slat_mm::Balancer::new(&machine.space, slat_mm::Settings::default());
    balancer.scan(&mut machine.idle, 1 << 20).unwrap();
    assert_eq!((machine.page_out(0, 2), swap.stats().references), (2, 2));
    balancer.scan(&mut machine.idle, 1 << 20).unwrap();
    assert_eq!(machine.get(1), 1);
    machine.space.mprotect(&mut machine.idle, pages(0, 1), Prot::ReadWrite).unwrap();
    machine.put(0, 5);
    assert_eq!((machine.get(0), swap.stats().references), (5, 0));
    drop(balancer);
    assert!(machine.all_free());
}

/// If such a page left, another address space would lose it, or no frame would be gained.
#[test]
fn shared_pinned_and_merged_pages_stay() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, 4);
    machine.number(0, 4);
    let pinned = machine.space.pin(&mut machine.idle, pages(0, 1)).unwrap();
    assert_eq!(machine.page_out(0, 1), 0);
    drop(pinned);
    let child = machine.space.fork(&mut machine.idle).unwrap();
    assert_eq!(machine.page_out(0, 4), 0, "the child would still hold the frames");
    drop(child);

    let ksm = Ksm::builder(&machine.arena).build().unwrap();
    machine.space.madvise(&mut machine.idle, pages(0, 4), Advice::Mergeable).unwrap();
    ksm.add(&machine.space).unwrap();
    (0..3).for_each(|page| machine.put(page, 7));
    ksm.scan(&mut machine.idle, u64::MAX);
    ksm.scan(&mut machine.idle, u64::MAX);
    assert_eq!((ksm.stats().pages_sharing, machine.page_out(0, 4)), (2, 1), "all but the merged ones");
    assert_eq!([0, 3].map(|page| machine.get(page)), [7, 3]);
    drop(ksm);
    assert_eq!(swap.stats().references, 0);
    assert!(machine.all_free());
}

#[test]
fn huge_pages_are_split_and_go_in_parts() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(4 << 20));
    machine.map(0, 1024);
    machine.number(0, 1024);
    assert_eq!(machine.look(0).unwrap().level, Level::M2);
    assert_eq!(machine.page_out(100, 600), 600);
    assert_eq!((machine.look(99).unwrap().level, machine.look(700).unwrap().level), (Level::K4, Level::K4));
    assert_eq!(swap.stats().references, 600);
    assert!((0..1024).all(|page| machine.get(page) == page));
    assert_eq!(swap.stats().references, 0);
    assert!(machine.all_free());
}

/// Neither a swap-out nor a swap-in counts as a write.
#[test]
fn soft_dirty_survives_swap() {
    let (mut machine, _swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, 4);
    machine.number(0, 4);
    machine.space.clear_soft_dirty(&mut machine.idle, pages(0, 4)).unwrap();
    machine.put(1, 11);
    assert_eq!(machine.page_out(0, 4), 4);
    assert_eq!(machine.space.soft_dirty(pages(0, 4)).unwrap(), [pages(1, 1)]);
    assert_eq!([0, 1, 2].map(|page| machine.get(page)), [0, 11, 2]);
    machine.put(2, 22);
    assert_eq!(machine.space.soft_dirty(pages(0, 4)).unwrap(), [pages(1, 2)]);
    machine.page_out(0, 4);
    machine.space.clear_soft_dirty(&mut machine.idle, pages(0, 4)).unwrap();
    machine.get(1);
    assert_eq!(
        machine.space.soft_dirty(pages(0, 4)).unwrap(),
        [],
        "the bits were cleared while the pages were out"
    );
    machine.put(1, 1);
    assert_eq!(machine.space.soft_dirty(pages(0, 4)).unwrap(), [pages(1, 1)]);
    assert!(machine.all_free());
}

#[test]
fn impossible_requests_are_refused() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    let without = AddressSpace::builder(&machine.arena).build().unwrap();
    without.mmap(Place::Fixed(at(0)), PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    without.write(&mut machine.idle, at(0), &[0]).unwrap();
    assert_eq!(without.pageout(&mut machine.idle, pages(0, 1)), Ok(0), "not even zero pages go");
    let odd = Span::new(at(0) + 1, at(1));
    assert_eq!(machine.space.pageout(&mut machine.idle, odd), Err(MmError::BadRange(odd)));
    let other = Arena::builder().limit(2 << 20).build().unwrap();
    let foreign = AddressSpace::builder(&other).swap(&swap).build();
    assert_eq!(foreign.map(drop), Err(MmError::ForeignSwap));
    assert_eq!(machine.space.pageout(&mut machine.idle, pages(0, 8)), Ok(0), "nothing is mapped");
    let nowhere = Swap::builder().file("/nowhere/at/all").build(&other);
    assert_eq!(nowhere.map(drop), Err(MmError::Os { call: "open", errno: libc::ENOENT }));
    drop(without);
    assert!(machine.all_free());
}

/// Pages of zeroes need neither memory nor file.
#[test]
fn zeroes_cost_nothing() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder());
    machine.map(0, 8);
    (0..8).for_each(|page| machine.put(page, 0));
    machine.put(3, 3);
    assert_eq!(machine.page_out(0, 8), 7, "all but the page that needs memory");
    assert_eq!((swap.stats().references, swap.stats().memory_bytes, swap.has_room()), (7, 0, false));
    assert!((0..8).all(|page| machine.get(page) == if page == 3 { 3 } else { 0 }));
    assert!(machine.all_free());
}

#[test]
fn a_guest_reads_and_writes_what_was_swapped_out() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, 16);
    machine.number(0, 16);
    let Machine { idle, space, .. } = &mut machine;
    let vm = guest_on(space, idle, 16);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut fault = |idle: &mut _, gfn: u64, access| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access });
    for gfn in 0..16 {
        let _ = fault(idle, gfn, Access::Write).unwrap();
    }
    assert_eq!(space.pageout(idle, pages(0, 16)), Ok(16));
    assert!((0..16).all(|gfn| vm.memory().translate(idle, Gfn(gfn)).is_none()), "the guest lost every page");
    for (gfn, access) in [(3, Access::Read), (4, Access::Write), (5, Access::Fetch)] {
        assert_eq!(fault(idle, gfn, access), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        let leaf = vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf;
        assert!(leaf.perms.allows(access));
        // SAFETY: the guest has the frame mapped, and nothing else runs on the machine.
        let seen = unsafe { space.arena().frame(leaf.pfn).cast::<[u8; 8]>().read() };
        assert_eq!(u64::from_le_bytes(seen), gfn);
    }
    assert_eq!(swap.stats().references, 13);
    coherent(&vm, idle, 16);
    drop(vcpu);
    drop(vm);
    assert!(machine.all_free());
}

/// A process with fewer frames than pages still reaches all its pages in turn.
#[test]
fn memory_for_more_pages_than_there_are_frames() {
    const PAGES: u64 = 2000;
    let arena = Arena::builder().limit(2 << 20).poison(0xdd).build().unwrap();
    let file = TempFile::new("more");
    let swap = Swap::builder().file(&file.0).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    let idle = &mut slat::Idle::take().unwrap();
    space.mmap(Place::Fixed(at(0)), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let full = Err(MmError::OutOfFrames(Level::K4));
    for page in 0..PAGES {
        if space.write(idle, at(page), &page.to_le_bytes()) == full {
            assert!(space.pageout(idle, pages(0, PAGES)).unwrap() > 400);
            space.write(idle, at(page), &page.to_le_bytes()).unwrap();
        }
    }
    for page in 0..PAGES {
        let mut bytes = [0; 8];
        if space.read(idle, at(page), &mut bytes) == full {
            assert!(space.pageout(idle, pages(0, PAGES)).unwrap() > 400);
            space.read(idle, at(page), &mut bytes).unwrap();
        }
        assert_eq!(u64::from_le_bytes(bytes), page);
    }
    drop(space);
    assert_eq!((swap.stats().references, arena.stats().in_use, arena.stats().stale_writes), (0, 0, 0));
}
