//! Snapshots of running guests: the restored memory is that of the instant.

use crate::daemon::{Daemon, IMAGE, MIB, folder, is_offered, library, restored};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use slat_pager::twin::{Memory, is_page};
use slat_pager::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns whether this user may read other processes' memory, which snapshots of private memory need.
pub fn may_look() -> bool {
    let mut other = Command::new("sleep").arg("10").spawn().unwrap();
    let opened = std::fs::File::open(format!("/proc/{}/mem", other.id()));
    _ = other.kill();
    _ = other.wait();
    opened.inspect_err(|error| println!("skipped: the memory of another process: {error}")).is_ok()
}

/// A daemon that makes snapshots, a guest that requests them, and the results.
pub fn snapshots(
    name: &str,
    flags: &str,
    twin: &str,
    kills: usize,
) -> Option<(Daemon, slat_pager::twin::Report)> {
    if !may_look() {
        return None;
    }
    let control = folder(&format!("{name}-control")).join("control");
    let mut daemon = Daemon::start(name, &format!("--control {} {flags}", control.display()))?;
    let oracle = daemon.folder.join("oracle");
    std::fs::create_dir(&oracle).unwrap();
    let words = format!("--control {} --oracle {} {twin}", control.display(), oracle.display());
    let twin = daemon.twin(&words);
    for _ in 0..kills {
        std::thread::sleep(std::time::Duration::from_millis(110));
        daemon.kill();
    }
    let report = twin.report();
    std::fs::remove_dir_all(control.parent().unwrap()).unwrap();
    Some((daemon, report))
}

/// Checks that each snapshot of a running guest has the memory of its instant. Returns the daemon's counters, if
/// snapshots work here.
pub fn is_saved(name: &str, flags: &str, twin: &str) -> Option<GuestStats> {
    let words = format!("--millis 400 --balloon --checkpoints 3 --patience-ms 20000 {twin}");
    let (daemon, report) = snapshots(name, &format!("--cache 4M {flags}"), &words, 0)?;
    assert!(report.is_right() && report.removed > 0, "{report:?}");
    assert!(report.stored >= 2, "{report:?}");
    let library = library(&daemon.folder);
    for name in library.list().unwrap().iter().filter(|name| name.starts_with("saved.")) {
        let restored = restored(&daemon.folder, name, MIB);
        assert!(restored.is_right(), "{name}: {restored:?}");
    }
    // Any snapshot can be removed, and the others stay whole.
    assert_eq!(library.retain("saved", 1).unwrap().len() as u64, report.stored.saturating_sub(1));
    library.gc(PATIENCE).unwrap();
    let left = library.list().unwrap();
    assert_eq!(left.len(), 2);
    for name in left {
        assert!(library.verify(&name).unwrap().damaged.is_empty(), "{name}");
    }
    Some(daemon.stats())
}

#[test]
fn a_guest_that_runs_on_is_saved_as_it_was_at_each_instant() {
    let Some(stats) = is_saved("saved-own", "", "") else { return };
    assert!(stats.faults(Source::Written) > 0, "no write was told: {stats:?}");
}

#[test]
fn a_guest_on_shared_memory_is_saved_as_it_was_at_each_instant() {
    is_saved("saved-shared", "", "--shared");
}

#[test]
fn a_guest_with_swapped_pages_is_saved_as_it_was_at_each_instant() {
    let swap = folder("saved-swap-files");
    let flags = format!("--swap {} --tick 0.02 --cold 1", swap.display());
    if let Some(stats) = is_saved("saved-swap", &flags, "--shared --only-removes") {
        // If page tables must not be changed, no page is reclaimed.
        println!("{} pages left for a swap file", stats.reclaimed);
    }
    std::fs::remove_dir_all(swap).unwrap();
}

