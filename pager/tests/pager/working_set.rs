//! Working sets: the record has the touched pages, and a guest that gets them ahead of its faults has fewer faults.

use crate::daemon::{Daemon, IMAGE, MIB, folder, is_offered, library, with_template};
use slat_pager::twin::{Memory, is_page};
use slat_pager::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pages of a chunk.
const CHUNK: usize = 64;

/// Pages that the guest touches, in order: in each chunk 12 pages, of 4 windows.
pub fn work() -> Vec<usize> {
    let chunks = IMAGE.pages / CHUNK;
    let pages = |chunk: usize| {
        let first = chunk * 37 % chunks * CHUNK;
        (0..4).flat_map(move |window| [9, 3, 4].map(|page| first + window * 16 + page))
    };
    (0..chunks).flat_map(pages).collect()
}

/// A store that records its reads of chunks, and can delay them.
pub struct Slow {
    pub folder: PathBuf,
    pub is_slow: Arc<AtomicBool>,
    pub keys: Arc<Mutex<Vec<String>>>,
    pub template: Template,
}

impl Slow {
    pub fn new(name: &str) -> Self {
        let folder = folder(name);
        library(&folder).snapshot("twin", IMAGE.read(), (MIB << 20) as u64, CHUNK * PAGE).unwrap();
        let keys = Arc::<Mutex<Vec<String>>>::default();
        let is_slow = Arc::new(AtomicBool::new(false));
        let template = open(&folder, &keys, &is_slow, "twin");
        Self { folder, is_slow, keys, template }
    }

