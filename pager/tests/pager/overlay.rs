//! Overlays: a guest reads the overlay's bytes where it covers the base, and the base's bytes elsewhere.

use crate::daemon::{Daemon, IMAGE, MIB, folder, is_offered, library, restored};
use crate::huge::Reserve;
use crate::snapshot::may_look;
use crate::working_set::{Slow, faults, has, open, work};
use slat_pager::twin::{Memory, Versions};
use slat_pager::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages of the overlay: at both ends of the image, alone, in a row over the border of a chunk, one after the other with
/// one page of the base between, and among zeros. A multiple of 16 begins a chunk of the store.
const COVERED: [usize; 12] = [0, 3, 9, 62, 63, 64, 65, 200, 202, 1027, 3072, (MIB << 8) - 1];

/// The version of a page's content.
fn version(page: usize) -> u32 {
    if COVERED.contains(&page) { 7 } else { 0 }
}

/// The bytes of an overlay's pages.
fn patches() -> Vec<(u64, Vec<u8>)> {
    let content =
        |page| (0..PAGE / 8).flat_map(move |word| IMAGE.word(page, 7, word).to_ne_bytes()).collect();
    COVERED.map(|page| ((page * PAGE) as u64, content(page))).to_vec()
}

/// Makes a store with the template `base`, and its overlay `twin`.
fn with_overlay(name: &str) -> PathBuf {
    let (folder, size) = (folder(name), (MIB << 20) as u64);
    let library = library(&folder);
    library.snapshot("base", IMAGE.read(), size, 64 << 10).unwrap();
    library.overlay("base", &patches(), "twin").unwrap();
    folder
}

