//! Clones of a template share pages that they do not write, and see every byte right.

use crate::daemon::{Daemon, IMAGE, folder, is_offered, library, with_template};
use crate::snapshot::may_look;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use slat_pager::twin::{Memory, is_page};
use slat_pager::*;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A folder of shared memory, if there is one.
fn shared(name: &str) -> Option<PathBuf> {
    let folder = folder(name);
    if is_offered() && folder.starts_with("/dev/shm") {
        return Some(folder);
    }
    println!("skipped: no /dev/shm or no userfaultfd");
    _ = std::fs::remove_dir_all(folder);
    None
}

#[test]
fn clones_see_every_byte_right_beside_balloons_and_kills() {
    let Some(folder) = shared("clones") else { return };
    let flags = format!("--share {} --cache 1M --store-delay-ms 2", folder.display());
    let Some(mut daemon) = Daemon::start("clones-daemon", &flags) else { return };
    let file = folder.join("twin");
    let words = |seed| {
        format!("--clone-of {} --millis 600 --balloon --seed {seed} --patience-ms 20000", file.display())
    };
    let twins = [1, 2, 3].map(|seed| daemon.twin(&words(seed)));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(120));
        daemon.kill();
    }
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
    // Counters of the last daemon: most pages were present before it.
    assert!(daemon.stats().removes > 0);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Returns the own bytes of three guests that read all pages and write 40, and the bytes that they share.
fn own(template: &Template, share: Option<(&Share, &Path)>) -> ([u64; 3], u64) {
    let own = [1, 2, 3].map(|number| {
        let memory = match share {
            Some((_, file)) => Memory::clone_of(IMAGE, file).unwrap(),
            None => Memory::new(IMAGE, false).unwrap(),
        };
        let uffd = Uffd::new(Features::REMOVE.and(Features::SHARED).and(Features::MINOR)).unwrap();
        let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
        for Region { base, size, .. } in regions {
            uffd.register(base, size, false).unwrap();
        }
        let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
        let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(0)));
        let parts = Parts { uffd, layout, template: template.clone(), cache, journal, life: None };
        let backing = share.map_or(Backing::Own, |(share, _)| Backing::Share(share.clone()));
        let guest = Guest::serve_on(parts, backing, Options::default()).unwrap();
        // SAFETY: nothing writes to it but the pager and this thread.
        let is_right = |page, version| is_page(&IMAGE, page, version, &unsafe { memory.read(page) });
        for page in 0..IMAGE.pages {
            assert!(is_right(page, Some(0)), "page {page}");
        }
        for page in 0..40 {
            let words = std::array::from_fn(|word| IMAGE.word(page * 3, number, word));
            // SAFETY: as above.
            unsafe { memory.write(page * 3, &words) };
        }
        // SAFETY: as above.
        unsafe { memory.give_back(0, 2, false) }.unwrap();
        assert!(is_right(0, None) && is_right(1, None) && is_right(3, Some(number)));
        let own = memory.own_bytes().unwrap();
        guest.stop();
        own
    });
    (own, share.map_or(0, |(share, _)| share.bytes()))
}

#[test]
fn clones_have_the_pages_that_they_wrote_for_themselves_and_the_others_in_common() {
    let Some(folder) = shared("in-common") else { return };
    let store = with_template("in-common-store");
    let template = library(&store).open("twin").unwrap();
    let share = Share::open(&folder, &template).unwrap();
    let (each, shared) = own(&template, Some((&share, &folder.join("twin"))));
    assert!(shared <= template.size(), "{shared} bytes are shared");
    for bytes in each {
        assert!(bytes <= 40 * PAGE as u64, "{bytes} bytes are a clone's own");
    }
    // The control: without sharing each guest has all pages. All guests share the kernel's page of zeros.
    let (each, _) = own(&template, None);
    assert!(each.iter().all(|bytes| *bytes > template.size() / 2), "{each:?}");
    // Another process finds the present chunks.
    let again = Share::open(&folder, &template).unwrap();
    assert_eq!(again.bytes(), shared);
    drop(template);
    std::fs::remove_dir_all(store).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_on_a_disk_is_refused() {
    let store = with_template("disk");
    let template = library(&store).open("twin").unwrap();
    let disk =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("share-{}", std::process::id()));
    match Share::open(&disk, &template) {
        Ok(_) => println!("skipped: the build's folder is in shared memory"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Unsupported),
    }
    drop(template);
    _ = std::fs::remove_dir_all(disk);
    std::fs::remove_dir_all(store).unwrap();
}

/// It gets a page of zeros from the next pager.
#[test]
fn a_clone_goes_on_after_a_pager_that_took_a_snapshot_of_it() {
    if !may_look() {
        return;
    }
    let Some(folder) = shared("clones-marks") else { return };
    let library = Library::new(Folder::open(folder.join("store")).unwrap());
    library.snapshot("twin", IMAGE.read(), (IMAGE.pages * PAGE) as u64, 64 << 10).unwrap();
    let template = library.open("twin").unwrap();
    let share = Share::open(&folder.join("share"), &template).unwrap();
    // A thread reads it to the end, also if the test fails.
    let memory: &Memory = Box::leak(Box::new(Memory::clone_of(IMAGE, &folder.join("share/twin")).unwrap()));
    let features = Features::REMOVE.and(Features::SHARED).and(Features::MINOR);
    let uffd = Uffd::new(features).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).unwrap();
    }
    let serve = || {
        let uffd = Uffd::from_fd(uffd.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
        let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
        let life = Some(Life::Process(pidfd_open(getpid(), PidfdFlags::empty()).unwrap()));
        let parts = Parts { uffd, layout, template: template.clone(), cache, journal, life };
        Guest::serve_on(parts, Backing::Share(share.clone()), Options::default()).unwrap()
    };
    let first = serve();
    // It protects present pages, and marks missing ones.
    drop(first.handle().harvest().unwrap());
    first.stop();
    let second = serve();
    let zero = (0..IMAGE.pages).find(|page| IMAGE.is_zero(*page)).unwrap();
    let (send, answered) = channel();
    std::thread::spawn(move || {
        // SAFETY: nothing writes to it but the pager.
        _ = send.send(is_page(&IMAGE, zero, Some(0), &unsafe { memory.read(zero) }));
    });
    assert_eq!(answered.recv_timeout(Duration::from_secs(10)), Ok(true), "it waits for its page");
    second.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
