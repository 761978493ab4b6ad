//! For each operation: the secondary MMUs hear of it before the entry changes, with the right reason, and
//! frames are freed only after.

use crate::fixture::*;
use slat::{Hva, PAGE_SIZE, Reason, Span};
use slat_mm::{Backing, File, Place, Prot};

/// Holds for every change: told before, freed after.
fn told_before_freed_after(machine: &Machine, seen: &Notification, freed: bool) {
    assert!(seen.before.iter().flatten().count() > 0, "the old entries were still there when the call came");
    assert_ne!(seen.before, seen.after, "the change was made within the notification");
    assert!(seen.references.iter().all(|&count| count > 0), "no frame was free before the call ended");
    for page in seen.before.iter().flatten() {
        assert_eq!(machine.arena.references(page.pfn) == 0, freed, "{page:?}");
    }
}

#[test]
fn faulting_in_tells_no_secondary_mmu() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    assert!(machine.recorder.take().is_empty());
    assert_eq!(machine.space.stats().demand_zero, 8);
    assert!(machine.all_free());
}

#[test]
fn munmap_unmaps() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    machine.space.munmap(&mut machine.idle, pages(2, 3)).unwrap();
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::Unmap, pages(2, 3)));
    assert_eq!(seen.after, [None; 3]);
    told_before_freed_after(&machine, &seen, true);
    assert_eq!((machine.get(1), machine.get(5)), (1, 5), "neighbours stay");
    machine.space.munmap(&mut machine.idle, pages(2, 3)).unwrap();
    assert!(machine.recorder.take().is_empty(), "nothing is mapped there now");
    assert!(machine.all_free());
}

#[test]
fn mprotect_to_read_only_protects_and_keeps_the_pages() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    machine.space.mprotect(&mut machine.idle, pages(0, 4), Prot::Read).unwrap();
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::Protect, pages(0, 4)));
    for (before, after) in seen.before.iter().zip(&seen.after) {
        let (before, after) = (before.unwrap(), after.unwrap());
        assert!(before.pfn == after.pfn && before.writable && !after.writable);
    }
    told_before_freed_after(&machine, &seen, false);
    assert!(machine.space.write(&mut machine.idle, at(0), b"x").is_err());
    machine.space.mprotect(&mut machine.idle, pages(0, 4), Prot::ReadWrite).unwrap();
    machine.put(3, 77);
    assert_eq!((machine.get(2), machine.get(3)), (2, 77));
    assert!(machine.recorder.take().is_empty(), "giving permission sends no notification");
    assert_eq!(machine.space.stats().reuses, 1, "a sole owner writes in place");
    assert!(machine.all_free());
}

#[test]
fn mprotect_to_none_clears_and_keeps_the_contents() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    machine.number(0, 4);
    machine.space.mprotect(&mut machine.idle, pages(1, 2), Prot::None).unwrap();
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.after.as_slice()), (Reason::Clear, [None; 2].as_slice()));
    told_before_freed_after(&machine, &seen, false);
    assert!(machine.space.read(&mut machine.idle, at(1), &mut [0]).is_err());
    machine.space.mprotect(&mut machine.idle, pages(1, 2), Prot::Read).unwrap();
    assert_eq!((machine.get(1), machine.get(2)), (1, 2));
    assert!(!machine.look(1).unwrap().writable);
    assert!(machine.recorder.take().is_empty());
    assert!(machine.all_free());
}

#[test]
fn dontneed_clears_and_reads_as_zeroes() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    machine.number(0, 4);
    machine.space.dontneed(&mut machine.idle, pages(1, 2)).unwrap();
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::Clear, pages(1, 2)));
    told_before_freed_after(&machine, &seen, true);
    assert_eq!([0, 1, 2, 3].map(|page| machine.get(page)), [0, 0, 0, 3]);
    assert!(machine.all_free());
}

#[test]
fn mremap_tells_of_the_old_range_only() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    let frames: Vec<_> = (0..8).map(|page| machine.look(page).unwrap().pfn).collect();
    let new =
        machine.space.mremap(&mut machine.idle, pages(0, 8), 8 * PAGE_SIZE, Place::Fixed(at(1001))).unwrap();
    assert_eq!(new, pages(1001, 8));
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::Remap, pages(0, 8)));
    told_before_freed_after(&machine, &seen, false);
    for (page, pfn) in (0..).zip(frames) {
        assert_eq!((machine.get(1001 + page), machine.look(1001 + page).unwrap().pfn), (page, pfn));
    }
    assert!(machine.all_free());
}

#[test]
fn mremap_shrinks_grows_and_moves_when_it_must() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    let resize = |machine: &mut Machine, old: Span<Hva>, count: u64| {
        machine.space.mremap(&mut machine.idle, old, count * PAGE_SIZE, Place::Anywhere).unwrap()
    };
    assert_eq!(resize(&mut machine, pages(0, 8), 6), pages(0, 6));
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::Unmap, pages(6, 2)));
    assert_eq!(resize(&mut machine, pages(0, 6), 7), pages(0, 7));
    assert!(machine.recorder.take().is_empty(), "growing in place takes nothing away");
    assert_eq!((machine.get(5), machine.get(6)), (5, 0), "the new part is empty");
    machine.map(7, 1);
    let moved = resize(&mut machine, pages(0, 7), 9);
    assert_ne!(moved.start, at(0));
    assert_eq!(machine.recorder.only().why, Reason::Remap);
    let mut bytes = [0; 8];
    machine.space.read(&mut machine.idle, moved.start + 5 * PAGE_SIZE, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 5);
    assert!(machine.space.munmap(&mut machine.idle, moved).is_ok());
    assert!(machine.all_free());
}

