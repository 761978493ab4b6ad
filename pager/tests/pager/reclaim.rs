//! Cold pages go to a swap file and come back; touched pages stay.

use crate::daemon::{Daemon, IMAGE, folder, is_offered, library, with_template};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use slat_pager::twin::{Memory, is_page};
use slat_pager::*;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns whether this user may take pages out of page tables.
fn may_age(aged: &std::io::Result<()>) -> bool {
    match aged {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("skipped: process_madvise: {error}");
            false
        }
        aged => {
            aged.as_ref().unwrap();
            true
        }
    }
}

/// A guest of this process that has a swap file, and its userfaultfd.
fn with_swap(name: &str) -> (PathBuf, &'static Memory, Guest, Uffd) {
    let folder = with_template(name);
    let template = library(&folder).open("twin").unwrap();
    let memory: &Memory = Box::leak(Box::new(Memory::new(IMAGE, true).unwrap()));
    let uffd = Uffd::new(Features::REMOVE.and(Features::SHARED).and(Features::MINOR)).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, true).unwrap();
    }
    let kept = Uffd::from_fd(uffd.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
    let life = Some(Life::Process(pidfd_open(getpid(), PidfdFlags::empty()).unwrap()));
    let parts = Parts { uffd, layout, template, cache, journal, life };
    let backing = Backing::Swapped {
        memory: memory.file().unwrap().try_clone_to_owned().unwrap(),
        swap: swap_file(&folder).unwrap(),
    };
    // Otherwise the neighbours of the last faulting page would follow it.
    let mut options = Options::default();
    options.window = 1;
    (folder, memory, Guest::serve_on(parts, backing, options).unwrap(), kept)
}

#[test]
fn cold_pages_are_swapped_out_and_come_back() {
    if !is_offered() {
        return;
    }
    let (folder, memory, guest, _) = with_swap("reclaim");
    let handle = guest.handle();
    // SAFETY: nothing writes to it but the pager and this thread.
    let is = |page, version| is_page(&IMAGE, page, version, &unsafe { memory.read(page) });
    let write = |page, version| {
        let words = std::array::from_fn(|word| IMAGE.word(page, version, word));
        // SAFETY: as above.
        unsafe { memory.write(page, &words) };
    };
    let resident = || handle.resident().unwrap().unwrap() / PAGE as u64;

    (0..512).for_each(|page| write(page, 1));
    assert!((512..1024).all(|page| is(page, Some(0))));
    assert_eq!(resident(), 1024);
    if !may_age(&handle.age()) {
        return;
    }
    // Nothing is a tick old.
    assert_eq!(handle.reclaim(1, usize::MAX).unwrap(), 0);
    assert!((0..100).all(|page| is(page, Some(1))));
    handle.age().unwrap();
    // Touched after the tick, and therefore not cold.
    assert!((512..520).all(|page| is(page, Some(0))));
    assert_eq!(handle.reclaim(2, usize::MAX).unwrap(), 0);
    assert_eq!(handle.reclaim(1, 200).unwrap(), 200, "no more than is asked for");
    // The kernel may leave a page mapped that it uses at that moment; a touch of it is not seen. There are a few such
    // pages at most.
    let rest = handle.reclaim(1, usize::MAX).unwrap();
    assert!((716..=724).contains(&rest), "1024 - 100 - 8 - 200, not {rest}");
    let away = 200 + rest;
    assert_eq!((resident(), handle.away()), (1024 - away as u64, away));
    // A page that is away and then removed is zero.
    // SAFETY: as above.
    unsafe { memory.give_back(300, 2, true) }.unwrap();
    assert!(is(300, None) && is(301, None));
    assert!((0..512).filter(|page| page / 2 != 150).all(|page| is(page, Some(1))));
    assert!((512..1024).all(|page| is(page, Some(0))));
    // The journal notes it after the page is present.
    while handle.away() > 0 {
        std::thread::yield_now();
    }
    let stats = guest.stats();
    assert!(stats.faults(Source::Swap) > 0 && stats.reclaimed == away as u64, "{stats:?}");
    guest.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// The kernel may leave pages mapped that count as cold. Here all of them are mapped without a fault, and a thread
/// writes to them while they leave.
#[test]
fn pages_that_the_kernel_leaves_in_the_page_table_are_protected_while_they_leave() {
    const PAGES: usize = 64;
    const ROUNDS: usize = 20;
    if !is_offered() {
        return;
    }
    let (folder, memory, guest, uffd) = with_swap("mapped");
    let handle = guest.handle();
    let at = |page: usize| memory.regions()[0].0 + (page * PAGE) as u64;
    let (passes, wrong, line) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for pass in 0.. {
                let is_over = line.lock().unwrap();
                for page in 0..PAGES {
                    let word = at(page) as *mut u64;
                    // SAFETY: the page is mapped, and nothing else writes to it but the pager.
                    let found = unsafe { word.read_volatile() };
                    wrong.fetch_add(u64::from(pass > 0 && found != pass), Ordering::Relaxed);
                    // SAFETY: as above.
                    unsafe { word.write_volatile(pass + 1) };
                }
                passes.store(pass + 1, Ordering::Relaxed);
                if *is_over || wrong.load(Ordering::Relaxed) > 0 {
                    return;
                }
                drop(is_over);
                std::thread::yield_now();
            }
        });
        for _ in 0..ROUNDS {
            let is_over = line.lock().unwrap();
            // The first tick begins to note touches, and at the second none has come.
            if !(0..2).all(|_| may_age(&handle.age())) {
                break;
            }
            (0..PAGES).for_each(|page| _ = uffd.resume(at(page), PAGE as u64));
            drop(is_over);
            handle.reclaim(1, usize::MAX).unwrap();
            // All pages are there again.
            let whole = passes.load(Ordering::Relaxed) + 2;
            while passes.load(Ordering::Relaxed) < whole && wrong.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        }
        *line.lock().unwrap() = true;
    });
    assert_eq!(wrong.into_inner(), 0, "a write was lost");
    println!("{} pages left", guest.stats().reclaimed);
    guest.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// The process clears `O_NONBLOCK`, which belongs to the open file, reads events itself, and gives pages back all the
