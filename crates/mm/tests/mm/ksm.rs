//! Tests of same-page merging: reads and writes cannot tell, the counters are exact, and every frame comes
//! back.

use crate::fixture::*;
use crate::vm::{coherent, guest_on};
use slat::{Access, Fault, Gfn, Idle, Level, PAGE_SIZE, Pfn, Reason, VcpuId};
use slat_mm::{AddressSpace, Advice, Arena, Backing, File, Ksm, KsmStats, MmError, Place, Prot};
use std::sync::Arc;
use std::time::Duration;

/// A machine with `count` mergeable pages, and KSM on it.
fn machine(count: u64) -> (Machine, Arc<Ksm>) {
    merging(64, count)
}

/// The same. KSM merges `together` pages at a time.
fn merging(together: u32, count: u64) -> (Machine, Arc<Ksm>) {
    let mut machine = Machine::new();
    let ksm = Ksm::builder(&machine.arena).merge_together(together).build().unwrap();
    let memory = machine.map(0, count);
    machine.space.madvise(&mut machine.idle, memory, Advice::Mergeable).unwrap();
    ksm.add(&machine.space).unwrap();
    (machine, ksm)
}

/// Two passes: the first learns checksums, the second merges. Returns the number of merged pages.
fn two_passes(ksm: &Ksm, idle: &mut Idle) -> u64 {
    assert_eq!(ksm.scan(idle, u64::MAX), 0, "nothing that changed since the last pass is merged");
    ksm.scan(idle, u64::MAX)
}

/// The counts of shared, sharing, unshared and volatile pages.
fn counts(ksm: &Ksm) -> [u64; 4] {
    let KsmStats { pages_shared, pages_sharing, pages_unshared, pages_volatile, .. } = ksm.stats();
    [pages_shared, pages_sharing, pages_unshared, pages_volatile]
}

fn frame(machine: &Machine, page: u64) -> Pfn {
    machine.look(page).unwrap().pfn
}

#[test]
fn pages_with_the_same_contents_become_one_until_they_are_written() {
    let (mut machine, ksm) = machine(8);
    (0..6).for_each(|page| machine.put(page, page % 2));
    machine.put(6, 77);
    let used = machine.arena.stats().in_use;
    assert_eq!(ksm.scan(&mut machine.idle, u64::MAX), 0);
    assert_eq!(counts(&ksm), [0, 0, 0, 7], "page 7 was never used");
    assert_eq!(ksm.scan(&mut machine.idle, u64::MAX), 6);
    assert_eq!(counts(&ksm), [2, 4, 1, 0]);
    assert_eq!(machine.arena.stats().in_use, used - 4);
    for page in 0..6 {
        assert_eq!((frame(&machine, page), machine.get(page)), (frame(&machine, page % 2), page % 2));
        assert!(!machine.look(page).unwrap().writable);
    }
    machine.put(2, 22);
    assert_eq!([0, 2, 4].map(|page| machine.get(page)), [0, 22, 0]);
    assert_eq!(counts(&ksm)[..2], [2, 3]);
    // The last sharer gets a copy too: the tree has its own reference.
    machine.put(0, 20);
    let last = frame(&machine, 4);
    machine.put(4, 24);
    assert_ne!(frame(&machine, 4), last);
    assert_eq!(counts(&ksm)[..2], [1, 2]);
    assert_eq!(machine.arena.references(last), 1, "it is not shared");
    ksm.scan(&mut machine.idle, u64::MAX);
    assert_eq!(machine.arena.references(last), 0, "pruned");
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|page| machine.get(page)), [20, 1, 22, 1, 24, 1, 77, 0]);
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn a_merge_tells_of_a_write_protection_and_of_a_change_of_the_entry() {
    let (mut machine, ksm) = machine(2);
    (0..2).for_each(|page| machine.put(page, 5));
    let frames = [0, 1].map(|page| frame(&machine, page));
    two_passes(&ksm, &mut machine.idle);
    let seen = machine.recorder.take();
    let told: Vec<_> = seen.iter().map(|seen| (seen.why, seen.hvas)).collect();
    let expect = [(Reason::WriteProtect, 0), (Reason::WriteProtect, 1), (Reason::ChangePte, 1)];
    assert_eq!(told, expect.map(|(why, page)| (why, pages(page, 1))));
    for protect in &seen[..2] {
        let (before, after) = (protect.before[0].unwrap(), protect.after[0].unwrap());
        assert!(before.writable && !after.writable && before.pfn == after.pfn);
    }
    let (before, after) = (seen[2].before[0].unwrap(), seen[2].after[0].unwrap());
    assert_eq!((before.pfn, after.pfn, after.writable), (frames[1], frames[0], false));
    assert!(seen[2].references[0] > 0, "the frame was freed before the change ended");
    assert_eq!(machine.arena.references(frames[1]), 0);
    drop(ksm);
    assert!(machine.all_free());
}