#[test]
fn migrate_moves_contents_to_new_frames_and_poisons_the_old() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    machine.number(0, 3); // the last page is not there yet
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(0, 4)), Ok(3));
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::Migrate, pages(0, 4)));
    told_before_freed_after(&machine, &seen, true);
    for (page, (before, after)) in (0..3).zip(seen.before.iter().zip(&seen.after)) {
        assert_ne!(before.unwrap().pfn, after.unwrap().pfn);
        // SAFETY: the frame belongs to the arena and is not in use.
        assert_eq!(unsafe { machine.arena.frame(before.unwrap().pfn).read() }, 0xdd);
        assert_eq!(machine.get(page), page);
    }
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(3, 1)), Ok(0));
    assert!(machine.recorder.take().is_empty(), "there is nothing to move");
    assert!(machine.all_free());
}

#[test]
fn fork_protects_and_breaking_the_share_changes_one_page() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    machine.number(0, 4);
    let child = machine.space.fork(&mut machine.idle).unwrap();
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::WriteProtect, pages(0, 4)));
    assert!(seen.after.iter().all(|page| !page.unwrap().writable));
    told_before_freed_after(&machine, &seen, false);

    let shared = machine.look(1).unwrap().pfn;
    assert_eq!(machine.arena.references(shared), 2);
    machine.put(1, 100);
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::ChangePte, pages(1, 1)));
    told_before_freed_after(&machine, &seen, false);
    assert!(!seen.after[0].unwrap().writable && seen.after[0].unwrap().pfn != shared);
    assert_eq!(seen.told, [(pages(1, 1), seen.after[0])], "the copy is writable only after all MMUs know it");
    assert!(machine.look(1).unwrap().writable, "afterwards");
    assert_eq!(machine.arena.references(shared), 1, "only the child has the old frame");

    child.write(&mut machine.idle, at(1), &7u64.to_le_bytes()).unwrap();
    child.write(&mut machine.idle, at(2), &8u64.to_le_bytes()).unwrap();
    assert_eq!(
        child.stats().reuses,
        2,
        "the child was the sole owner of page 1, and of page 2 after the copy"
    );
    assert_eq!(child.stats().cow_breaks, 1);
    assert_eq!([0, 1, 2, 3].map(|page| machine.get(page)), [0, 100, 2, 3]);
    assert_eq!([0, 1, 2, 3].map(|page| get(&child, &mut machine.idle, page)), [0, 7, 8, 3]);
    assert!(machine.recorder.take().is_empty(), "the child's writes do not concern the parent");

    drop(child);
    machine.put(3, 30);
    assert!(machine.recorder.take().is_empty(), "the parent is a sole owner again");
    assert!(machine.all_free());
}

#[test]
fn a_private_file_page_is_copied_at_the_first_write() {
    let mut machine = Machine::new();
    let file = File::with_contents(&machine.arena, vec![b'a'; 3 * PAGE_SIZE as usize]);
    let backing = Backing::Private { file: file.clone(), offset: PAGE_SIZE };
    machine.space.mmap(Place::Fixed(at(0)), 2 * PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
    machine.put(0, 1);
    assert!(machine.recorder.take().is_empty(), "the page was never mapped, so no MMU can have it");
    let mut byte = [0];
    machine.space.read(&mut machine.idle, at(1), &mut byte).unwrap();
    assert_eq!(byte, *b"a");
    machine.put(1, 2);
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::ChangePte, pages(1, 1)));
    told_before_freed_after(&machine, &seen, false);
    machine.space.dontneed(&mut machine.idle, pages(0, 2)).unwrap();
    assert_eq!(machine.get(0), u64::from_le_bytes([b'a'; 8]), "the page shows the file again");
    drop(file);
    assert!(machine.all_free());
}

#[test]
fn several_secondary_mmus_are_all_inside_and_dead_ones_are_forgotten() {
    let mut machine = Machine::new();
    let second = Recorder::register(&machine.space);
    let third = Recorder::register(&machine.space);
    machine.map(0, 1);
    machine.number(0, 1);
    drop(second);
    machine.space.munmap(&mut machine.idle, pages(0, 1)).unwrap();
    let (outer, inner) = (machine.recorder.only(), third.only());
    for seen in [outer, inner] {
        assert!(seen.before[0].is_some() && seen.after[0].is_none() && seen.references == [1]);
    }
    assert_eq!(
        machine.space.stats().notified(Reason::Unmap),
        1,
        "one change counts once, however many MMUs listen"
    );
    drop(third);
    assert!(machine.all_free());
}