#[test]
fn a_clone_is_saved_as_it_was_at_each_instant() {
    let share = folder("saved-share");
    let [flags, twin] =
        [format!("--share {}", share.display()), format!("--clone-of {}/twin", share.display())];
    is_saved("saved-clone", &flags, &twin);
    std::fs::remove_dir_all(share).unwrap();
}

#[test]
fn a_daemon_that_is_killed_loses_no_snapshot_that_was_stored_and_no_later_one() {
    let words = "--millis 900 --balloon --checkpoints 6 --patience-ms 20000";
    let Some((daemon, report)) = snapshots("saved-kills", "--cache 1M --store-delay-ms 2", words, 4) else {
        return;
    };
    assert!(report.is_right() && report.stored > 0, "{report:?}");
    for name in library(&daemon.folder).list().unwrap() {
        // The guest does not know about a snapshot that was stored at the moment of the kill.
        if daemon.folder.join("oracle").join(&name).exists() {
            let restored = restored(&daemon.folder, &name, MIB);
            assert!(restored.is_right(), "{name}: {restored:?}");
        }
    }
}

/// A store that refuses chunks while a flag is set.
pub struct Full(pub Folder, pub Arc<AtomicBool>);

impl Store for Full {
    fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError> {
        self.0.read(key, most)
    }
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        if key.starts_with("chunks/") && self.1.load(Ordering::Relaxed) {
            let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(StoreError::Io { key: key.into(), error });
        }
        self.0.put(key, bytes)
    }
    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
        self.0.put_if(key, bytes, before)
    }
    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
        self.0.entries(kind)
    }
    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.0.delete(key)
    }
}

/// Guests of this process: their memory, and the service. An earlier pager filled these pages, and was killed before it
/// noted that.
fn serve(template: Template, options: Options, shared: bool, unnoted: &[usize]) -> (&'static Memory, Guest) {
    let memory: &Memory = Box::leak(Box::new(Memory::new(IMAGE, shared).unwrap()));
    let features = if shared { Features::SHARED.and(Features::MINOR) } else { Features::REMOVE };
    let uffd = Uffd::new(Features::REMOVE.and(features)).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, shared).unwrap();
    }
    let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
    for page in unnoted {
        let words: Vec<u8> =
            (0..PAGE / 8).flat_map(|word| IMAGE.word(*page, 0, word).to_ne_bytes()).collect();
        let (address, _) = layout.places(*page..page + 1).next().unwrap();
        assert!(matches!(uffd.copy(address, &words), (PAGE, None)));
    }
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
    let life = Some(Life::Process(pidfd_open(getpid(), PidfdFlags::empty()).unwrap()));
    let parts = Parts { uffd, layout, template, cache, journal, life };
    let backing =
        memory.file().map_or(Backing::Own, |file| Backing::Memory(file.try_clone_to_owned().unwrap()));
    (memory, Guest::serve_on(parts, backing, options).unwrap())
}

