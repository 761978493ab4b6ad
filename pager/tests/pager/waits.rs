//! A store that does not answer delays only the faults that need it.

use crate::daemon::{IMAGE, MIB, folder, is_offered};
use slat_pager::twin::{Memory, is_page};
use slat_pager::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Pages of a chunk: the length of a stretch of zeros.
const CHUNK: usize = 16;

/// Longest time that the store does not answer, and time limit of what needs no store.
const CLOSED: Duration = Duration::from_secs(20);
const BOUND: Duration = Duration::from_secs(10);

/// While four threads wait for a store that does not answer, a page of zeros and a removal are answered.
#[test]
fn faults_that_need_no_store_are_answered_while_others_wait_for_it() {
    static MEMORY: OnceLock<Memory> = OnceLock::new();
    if !is_offered() {
        return;
    }
    let folder = folder("waits");
    let library = Library::new(Folder::open(&folder).unwrap());
    library.snapshot("twin", IMAGE.read(), (MIB << 20) as u64, CHUNK * PAGE).unwrap();
    let (inside, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (theirs, gate) = (inside.clone(), open.clone());
    let until = Instant::now() + CLOSED;
    let closed = move |_: &str| {
        theirs.fetch_add(1, Ordering::Relaxed);
        while !gate.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let store = Trouble::calling(Folder::open(&folder).unwrap(), closed);
    let template = Library::new(store).open("twin").unwrap();
    let memory = MEMORY.get_or_init(|| Memory::new(IMAGE, false).unwrap());
    let uffd = Uffd::new(Features::REMOVE).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).unwrap();
    }
    let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
    let options = Options::default();
    let guest = Guest::serve(Parts { uffd, layout, template, cache, journal, life: None }, options).unwrap();

    let is_zero = |chunk: &usize| IMAGE.is_zero(chunk * CHUNK);
    let chunks = || (0..IMAGE.pages / CHUNK).map(|chunk| chunk + 1).take_while(|chunk| *chunk < 512);
    // SAFETY: nothing writes to a page that is looked at but the pager.
    let look = move |page| assert!(is_page(&IMAGE, page, Some(0), &unsafe { memory.read(page) }));
    let waiting: Vec<_> = chunks()
        .filter(|chunk| !is_zero(chunk))
        .take(4)
        .map(|chunk| std::thread::spawn(move || look(chunk * CHUNK)))
        .collect();
    // Each thread that may wait for the store waits: all but the one that reads the faults.
    let asked = Instant::now();
    while inside.load(Ordering::Relaxed) < options.threads - 1 {
        assert!(asked.elapsed() < BOUND, "the store is not asked");
        std::thread::sleep(Duration::from_millis(1));
    }
    let zero = chunks().find(is_zero).unwrap();
    let (send, answered) = channel();
    let other = std::thread::spawn(move || {
        look(zero * CHUNK);
        // SAFETY: nothing else uses page 0.
        unsafe { memory.give_back(0, 1, false) }.unwrap();
        _ = send.send(());
    });
    let is_answered = answered.recv_timeout(BOUND).is_ok();
    open.store(true, Ordering::Relaxed);
    waiting.into_iter().chain([other]).for_each(|thread| thread.join().unwrap());
    drop(guest);
    std::fs::remove_dir_all(folder).unwrap();
    assert!(is_answered);
}
