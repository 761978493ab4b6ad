//! Guests whose memory is in pages of 2 MiB, of hugetlbfs.

use crate::daemon::{Daemon, IMAGE, MIB, folder, is_offered, library, restored};
use crate::snapshot::{is_saved, may_look, snapshots};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use slat_pager::twin::{Memory, is_page};
use slat_pager::*;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Pages of 4 KiB in a huge page.
const UNIT: usize = HUGE_PAGE / PAGE;
/// The kernel's file for the number of huge pages.
const COUNT: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages for the guests of one test. The drop removes those that it added.
pub struct Reserve {
    before: String,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Reserve {
    /// Reserves pages for `guests` guests at a time.
    pub fn of(guests: usize) -> Option<Self> {
        static TESTS: Mutex<()> = Mutex::new(());
        let lock = TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The kernel copies some pages twice.
        let wanted = guests * (MIB << 20) / HUGE_PAGE + 2;
        let count = || std::fs::read_to_string(COUNT).ok()?.trim().parse::<usize>().ok();
        let before = count()?.to_string();
        if free()? < wanted {
            // This needs the right to do so, and free memory in blocks of this size.
            _ = std::fs::write(COUNT, (count()? + wanted - free()?).to_string());
        }
        let is_enough = free()? >= wanted;
        let reserve = Self { before, _one_at_a_time: lock };
        if !is_enough {
            println!("skipped: no huge pages: {COUNT} gives less than {wanted} of 2 MiB");
        }
        (is_enough && is_offered()).then_some(reserve)
    }
}

/// Returns the number of available huge pages.
fn free() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let number = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<usize>().ok()
    };
    number("HugePages_Free:")?.checked_sub(number("HugePages_Rsvd:")?)
}

impl Drop for Reserve {
    fn drop(&mut self) {
        _ = std::fs::write(COUNT, &self.before);
    }
}

/// Runs guests of a daemon that is killed, beside balloons.
fn are_right(name: &str, flags: &str, twin: &str) {
    let Some(_reserve) = Reserve::of(2) else { return };
    let flags = format!("--cache 1M --store-delay-ms 2 {flags}");
    let Some(mut daemon) = Daemon::start(name, &flags) else { return };
    let words =
        |seed| format!("--millis 900 --balloon --page-size 2M --patience-ms 20000 --seed {seed} {twin}");
    let twins = [1, 2].map(|seed| daemon.twin(&words(seed)));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(150));
        daemon.kill();
    }
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
}

#[test]
fn guests_in_huge_pages_see_every_byte_right_beside_balloons_and_kills() {
    are_right("huge", "", "");
}

#[test]
fn guests_on_shared_huge_pages_see_every_byte_right_beside_balloons_and_kills() {
    // Only guests in pages of 4 KiB are reclaimed.
    let swap = folder("huge-swap-files");
    are_right("huge-shared", &format!("--swap {} --tick 0.02 --cold 1", swap.display()), "--shared");
    std::fs::remove_dir_all(swap).unwrap();
}

#[test]
fn a_guest_in_huge_pages_is_saved_as_it_was_at_each_instant() {
    let Some(_reserve) = Reserve::of(1) else { return };
    // Restored guests have pages of 4 KiB: a template has no page size.
    is_saved("huge-saved", "", "--page-size 2M");
}

#[test]
fn a_killed_daemon_loses_no_snapshot_of_huge_pages() {
    let Some(_reserve) = Reserve::of(1) else { return };
    let words = "--millis 900 --balloon --page-size 2M --checkpoints 6 --patience-ms 20000";
    let Some((daemon, report)) = snapshots("huge-kills", "--cache 1M --store-delay-ms 2", words, 4) else {
        return;
    };
    assert!(report.is_right(), "{report:?}");
    for name in library(&daemon.folder).list().unwrap() {
        if daemon.folder.join("oracle").join(&name).exists() {
            let restored = restored(&daemon.folder, &name, MIB);
            assert!(restored.is_right(), "{name}: {restored:?}");
        }
    }
}

#[test]
fn a_snapshot_of_shared_huge_pages_is_refused_in_words() {
    let Some(_reserve) = Reserve::of(1) else { return };
    let words = "--millis 100 --page-size 2M --shared --checkpoints 1";
    let Some((_daemon, report)) = snapshots("huge-refused", "", words, 0) else { return };
    assert!(report.is_right() && report.refused[0].contains("huge pages"), "{report:?}");
}

/// A guest in this process.
fn serve(template: Template, options: Options) -> (Memory, Guest) {
    let memory = Memory::huge(IMAGE, false).unwrap();
    let uffd = Uffd::new(Features::REMOVE).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).unwrap();
    }
    let layout = Layout::of_huge_pages(regions.to_vec(), template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
    let life = Some(Life::Process(pidfd_open(getpid(), PidfdFlags::empty()).unwrap()));
    (memory, Guest::serve(Parts { uffd, layout, template, cache, journal, life }, options).unwrap())
}