/// KSM sends one notification for a run of neighbours. A page with other contents ends the run, and so does the
/// setting.
#[test]
fn as_many_neighbours_are_merged_together_as_the_setting_says() {
    for most in [64, 20, 1] {
        let (mut machine, ksm) = merging(most, 100);
        (0..100).for_each(|page| machine.put(page, 5));
        machine.put(50, 6);
        assert_eq!(two_passes(&ksm, &mut machine.idle), 99);
        let seen = machine.recorder.take();
        let told = |why| {
            let seen = seen.iter().filter(move |seen| seen.why == why);
            seen.map(|seen| (seen.hvas.start, seen.hvas.len() / PAGE_SIZE)).collect::<Vec<_>>()
        };
        let most = u64::from(most);
        let runs = [1, 51].into_iter().flat_map(|first: u64| {
            let begins = (first..first + 49).step_by(most as usize);
            begins.map(move |begin| (at(begin), most.min(first + 49 - begin)))
        });
        let runs: Vec<_> = runs.collect();
        assert_eq!(told(Reason::ChangePte), runs);
        assert_eq!(
            (told(Reason::WriteProtect)[0], &told(Reason::WriteProtect)[1..]),
            ((at(0), 1), &runs[..])
        );
        drop((seen, ksm));
        assert!(machine.all_free());
    }
}

/// Where all listeners take changes page by page, KSM also merges distant pages together. Their neighbours
/// notice nothing.
#[test]
fn scattered_pages_are_merged_together_where_that_costs_no_guest() {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
    let space = AddressSpace::builder(&arena).build().unwrap();
    let memory =
        space.mmap(Place::Fixed(BASE), 512 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    space.madvise(&mut idle, memory, Advice::Mergeable).unwrap();
    let vm = guest_on(&space, &mut idle, 512);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let ksm = Ksm::builder(&arena).build().unwrap();
    ksm.add(&space).unwrap();
    let contents = |page| if page % 8 == 3 { 5 } else { 1000 + page };
    for page in 0..512 {
        let fault = Fault { gpa: Gfn(page).gpa(), access: Access::Write };
        let _ = vcpu.fault(&mut idle, fault).unwrap();
        space.write(&mut idle, at(page), &contents(page).to_le_bytes()).unwrap();
    }
    assert_eq!(two_passes(&ksm, &mut idle), 64);
    assert_eq!([Reason::WriteProtect, Reason::ChangePte].map(|why| space.stats().notified(why)), [1, 2]);
    for page in 0..512 {
        let leaf = vm.memory().translate(&mut idle, Gfn(page)).expect("no translation is missing").leaf;
        assert_eq!(leaf.perms.allows(Access::Write), page % 8 != 3, "{page}");
        assert_eq!(get(&space, &mut idle, page), contents(page));
    }
    coherent(&vm, &mut idle, 512);
    drop(vcpu);
    drop((vm, ksm, space));
    assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (0, 0));
}