/// Serves a guest in this process, and checks these pages.
fn reads(
    template: &Template,
    (memory, backing): (&Memory, Backing),
    options: Options,
    pages: impl Iterator<Item = usize>,
) -> GuestStats {
    let mut features = Features::REMOVE;
    if memory.is_clone() {
        features = features.and(Features::SHARED).and(Features::MINOR);
    }
    let uffd = Uffd::new(features).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).unwrap();
    }
    let is_huge = memory.page_size() == HUGE_PAGE;
    let new = if is_huge { Layout::of_huge_pages } else { Layout::new };
    let layout = new(regions.to_vec(), template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(64 << 20)));
    let parts = Parts { uffd, layout, template: template.clone(), cache, journal, life: None };
    let guest = Guest::serve_on(parts, backing, options).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while guest.stats().chunks_left > 0 {
        assert!(Instant::now() < until, "its working set does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_base = template.overlay().is_none();
    for page in pages {
        let expected = if is_base { 0 } else { version(page) };
        assert!(has(memory, page, expected), "page {page}");
    }
    guest.stop()
}

#[test]
fn a_guest_reads_the_overlay_where_it_covers_and_the_base_elsewhere() {
    if !is_offered() {
        return;
    }
    let folder = with_overlay("overlay-reads");
    let library = library(&folder);
    let (template, base) = (library.open("twin").unwrap(), library.open("base").unwrap());
    for window in [1, 4, 16, 64] {
        let mut options = Options::default();
        options.window = window;
        for factor in [1, 1_021] {
            let order = || (0..IMAGE.pages).map(move |page| page * factor % IMAGE.pages);
            let memory = Memory::new(IMAGE, false).unwrap();
            let stats = reads(&template, (&memory, Backing::Own), options, order());
            assert_eq!(stats.filled as usize, IMAGE.pages, "each page was filled once");
            // The control: the base has other bytes in these pages.
            let memory = Memory::new(IMAGE, false).unwrap();
            reads(&base, (&memory, Backing::Own), options, order());
        }
    }
    drop((template, base));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Records the base's working set, makes an overlay, and returns its counters and the kinds of objects that it read.
fn replayed(name: &str, is_packed: bool) -> (GuestStats, [usize; 2]) {
    let mut slow = Slow::new(name);
    let store = library(&slow.folder);
    if is_packed {
        slow.guest(|options| options.record = Some(Duration::from_secs(3600)), false);
    } else {
        slow.template.keep_working_set(WorkingSet::of_faults(work())).unwrap();
    }
    store.overlay("twin", &patches(), "overlay").unwrap();
    // Under the name that the helper opens.
    let keys = slow.keys.clone();
    slow.template = open(&slow.folder, &keys, &slow.is_slow, "overlay");
    keys.lock().unwrap().clear();
    let memory = Memory::new(IMAGE, false).unwrap();
    let pages = work().into_iter();
    let stats = reads(&slow.template, (&memory, Backing::Own), Options::default(), pages);
    let keys = keys.lock().unwrap();
    let kinds = ["packs/", "chunks/"].map(|kind| keys.iter().filter(|key| key.starts_with(kind)).count());
    (stats, kinds)
}

#[test]
fn an_overlay_is_filled_ahead_from_the_working_set_of_its_base() {
    if !is_offered() {
        return;
    }
    let touched = work().len() as u64;
    assert!(work().iter().filter(|page| COVERED.contains(page)).count() > 2);
    let (stats, kinds) = replayed("overlay-chunks", false);
    assert_eq!((faults(&stats), stats.ahead), (0, touched));
    assert!(kinds[0] == 0 && kinds[1] > 0);
    let (stats, kinds) = replayed("overlay-packs", true);
    assert_eq!((faults(&stats), stats.ahead), (0, touched));
    assert!(kinds[0] > 0 && kinds[1] == 0, "{kinds:?}");
}

#[test]
fn a_guest_of_an_overlay_records_the_working_set_of_the_base() {
    if !is_offered() {
        return;
    }
    let folder = with_overlay("overlay-records");
    let library = library(&folder);
    let (template, mut options) = (library.open("twin").unwrap(), Options::default());
    options.record = Some(Duration::from_secs(3600));
    let memory = Memory::new(IMAGE, false).unwrap();
    let stats = reads(&template, (&memory, Backing::Own), options, work().into_iter());
    assert_eq!(stats.recorded as usize, work().len());
    assert!(
        library.verify("base").unwrap().damaged.is_empty()
            && library.verify("twin").unwrap().damaged.is_empty()
    );
    for name in ["base", "twin"] {
        let (template, memory) = (library.open(name).unwrap(), Memory::new(IMAGE, false).unwrap());
        let stats = reads(&template, (&memory, Backing::Own), Options::default(), work().into_iter());
        assert_eq!((faults(&stats), stats.ahead as usize), (0, work().len()), "{name}");
    }
    drop(template);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn clones_of_overlays_share_the_pages_of_their_base() {
    let shared = folder("overlay-shared");
    if !is_offered() || !shared.starts_with("/dev/shm") {
        return println!("skipped: no /dev/shm or no userfaultfd");
    }
    let folder = with_overlay("overlay-clones");
    let library = library(&folder);
    library.overlay("base", &patches(), "other").unwrap();
    let mut bytes = 0;
    // The first one fills the file; the base's own clone reads no byte of an overlay. The last ones are filled ahead.
    for (number, name) in ["twin", "other", "base", "twin", "twin", "base"].into_iter().enumerate() {
        if number == 4 {
            library.open("base").unwrap().keep_working_set(WorkingSet::of_faults(0..IMAGE.pages)).unwrap();
        }
        let template = library.open(name).unwrap();
        let share = Share::open(&shared, &template).unwrap();
        let memory = Memory::clone_of(IMAGE, &shared.join(name)).unwrap();
        let backing = Backing::Share(share.clone());
        let stats = reads(&template, (&memory, backing), Options::default(), 0..IMAGE.pages);
        assert_eq!(number >= 4, stats.ahead > 0, "{name}: {stats:?}");
        let own = memory.own_bytes().unwrap() as usize / PAGE;
        let most = if name == "base" { 0 } else { COVERED.len() };
        assert!(own <= most, "{own} pages of {name} are its own");
        if bytes > 0 {
            assert_eq!((share.bytes(), stats.faults(Source::Store)), (bytes, 0), "{name}");
        }
        bytes = share.bytes();
    }
    assert!(bytes > 0 && bytes <= (MIB << 20) as u64);
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::remove_dir_all(shared).unwrap();
}

#[test]
fn a_huge_page_has_the_bytes_of_the_overlay_and_of_the_base() {
    let Some(_reserve) = Reserve::of(1) else { return };
    let folder = with_overlay("overlay-huge");
    for is_ahead in [false, true] {
        let template = library(&folder).open("twin").unwrap();
        let memory = Memory::huge(IMAGE, false).unwrap();
        let stats = reads(&template, (&memory, Backing::Own), Options::default(), 0..IMAGE.pages);
        assert_eq!(is_ahead, stats.ahead > 0, "{stats:?}");
        template.keep_working_set(WorkingSet::of_faults(0..IMAGE.pages)).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Writes the versions of the pages for a twin.
fn begin(folder: &Path) -> String {
    let (path, versions) =
        (folder.join("versions"), (0..IMAGE.pages).map(|page| Some(version(page))).collect::<Versions>());
    std::fs::write(&path, serde_json::to_vec(&versions).unwrap()).unwrap();
    format!("--begin {}", path.display())
}

#[test]
fn an_overlay_survives_kills_the_removal_of_both_templates_and_collections() {
    if !is_offered() {
        return;
    }
    let folder = with_overlay("overlay-kills");
    let begin = begin(&folder);
    let mut daemon = Daemon::in_folder(folder, "--cache 0 --store-delay-ms 2");
    // While there is a guest, a keeper that is killed is followed by another one.
    let _stays = daemon.twin(&format!("--millis 120000 --patience-ms 120000 {begin}"));
    let words = format!("--millis 1500 --balloon --patience-ms 20000 {begin}");
    let twins = [1, 2].map(|seed| daemon.twin(&format!("{words} --seed {seed}")));
    daemon.kill();
    let library = library(&daemon.folder);
    library.remove("base").unwrap();
    library.snapshot("base", &[5; 4096][..], 4096, 4096).unwrap();
    library.gc(PATIENCE).unwrap();
    daemon.kill();
    let report = daemon.twin(&format!("--millis 100 {begin}")).report();
    assert!(report.is_right(), "the overlay does not need the name of its base: {report:?}");
    library.remove("twin").unwrap();
    library.gc(PATIENCE).unwrap();
    library.gc(PATIENCE).unwrap();
    daemon.kill();
    daemon.kill_keeper();
    daemon.next_keeper();
    daemon.kill();
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
}

#[test]
fn a_snapshot_of_a_guest_of_an_overlay_has_the_overlay_and_the_writes() {
    if !is_offered() || !may_look() {
        return;
    }
    let folder = with_overlay("overlay-saved");
    let (begin, control, oracle) = (begin(&folder), folder.join("control"), folder.join("oracle"));
    std::fs::create_dir(&oracle).unwrap();
    let daemon = Daemon::in_folder(folder, &format!("--control {}", control.display()));
    let words = format!(
        "--millis 400 --balloon --checkpoints 2 --patience-ms 20000 --control {} --oracle {} {begin}",
        control.display(),
        oracle.display()
    );
    let report = daemon.twin(&words).report();
    assert!(report.is_right() && report.stored > 0, "{report:?}");
    let library = library(&daemon.folder);
    for name in ["base", "twin"] {
        library.remove(name).unwrap();
    }
    library.gc(PATIENCE).unwrap();
    for name in library.list().unwrap() {
        let restored = restored(&daemon.folder, &name, MIB);
        assert!(restored.is_right(), "{name}: {restored:?}");
    }
}
