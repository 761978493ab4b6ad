//! A page is removed while its content is being read from the store: step by step, not by chance.

use crate::daemon::{folder, is_offered};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use slat_pager::*;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGES: usize = 16;

/// Touches page 8, or with `replay` fills a working set of all pages ahead of faults. While the chunk is read, removes
/// pages 3 to 5 and 8 to 9. Returns the first byte of each page.
fn bytes(name: &str, replay: bool) -> Vec<u8> {
    let folder = folder(name);
    let image = vec![7; PAGES * PAGE];
    let library = Library::new(Folder::open(&folder).unwrap());
    library.snapshot("a", &*image, image.len() as u64, image.len()).unwrap();
    let ((begun, begins), (may, go)) = (channel(), channel());
    let go = Mutex::new(go);
    // A read reports its begin, and waits for permission to continue.
    let gate = Trouble::calling(Folder::open(&folder).unwrap(), move |_| {
        begun.send(()).unwrap();
        go.lock().unwrap().recv_timeout(Duration::from_secs(10)).unwrap();
        Ok(())
    });
    let template = Library::new(gate).open("a").unwrap();
    if replay {
        template.keep_working_set(WorkingSet::of_faults(0..PAGES)).unwrap();
    }

    let (prot, size) = (ProtFlags::READ | ProtFlags::WRITE, PAGES * PAGE);
    // SAFETY: a new mapping, where the kernel finds room.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), size, prot, MapFlags::PRIVATE) }.unwrap() as u64;
    let at = move |page: usize| start + (page * PAGE) as u64;
    let remove = |page: usize, pages: usize| {
        // SAFETY: the range is mapped; what touches it meanwhile reads one byte, whichever it is.
        unsafe { madvise(at(page) as *mut _, pages * PAGE, Advice::LinuxDontNeed) }.unwrap();
    };
    // SAFETY: as above.
    let read = move |page: usize| unsafe { (at(page) as *const u8).read_volatile() };
    let uffd = Uffd::new(Features::REMOVE).unwrap();
    uffd.register(start, size as u64, false).unwrap();
    let layout =
        Layout::new(vec![Region { base: start, size: size as u64, offset: 0 }], template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(0)));
    let parts = Parts { uffd, layout, template, cache, journal, life: None };
    let guest = Guest::serve(parts, Options::default()).unwrap();

    let touching = std::thread::spawn(move || if replay { 0 } else { read(8) });
    begins.recv_timeout(Duration::from_secs(10)).unwrap();
    // Each call returns when the other thread of the guest has read the event.
    remove(3, 3);
    remove(8, 2);
    may.send(()).unwrap();
    touching.join().unwrap();
    while guest.stats().chunks_left > 0 {
        std::thread::yield_now();
    }
    // Missing pages are read from the store again.
    (0..PAGES).for_each(|_| may.send(()).unwrap());
    let bytes = (0..PAGES).map(read).collect();
    drop(guest);
    std::fs::remove_dir_all(folder).unwrap();
    bytes
}

#[test]
fn a_page_that_is_removed_while_it_is_read_is_zero() {
    if is_offered() {
        let expected = [7, 7, 7, 0, 0, 0, 7, 7, 0, 0, 7, 7, 7, 7, 7, 7];
        assert_eq!(bytes("ordered", false), expected);
    }
}

#[test]
fn a_page_that_is_removed_while_it_is_read_ahead_is_zero() {
    if is_offered() {
        assert_eq!(bytes("ahead", true), [7, 7, 7, 0, 0, 0, 7, 7, 0, 0, 7, 7, 7, 7, 7, 7]);
    }
}