#[test]
fn a_page_that_keeps_changing_is_volatile_and_left_alone() {
    let (mut machine, ksm) = machine(3);
    for pass in 1..5 {
        (0..2).for_each(|page| machine.put(page, pass));
        machine.put(2, 1000);
        assert_eq!(ksm.scan(&mut machine.idle, u64::MAX), 0);
    }
    assert_eq!(counts(&ksm), [0, 0, 1, 2]);
    assert_eq!(ksm.stats().full_scans, 4);
    assert!(machine.recorder.take().is_empty(), "a look sends no notification");
    assert_eq!(ksm.scan(&mut machine.idle, u64::MAX), 2);
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn a_scan_goes_on_where_the_last_one_stopped() {
    let (mut machine, ksm) = machine(10);
    (0..10).for_each(|page| machine.put(page, 5));
    let mut merged = Vec::new();
    while merged.len() < 8 {
        merged.push(ksm.scan(&mut machine.idle, 4));
    }
    assert_eq!(merged, [0, 0, 0, 4, 4, 2, 0, 0], "4, 4, 2 pages and the end of the pass, each time");
    assert_eq!((ksm.stats().merges, ksm.stats().full_scans, counts(&ksm)), (10, 2, [1, 9, 0, 0]));
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn pages_of_zeroes_share_one_if_that_is_set() {
    for on in [false, true] {
        let mut machine = Machine::new();
        let ksm = Ksm::builder(&machine.arena).use_zero_pages(on).max_page_sharing(2).build().unwrap();
        let memory = machine.map(0, 9);
        machine.space.madvise(&mut machine.idle, memory, Advice::Mergeable).unwrap();
        ksm.add(&machine.space).unwrap();
        (0..9).for_each(|page| machine.put(page, 0));
        machine.put(8, 8);
        let merged = two_passes(&ksm, &mut machine.idle);
        assert_eq!((merged, ksm.stats().zero_pages), (8, if on { 8 } else { 0 }));
        assert_eq!(counts(&ksm), if on { [0, 0, 1, 0] } else { [4, 4, 1, 0] });
        machine.put(3, 3);
        assert_eq!(ksm.stats().zero_pages, if on { 7 } else { 0 });
        assert_eq!([2, 3, 4, 8].map(|page| machine.get(page)), [0, 3, 0, 8]);
        drop(ksm);
        assert!(machine.all_free());
    }
}

#[test]
fn no_frame_is_shared_more_often_than_is_set() {
    let mut machine = Machine::new();
    let ksm = Ksm::builder(&machine.arena).max_page_sharing(3).build().unwrap();
    let memory = machine.map(0, 10);
    machine.space.madvise(&mut machine.idle, memory, Advice::Mergeable).unwrap();
    ksm.add(&machine.space).unwrap();
    (0..10).for_each(|page| machine.put(page, 5));
    assert_eq!(two_passes(&ksm, &mut machine.idle), 9);
    assert_eq!(counts(&ksm), [3, 6, 1, 0], "three duplicates, and one that exceeds the sharing limit");
    assert!(
        (0..9).all(|page| machine.arena.references(frame(&machine, page)) == 4),
        "3 entries and the tree"
    );
    machine.put(0, 6);
    assert_eq!(ksm.scan(&mut machine.idle, u64::MAX), 1, "below the sharing limit again");
    assert_eq!(counts(&ksm), [3, 6, 0, 1]);
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn merged_pages_survive_whatever_is_done_to_their_addresses() {
    let (mut machine, ksm) = machine(12);
    (0..12).for_each(|page| machine.put(page, 5));
    two_passes(&ksm, &mut machine.idle);
    let stable = frame(&machine, 0);
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(0, 12)), Ok(0), "merged pages stay put");
    assert_eq!(frame(&machine, 11), stable);

    let child = machine.space.fork(&mut machine.idle).unwrap();
    assert_eq!(counts(&ksm), [1, 23, 0, 0], "the fork shares the merged pages");
    child.write(&mut machine.idle, at(3), &9u64.to_le_bytes()).unwrap();
    machine.put(4, 8);
    assert_eq!([3, 4].map(|page| get(&child, &mut machine.idle, page)), [9, 5]);
    assert_eq!([3, 4].map(|page| machine.get(page)), [5, 8]);
    drop(child);
    assert_eq!(counts(&ksm)[..2], [1, 10]);

    let (space, idle) = (&machine.space, &mut machine.idle);
    space.munmap(idle, pages(0, 1)).unwrap();
    space.dontneed(idle, pages(1, 1)).unwrap();
    space.mremap(idle, pages(2, 2), 2 * PAGE_SIZE, Place::Fixed(at(100))).unwrap();
    space.mprotect(idle, pages(5, 2), Prot::None).unwrap();
    space.mprotect(idle, pages(5, 1), Prot::ReadWrite).unwrap();
    space.mprotect(idle, pages(6, 1), Prot::Read).unwrap();
    assert_eq!([1, 100, 101, 5, 6].map(|page| machine.get(page)), [0, 5, 5, 5, 5]);
    assert!([100, 101, 5, 6].iter().all(|&page| frame(&machine, page) == stable));
    machine.put(100, 1);
    machine.put(5, 2);
    assert_eq!([100, 101, 5, 6].map(|page| machine.get(page)), [1, 5, 2, 5]);
    // 101 and 6 to 11 share the frame: the moved mapping is still mergeable.
    assert_eq!(counts(&ksm)[..2], [1, 6]);
    machine.put(100, 5);
    two_passes(&ksm, &mut machine.idle);
    assert_eq!(frame(&machine, 100), stable);
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn huge_pages_are_divided_only_to_be_merged() {
    let mut machine = Machine::huge();
    let ksm = Ksm::builder(&machine.arena).build().unwrap();
    let memory = machine.map(0, 2 * 512);
    machine.space.madvise(&mut machine.idle, memory, Advice::Mergeable).unwrap();
    ksm.add(&machine.space).unwrap();
    machine.number(0, 1024);
    assert_eq!(machine.look(700).unwrap().level, Level::M2);
    assert_eq!(two_passes(&ksm, &mut machine.idle), 0);
    assert_eq!((counts(&ksm), machine.space.stats().splits), ([0, 0, 1024, 0], 0));
    machine.put(7, 9);
    assert_eq!(two_passes(&ksm, &mut machine.idle), 2);
    assert_eq!(machine.space.stats().splits, 1, "KSM splits only where it merges");
    assert_eq!([7, 8, 9, 10, 700].map(|page| machine.get(page)), [9, 8, 9, 10, 700]);
    assert_eq!(frame(&machine, 7), frame(&machine, 9));
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn without_merging_each_entry_gets_its_own_page_at_once() {
    let (mut machine, ksm) = machine(8);
    (0..8).for_each(|page| machine.put(page, 5));
    two_passes(&ksm, &mut machine.idle);
    machine.recorder.take();
    machine.space.madvise(&mut machine.idle, pages(2, 4), Advice::Unmergeable).unwrap();
    assert_eq!(machine.recorder.take().len(), 4);
    let mut frames: Vec<Pfn> = (2..6).map(|page| frame(&machine, page)).collect();
    frames.sort_unstable();
    frames.dedup();
    assert!(frames.len() == 4 && !frames.contains(&frame(&machine, 0)));
    assert_eq!((0..8).map(|page| machine.get(page)).collect::<Vec<_>>(), [5; 8]);
    assert_eq!(two_passes(&ksm, &mut machine.idle), 0);
    assert_eq!(counts(&ksm), [1, 3, 0, 0], "KSM remembers nothing of them");
    let nothing = machine.space.madvise(&mut machine.idle, pages(7, 2), Advice::Mergeable);
    assert_eq!(nothing, Err(MmError::NotMapped(at(8))));
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn pages_of_files_and_shares_of_forks_are_not_merged() {
    let mut machine = Machine::new();
    let ksm = Ksm::builder(&machine.arena).build().unwrap();
    ksm.add(&machine.space).unwrap();
    let contents = [7u64; 512].into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>().repeat(2);
    let file = File::with_contents(&machine.arena, contents);
    let shared = Backing::Shared { file: file.clone(), offset: 0 };
    let private = Backing::Private { file, offset: 0 };
    for (place, backing) in [(at(0), shared), (at(2), private)] {
        machine.space.mmap(Place::Fixed(place), 2 * PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
    }
    machine.map(4, 2); // not advised
    machine.space.madvise(&mut machine.idle, pages(0, 4), Advice::Mergeable).unwrap();
    (0..4).for_each(|page| assert_eq!(machine.get(page), 7));
    assert_eq!((two_passes(&ksm, &mut machine.idle), counts(&ksm)), (0, [0; 4]), "pages of a file");
    (2..6).for_each(|page| machine.put(page, 8));
    let child = machine.space.fork(&mut machine.idle).unwrap();
    assert_eq!((two_passes(&ksm, &mut machine.idle), counts(&ksm)), (0, [0; 4]), "shares of a fork");
    drop(child);
    machine.recorder.take();
    assert_eq!(two_passes(&ksm, &mut machine.idle), 2, "copies, sole owners again");
    let told: Vec<_> = machine.recorder.take().iter().map(|seen| seen.why).collect();
    assert_eq!(told, [Reason::ChangePte], "the fork already write-protected the pages");
    assert_eq!((0..6).map(|page| machine.get(page)).collect::<Vec<_>>(), [7, 7, 8, 8, 8, 8]);
    drop(ksm);
    assert!(machine.all_free());
}

#[test]
fn address_spaces_of_one_arena_share_and_come_and_go() {
    let (mut machine, ksm) = machine(4);
    let other = AddressSpace::builder(&machine.arena).build().unwrap();
    let memory = other.mmap(Place::Fixed(at(0)), 4 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    other.madvise(&mut machine.idle, memory, Advice::Mergeable).unwrap();
    for _ in 0..2 {
        ksm.add(&other).unwrap();
    }
    for page in 0..4 {
        machine.put(page, page);
        other.write(&mut machine.idle, at(page), &page.to_le_bytes()).unwrap();
    }
    assert_eq!(two_passes(&ksm, &mut machine.idle), 8);
    assert_eq!(counts(&ksm), [4, 4, 0, 0]);
    other.write(&mut machine.idle, at(2), &22u64.to_le_bytes()).unwrap();
    assert_eq!((machine.get(2), get(&other, &mut machine.idle, 2)), (2, 22));
    drop(other);
    ksm.scan(&mut machine.idle, u64::MAX);
    assert_eq!(counts(&ksm), [4, 0, 0, 0]);
    let elsewhere = Arena::builder().limit(4 << 20).build().unwrap();
    let stranger = AddressSpace::builder(&elsewhere).build().unwrap();
    assert_eq!(ksm.add(&stranger), Err(MmError::ForeignSpace));
    // Without KSM a page is its last sharer's own.
    let frames: Vec<Pfn> = (0..4).map(|page| frame(&machine, page)).collect();
    drop(ksm);
    machine.number(0, 4);
    assert_eq!((0..4).map(|page| frame(&machine, page)).collect::<Vec<_>>(), frames);
    assert!(machine.all_free());
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let machine = Machine::new();
    let ksm = || Ksm::builder(&machine.arena);
    let error = ksm().pages_to_scan(0).build().unwrap_err();
    assert_eq!(error, MmError::BadSetting { name: "pages_to_scan", value: 0, least: 1, most: u64::MAX });
    for most in [0, 1, (1 << 24) + 1] {
        let error = ksm().max_page_sharing(most).build().unwrap_err();
        assert_eq!(error.to_string(), format!("max_page_sharing {most}: not within 2..=16777216"));
    }
    for most in [0, 513] {
        let error = ksm().merge_together(most).build().unwrap_err();
        assert_eq!(error.to_string(), format!("merge_together {most}: not within 1..=512"));
    }
    let tiny = Arena::builder().limit(2 << 20).build().unwrap();
    let hoard = tiny.page(Level::M2).unwrap();
    let error = Ksm::builder(&tiny).use_zero_pages(true).build().unwrap_err();
    assert_eq!(error, MmError::OutOfFrames(Level::K4));
    drop(hoard);
    assert!(machine.all_free());
}

/// The thread scans by itself. It ends with its handle, however long it would have slept.
#[test]
fn the_scanner_thread_merges_and_ends() {
    let mut machine = Machine::new();
    let ksm = Ksm::builder(&machine.arena).pages_to_scan(1000).sleep(Duration::ZERO).build().unwrap();
    let memory = machine.map(0, 64);
    machine.space.madvise(&mut machine.idle, memory, Advice::Mergeable).unwrap();
    ksm.add(&machine.space).unwrap();
    (0..64).for_each(|page| machine.put(page, 5));
    let scanner = ksm.start().unwrap();
    while ksm.stats().pages_sharing < 63 {
        std::thread::yield_now();
    }
    drop(scanner);
    let scans = ksm.stats().full_scans;
    assert!((0..64).all(|page| machine.get(page) == 5));
    assert_eq!((ksm.stats().full_scans, Arc::strong_count(&ksm)), (scans, 1), "no thread scans now");
    let sleeper = Ksm::builder(&machine.arena).sleep(Duration::from_secs(3600)).build().unwrap();
    drop(sleeper.start().unwrap());
    drop((ksm, sleeper));
    assert!(machine.all_free());
}

/// A guest that only reads keeps its translations over a merge. A guest that writes gets its own page.
#[test]
fn a_guest_reads_on_over_a_merge() {
    let (mut machine, ksm) = machine(4);
    let vm = guest_on(&machine.space, &mut machine.idle, 4);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..4 {
        let fault = Fault { gpa: Gfn(gfn).gpa(), access: Access::Write };
        let _ = vcpu.fault(&mut machine.idle, fault).unwrap();
        machine.put(gfn, 5);
    }
    two_passes(&ksm, &mut machine.idle);
    let faults = vm.stats().mapped_faults;
    for gfn in 0..4 {
        let leaf =
            vm.memory().translate(&mut machine.idle, Gfn(gfn)).expect("no translation is missing").leaf;
        assert!(leaf.pfn == frame(&machine, 0) && !leaf.perms.allows(Access::Write), "{gfn}");
    }
    let fault = Fault { gpa: Gfn(2).gpa(), access: Access::Write };
    let _ = vcpu.fault(&mut machine.idle, fault).unwrap();
    assert_eq!(vm.stats().mapped_faults, faults, "the entry was replaced in place, then made writable");
    let leaf = vm.memory().translate(&mut machine.idle, Gfn(2)).unwrap().leaf;
    assert!(leaf.perms.allows(Access::Write) && leaf.pfn != frame(&machine, 0));
    coherent(&vm, &mut machine.idle, 4);
    drop(vcpu);
    drop((vm, ksm));
    assert!(machine.all_free());
}

/// Without memory nothing is lost: a merge needs no memory, and a write to a merged page reports the lack of
/// it.
#[test]
fn without_memory_shares_stay_until_there_is_some() {
    let (mut machine, ksm) = machine(8);
    (0..8).for_each(|page| machine.put(page, 5));
    two_passes(&ksm, &mut machine.idle);
    let arena = machine.arena.clone();
    let hoard: Vec<_> = std::iter::from_fn(|| arena.page(Level::K4).ok()).collect();
    let unmerge = machine.space.madvise(&mut machine.idle, pages(0, 8), Advice::Unmergeable);
    assert_eq!(unmerge, Err(MmError::OutOfFrames(Level::K4)));
    assert_eq!(counts(&ksm)[..2], [1, 7]);
    drop(hoard);
    machine.space.madvise(&mut machine.idle, pages(0, 8), Advice::Unmergeable).unwrap();
    assert_eq!(counts(&ksm)[..2], [0, 0]);
    drop((ksm, arena));
    assert!(machine.all_free());
}