    /// Serves a guest with an empty cache. `ready`: the guest begins when its working set is filled. Checks each page.
    pub fn guest(&self, options: impl Fn(&mut Options), ready: bool) -> GuestStats {
        let memory = Memory::new(IMAGE, false).unwrap();
        let uffd = Uffd::new(Features::REMOVE).unwrap();
        let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
        for Region { base, size, .. } in regions {
            uffd.register(base, size, false).unwrap();
        }
        let (template, cache) = (self.template.clone(), Arc::new(Cache::new(64 << 20)));
        let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
        let (journal, mut all) = (Journal::new(&layout).unwrap(), Options::default());
        options(&mut all);
        self.keys.lock().unwrap().clear();
        let guest = Guest::serve(Parts { uffd, layout, template, cache, journal, life: None }, all).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while ready && guest.stats().chunks_left > 0 {
            assert!(Instant::now() < until, "its working set does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        for page in work() {
            assert!(has(&memory, page, 0), "page {page}");
            std::thread::sleep(Duration::from_micros(50));
        }
        // The last fault is counted after its page is present. And a record ends with its guest.
        guest.stop()
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn open(
    folder: &Path,
    keys: &Arc<Mutex<Vec<String>>>,
    is_slow: &Arc<AtomicBool>,
    name: &str,
) -> Template {
    let store = Folder::open(folder.join("store")).unwrap();
    let (keys, is_slow) = (keys.clone(), is_slow.clone());
    let slow = move |key: &str| {
        keys.lock().unwrap().push(key.into());
        if is_slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    };
    Library::new(Trouble::calling(store, slow)).open(name).unwrap()
}

/// Returns whether a page of a guest in this process has the content of a version.
pub fn has(memory: &Memory, page: usize, version: u32) -> bool {
    // SAFETY: nothing writes to it but the pager.
    is_page(&IMAGE, page, Some(version), &unsafe { memory.read(page) })
}

pub fn faults(stats: &GuestStats) -> u64 {
    stats.latency.iter().map(|(_, latency)| latency.count).sum()
}

#[test]
fn with_its_working_set_a_guest_has_a_fifth_of_the_faults_or_less() {
    if !is_offered() {
        return;
    }
    let slow = Slow::new("fifth");
    let touched = work().len() as u64;
    // Without a working set: a fault for each window.
    let without = slow.guest(|_| {}, false);
    assert_eq!((faults(&without), without.ahead), (touched / 3, 0));
    // The record has the touched pages, and no others.
    let recorded = slow.guest(|options| options.record = Some(Duration::from_secs(3600)), false);
    let set = slow.template.working_set().unwrap();
    assert_eq!((faults(&recorded), set.pages() as u64), (touched, touched));
    assert!(set.runs().flatten().all(|page| work().contains(&page)), "nothing is wasted");
    // With it, and with time: no fault.
    let ready = slow.guest(|_| {}, true);
    assert_eq!((faults(&ready), ready.ahead, ready.filled), (0, touched, touched));
    // With it, and a guest that begins at once: the guest works while chunks are being read.
    slow.is_slow.store(true, Ordering::Relaxed);
    let with = slow.guest(|_| {}, false);
    slow.is_slow.store(false, Ordering::Relaxed);
    assert!(faults(&with) * 5 <= faults(&without), "{} of {}", faults(&with), faults(&without));
    // The control: a working set that is not replayed has no effect.
    let off = slow.guest(|options| options.replay = 0, false);
    assert_eq!((faults(&off), off.ahead), (touched / 3, 0));
    // Another process gets it from the store.
    let other = library(&slow.folder);
    assert_eq!(other.open("twin").unwrap().working_set(), Some(set));
    other.forget("twin").unwrap();
    assert_eq!(other.open("twin").unwrap().working_set(), None);
}

#[test]
fn chunks_are_asked_for_in_the_order_of_the_record() {
    if !is_offered() {
        return;
    }
    let slow = Slow::new("order");
    slow.template.keep_working_set(WorkingSet::of_faults(work())).unwrap();
    slow.guest(|options| options.replay = 1, true);
    let mut asked = slow.keys.lock().unwrap().clone();
    // Chunks of zeros are not requested.
    let mut chunks: Vec<_> = work().iter().map(|page| page / CHUNK).collect();
    chunks.dedup();
    let names: Vec<_> =
        chunks.iter().filter_map(|chunk| slow.template.chunks()[*chunk]).map(|hash| hash.key()).collect();
    assert_eq!(asked, names);
    asked.sort();
    assert!(asked != names, "the order is not that of names");
}

#[test]
fn a_working_set_that_is_damaged_or_of_another_template_is_not_used() {
    let folder = with_template("set-damage");
    let library = library(&folder);
    library.open("twin").unwrap().keep_working_set(WorkingSet::of_faults([1, 2])).unwrap();
    let has = || library.open("twin").unwrap().working_set().is_some();
    assert!(has() && library.verify("twin").unwrap().damaged.is_empty());
    let path = folder.join("store/sets/twin");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[0,6]", "[0,7]")).unwrap();
    assert!(!has() && library.verify("twin").unwrap().damaged[0].contains("sets/twin is damaged"));
    std::fs::write(&path, text).unwrap();
    assert!(has());
    library.snapshot("twin", &*vec![1; 4096], 4096, 4096).unwrap();
    assert!(!has() && library.verify("twin").unwrap().damaged.is_empty());
    // Pages beyond the template are not filled.
    library.open("twin").unwrap().keep_working_set(WorkingSet::of_faults([0, 1, 1 << 30])).unwrap();
    assert!(has());
    library.remove("twin").unwrap();
    assert!(!path.exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn guests_of_a_recorded_template_see_every_byte_right_beside_balloons_and_kills() {
    let flags = "--store-delay-ms 2 --store-errors-percent 5 --record 20";
    let Some(mut daemon) = Daemon::start("replay", flags) else { return };
    assert!(daemon.twin("--millis 100").report().is_right());
    assert_eq!(daemon.stats().recorded, IMAGE.pages as u64, "it looks at every page");
    let twins =
        [1, 2].map(|seed| daemon.twin(&format!("--millis 800 --balloon --seed {seed} --patience-ms 10000")));
    std::thread::sleep(Duration::from_millis(100));
    daemon.kill();
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
    _ = (daemon.stats(), daemon.stats());
    // Counters of the current daemon, which has the record from the store.
    assert!(daemon.twin("--millis 50").report().is_right());
    let stats = daemon.stats();
    assert!(stats.ahead > 0, "{stats:?}");
}