/// Writes to a page after a snapshot, in the middle of a present huge page. Returns whether the next snapshot has the
/// write.
fn snapshot_has_the_write() -> bool {
    let folder = folder("huge-written");
    let library = Library::new(Folder::open(&folder).unwrap());
    library.snapshot("twin", IMAGE.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    let (memory, guest) = serve(library.open("twin").unwrap(), Options::default());
    let page = UNIT + 300;
    // SAFETY: nothing else uses the memory but the pager, here and below.
    unsafe { memory.touch(page) };
    assert_eq!(guest.handle().harvest().unwrap().store("saved.1").unwrap().pages, UNIT);
    let words = std::array::from_fn(|word| IMAGE.word(page, 7, word));
    // SAFETY: as above.
    unsafe { memory.write(page, &words) };
    guest.handle().harvest().unwrap().store("saved.2").unwrap();
    // Its pages are freed before those of the next guest are reserved.
    drop((guest, memory));
    let (copy, restored) = serve(library.open("saved.2").unwrap(), Options::default());
    let found = (0..IMAGE.pages).all(|other| {
        let version = if other == page { 7 } else { 0 };
        // SAFETY: as above.
        is_page(&IMAGE, other, Some(version), &unsafe { copy.read(other) })
    });
    drop((restored, copy));
    std::fs::remove_dir_all(folder).unwrap();
    found
}

#[test]
fn a_write_anywhere_in_a_huge_page_is_in_the_next_snapshot() {
    let Some(_reserve) = Reserve::of(1) else { return };
    if may_look() {
        assert!(snapshot_has_the_write());
    }
}

/// Maps huge pages: reserved and present, or neither.
fn map(pages: usize, is_there: bool) -> *mut core::ffi::c_void {
    let there = if is_there { MapFlags::POPULATE } else { MapFlags::NORESERVE };
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB | there;
    // SAFETY: a new mapping, where the kernel finds room.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), pages * HUGE_PAGE, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    start.unwrap()
}

/// A guest touches a page while there is no huge page, until there are some.
#[test]
fn a_guest_that_finds_no_huge_page_waits_and_has_its_content_then() {
    let Some(_reserve) = Reserve::of(1) else { return };
    let folder = folder("huge-none-left");
    let library = library(&folder);
    library.snapshot("twin", IMAGE.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    let template = library.open("twin").unwrap();
    let start = map(1, false) as u64;
    let uffd = Uffd::new(Features::REMOVE).unwrap();
    uffd.register(start, HUGE_PAGE as u64, false).unwrap();
    let region = Region { base: start, size: HUGE_PAGE as u64, offset: 0 };
    let layout = Layout::of_huge_pages(vec![region], template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
    let parts = Parts { uffd, layout, template, cache, journal, life: None };
    let guest = Guest::serve(parts, Options::default()).unwrap();
    // Other processes may take huge pages meanwhile: then the test shows nothing, and does no harm.
    let all = free().unwrap();
    let at = (0..UNIT).find(|page| !IMAGE.is_zero(*page)).unwrap();
    let others = map(all, true);
    let reading = std::thread::spawn(move || {
        let page = (start as usize + at * PAGE) as *const [u64; PAGE / 8];
        // SAFETY: it is mapped, and nothing writes to it but the pager.
        unsafe { page.read_volatile() }
    });
    let until = Instant::now() + Duration::from_secs(30);
    let is_tried = |stats: GuestStats| stats.again >= 3 || stats.faults(Source::Present) >= 3;
    while !is_tried(guest.stats()) && !reading.is_finished() {
        assert!(Instant::now() < until, "it was not tried again");
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: it was mapped above, and nothing uses it.
    unsafe { munmap(others, all * HUGE_PAGE) }.unwrap();
    let content = reading.join().unwrap();
    drop(guest);
    std::fs::remove_dir_all(folder).unwrap();
    assert!(is_page(&IMAGE, at, Some(0), &content));
}

#[test]
fn a_working_set_of_huge_pages_comes_ahead_of_faults() {
    let Some(_reserve) = Reserve::of(1) else { return };
    let Some(daemon) = Daemon::start("huge-set", "--record 0.2") else { return };
    assert!(daemon.twin("--millis 400 --page-size 2M").report().is_right());
    let recorded = daemon.stats();
    assert!(recorded.recorded > 0 && recorded.recorded.is_multiple_of(UNIT as u64), "{recorded:?}");
    assert!(daemon.twin("--millis 400 --page-size 2M --balloon").report().is_right());
    assert!(daemon.stats().ahead > 0);
    // Guests in small pages use the same template.
    assert!(daemon.twin("--millis 100 --balloon").report().is_right());
}