/// Returns whether the first snapshot has a page that was present, written, and not noted.
fn has_unnoted(name: &str, shared: bool) -> bool {
    let folder = folder(name);
    let library = Library::new(Folder::open(&folder).unwrap());
    library.snapshot("twin", IMAGE.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    // At both ends, and among noted pages of the chunk.
    let pages = [0, 5, IMAGE.pages - 1];
    let (memory, guest) = serve(library.open("twin").unwrap(), Options::default(), shared, &pages);
    for page in pages {
        let words = std::array::from_fn(|word| IMAGE.word(page, 7, word));
        // SAFETY: nothing else uses the memory but the pager.
        unsafe { memory.write(page, &words) };
    }
    // SAFETY: as above.
    unsafe { memory.touch(1) };
    guest.handle().harvest().unwrap().store("saved").unwrap();
    let (copy, restored) = serve(library.open("saved").unwrap(), Options::default(), false, &[]);
    let found = (0..IMAGE.pages).all(|page| {
        let version = if pages.contains(&page) { 7 } else { 0 };
        // SAFETY: nothing writes to it but the pager.
        is_page(&IMAGE, page, Some(version), &unsafe { copy.read(page) })
    });
    drop((guest, restored));
    std::fs::remove_dir_all(folder).unwrap();
    found
}

#[test]
fn a_page_that_a_killed_daemon_did_not_note_is_in_the_next_snapshot() {
    if is_offered() {
        assert!(has_unnoted("unnoted", false) && has_unnoted("unnoted-shared", true));
    }
}

/// The versions of pages 0 to 5 in the last snapshot, after these steps.
#[test]
fn later_writes_are_not_in_a_snapshot_and_a_failed_snapshot_loses_nothing() {
    if !is_offered() {
        return;
    }
    let folder = folder("steps");
    let is_full = Arc::new(AtomicBool::new(false));
    let library = Library::new(Full(Folder::open(&folder).unwrap(), is_full.clone()));
    library.snapshot("twin", IMAGE.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    let mut options = Options::default();
    options.window = 1;
    let (memory, guest) = serve(library.open("twin").unwrap(), options, false, &[]);
    let words = |page, version| std::array::from_fn(|word| IMAGE.word(page, version, word));
    // Pages 20 chunks apart, so that no chunk has two of them.
    let at = |number: usize| number * 320;
    // SAFETY: nothing else uses the memory but the pager, one step after the other.
    let write = |number, version| unsafe { memory.write(at(number), &words(at(number), version)) };
    // SAFETY: as above.
    let read = |number: usize| _ = unsafe { memory.read(at(number)) };
    let saver = guest.handle();

    write(0, 1);
    write(1, 1);
    write(2, 1);
    assert!(saver.harvest().unwrap().store("saved.1").is_ok());
    // Filled, and then written: the write must be noted.
    read(3);
    write(3, 1);
    // Pages of a snapshot that fails.
    write(4, 1);
    is_full.store(true, Ordering::Relaxed);
    let refused = saver.harvest().unwrap().store("saved.2");
    assert!(matches!(refused, Err(HarvestError::Store(_))), "{refused:?}");
    is_full.store(false, Ordering::Relaxed);
    write(0, 2);
    write(1, 2);
    write(2, 2);
    // Changes after the instant.
    let harvest = saver.harvest().unwrap();
    assert!(matches!(saver.harvest(), Err(HarvestError::Busy)));
    write(1, 3);
    // SAFETY: as above.
    unsafe { memory.give_back(at(2), 1, false) }.unwrap();
    write(5, 3);
    let stored = harvest.store("saved.2").unwrap();
    assert_eq!((stored.pages, stored.chunks, stored.written), (5, 5, 5), "only what was written");

    let (copy, restored) = serve(library.open("saved.2").unwrap(), Options::default(), false, &[]);
    let found: [Option<u32>; 6] = std::array::from_fn(|number| {
        // SAFETY: nothing writes to it but the pager.
        let content = unsafe { copy.read(at(number)) };
        let is = |version: &Option<u32>| is_page(&IMAGE, at(number), *version, &content);
        [Some(0), Some(1), Some(2), Some(3), None].into_iter().find(is).expect("a known version")
    });
    drop((guest, restored));
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(found, [Some(2), Some(2), Some(2), Some(1), Some(1), Some(0)]);
}

#[test]
fn a_request_that_cannot_be_met_is_answered_in_words() {
    let control = folder("control-words").join("control");
    let Some(daemon) = Daemon::start("words", &format!("--control {}", control.display())) else { return };
    let ask = |pid: i32, name: &str| checkpoint(&control, pid, name, |_| {}).unwrap_err().to_string();
    assert_eq!(ask(1, "a"), "process 1 is no guest of this pager");
    let mut connection = UnixStream::connect(&control).unwrap();
    connection.write_all(b"{\"pid\":\"x\"}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer).unwrap();
    assert!(answer.contains("not understood"), "{answer}");
    drop(daemon);
    std::fs::remove_dir_all(control.parent().unwrap()).unwrap();
}