/// time.
#[test]
fn ageing_and_the_end_of_service_do_not_wait_for_a_process_that_steals_events() {
    if !is_offered() {
        return;
    }
    let (folder, memory, guest, uffd) = with_swap("stolen");
    let handle = guest.handle();
    // SAFETY: nothing writes to it but the pager.
    (0..512).for_each(|page| unsafe { memory.touch(page) });
    if !may_age(&handle.age()) {
        return;
    }
    let (uffd, is_over) = (Arc::new(uffd), Arc::new(AtomicBool::new(false)));
    // They may wait in the kernel for ever: the test does not wait for them.
    for thief in 0..3 {
        let (uffd, is_over) = (uffd.clone(), is_over.clone());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if thief == 0 {
                    let flags = fcntl_getfl(&*uffd).unwrap();
                    fcntl_setfl(&*uffd, flags - OFlags::NONBLOCK).unwrap();
                } else {
                    _ = rustix::io::read(&*uffd, &mut [0; 32]);
                }
            }
        });
    }
    let dropping = is_over.clone();
    std::thread::spawn(move || {
        for page in (0..512).cycle().take_while(|_| !dropping.load(Ordering::Relaxed)) {
            // SAFETY: no thread reads the pages any more.
            unsafe { memory.give_back(page, 1, true) }.unwrap();
        }
    });
    let (send, receive) = channel();
    // After a failure the guest is not dropped, which would wait for its threads.
    let guest = ManuallyDrop::new(guest);
    std::thread::spawn(move || {
        for _ in 0..20 {
            // A page that is given back meanwhile is an error of that tick alone.
            _ = handle.age();
            _ = handle.reclaim(1, usize::MAX);
            _ = send.send(());
        }
        drop(handle);
        ManuallyDrop::into_inner(guest).stop();
        send.send(())
    });
    for step in 0..21 {
        assert!(receive.recv_timeout(Duration::from_secs(20)).is_ok(), "step {step} waits");
    }
    is_over.store(true, Ordering::Relaxed);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Runs a twin whose pages are reclaimed all the time.
fn swapped(name: &str, flags: &str, words: &str, kills: usize) -> Option<(twin::Report, GuestStats)> {
    let swap = folder(&format!("{name}-swap"));
    let flags = format!("--swap {} --tick 0.03 --cache 2M {flags}", swap.display());
    let mut daemon = Daemon::start(name, &flags)?;
    let twin = daemon.twin(&format!("--shared --only-removes --patience-ms 20000 {words}"));
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(120));
        daemon.kill();
    }
    let report = twin.report();
    let refused = std::cell::Cell::new(false);
    let stats = daemon.find(|line| {
        refused.set(refused.get() || line.contains("Operation not permitted"));
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        serde_json::from_value::<GuestStats>(line.get("stats")?.clone()).ok()
    });
    std::fs::remove_dir_all(swap).unwrap();
    if refused.get() {
        println!("skipped: process_madvise is not permitted");
        return None;
    }
    Some((report, stats))
}

#[test]
fn guests_whose_pages_leave_see_every_byte_right_beside_balloons_and_kills() {
    let Some((report, stats)) = swapped("leave", "--cold 1", "--millis 900 --balloon", 3) else { return };
    assert!(report.is_right() && report.removed > 0, "{report:?}");
    // Of the last daemon.
    assert!(stats.filled > 0, "{stats:?}");
}

#[test]
fn a_limit_swaps_out_pages_of_its_template_only() {
    let flags = "--cold 0 --limit twin=4M";
    let Some((report, stats)) = swapped("limit", flags, "--millis 600", 0) else { return };
    assert!(report.is_right(), "{report:?}");
    assert!(stats.reclaimed > 0 && stats.faults(Source::Swap) > 0, "{stats:?}");
    let flags = "--cold 0 --limit other=4M";
    let Some((_, stats)) = swapped("limit-other", flags, "--millis 300", 0) else { return };
    assert_eq!(stats.reclaimed, 0, "it is of another template");
}
