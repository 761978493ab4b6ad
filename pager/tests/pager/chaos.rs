//! A daemon whose worker is killed every half second, beside all that an operator and a store may do: new versions, reloads,
//! `rm`, `gc`, a catalog that is damaged and repaired, a full disk, a store that is down. Each guest knows its version, and
//! checks every byte.
//!
//! `SLAT_PAGER_CHAOS_SECONDS=600 SLAT_PAGER_CHAOS_SEED=7`; the default is eight seconds. A seed gives the order of the
//! operator's actions. The full disk needs the right to mount.

use crate::daemon::{Daemon, Twin, folder, is_offered, library};
use crate::soak::number;
use slat_pager::twin::{Image, Report};
use slat_pager::{Listen, Request, StoreError, ask};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

const MIB: usize = 4;
const PAGES: usize = (MIB << 20) / slat_pager::PAGE;
const TEMPLATES: [&str; 2] = ["twin", "other"];
/// Longest wait of a guest for one page.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest outage of the store, or of its disk.
const OUTAGE: Duration = Duration::from_millis(700);
/// Age at which a lease has ended. A worker lives for a second.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// A file system of its own for a store, which can be full.
struct Disk(PathBuf);

impl Disk {
    /// `None`: this process may not mount.
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=256m", "slat-pager-chaos"];
        let mounted = Command::new("mount").args(words).arg(at).output();
        let is_mounted = mounted.is_ok_and(|mounted| mounted.status.success());
        if !is_mounted {
            println!("skipped: no full disk, because this process may not mount");
        }
        is_mounted.then(|| Self(at.into()))
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        let error = std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// The sockets, and the image that the next guest of each one gets. Locked while a guest connects and while they change.
type Sockets = Mutex<BTreeMap<PathBuf, (usize, u64)>>;

struct Chaos {
    folder: PathBuf,
    control: PathBuf,
    disk: Option<Disk>,
    sockets: Sockets,
    is_over: AtomicBool,
    /// Counts of events.
    counts: Mutex<BTreeMap<&'static str, u64>>,
    longest: AtomicU64,
    /// The images of the newest versions.
    newest: [AtomicU64; 2],
}

impl Chaos {
    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    fn image(&self, template: usize) -> Image {
        Image { seed: self.newest[template].load(Ordering::Relaxed), pages: PAGES }
    }

    fn upload(&self, template: usize) -> Result<(), StoreError> {
        let (library, size) = (library(&self.folder), (MIB << 20) as u64);
        library.snapshot(TEMPLATES[template], self.image(template).read(), size, 64 << 10).map(|_| ())
    }

    /// Uploads a version that no version before equals.
    fn upload_new(&self, template: usize) {
        self.newest[template].fetch_add(2, Ordering::Relaxed);
        self.upload(template).unwrap();
        self.count("new versions");
    }

    /// Asks again while the daemon has not seen yet that its store is back.
    fn ask(&self, request: &Request) {
        let until = Instant::now() + LONGEST;
        while let Err(error) = ask(&self.control, request, LIMIT) {
            let may_pass = error.to_string().contains("out of reach") && Instant::now() < until;
            assert!(may_pass, "{request:?}: {error}");
            self.count("answers to ask again");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// New guests of this template get its newest version.
    fn reload(&self, template: usize) {
        let mut sockets = self.sockets.lock().unwrap();
        self.ask(&Request::Reload { template: Some(TEMPLATES[template].into()) });
        let newest = self.image(template).seed;
        sockets.values_mut().filter(|(of, _)| *of == template).for_each(|(_, seed)| *seed = newest);
        self.count("reloads");
    }

    /// Adds a socket, or removes the last one.
    fn socket(&self) {
        let mut sockets = self.sockets.lock().unwrap();
        let added = self.folder.join("added");
        if sockets.remove(&added).is_some() {
            self.ask(&Request::Remove { socket: added });
        } else {
            self.ask(&Request::Add(Listen::template(&added, TEMPLATES[0])));
            sockets.insert(added, (0, self.image(0).seed));
        }
        self.count("sockets");
    }

    /// Damages the catalog, and repairs it.
    fn damage(&self) {
        let (catalog, library) = (self.folder.join("store/catalog"), library(&self.folder));
        std::fs::write(catalog, "no").unwrap();
        assert!(library.list().is_err());
        std::thread::sleep(Duration::from_millis(300));
        library.fsck(true).unwrap();
        let names = library.list().unwrap();
        assert!(TEMPLATES.iter().all(|name| names.iter().any(|other| other == name)), "{names:?}");
        // Older versions, which nothing names.
        let recovered = names.iter().filter(|name| name.starts_with("recovered."));
        recovered.for_each(|name| library.remove(name).unwrap());
        self.count("repairs");
    }

    fn outage(&self, random: &mut fastrand::Rng) {
        let down = self.folder.join("down");
        std::fs::write(&down, "").unwrap();
        std::thread::sleep(OUTAGE * random.u32(1..8) / 8);
        std::fs::remove_file(down).unwrap();
        self.count("outages");
    }

    fn full(&self, random: &mut fastrand::Rng) {
        let Some(disk) = &self.disk else { return };
        disk.fill();
        std::thread::sleep(OUTAGE * random.u32(1..8) / 8);
        // A template cannot be stored, and says why.
        self.newest[0].fetch_add(2, Ordering::Relaxed);
        let error = self.upload(0).unwrap_err().to_string();
        assert!(error.contains("o space left"), "{error}");
        self.newest[0].fetch_sub(2, Ordering::Relaxed);
        disk.free();
        self.count("full disks");
    }

    fn act(&self, random: &mut fastrand::Rng) {
        let template = random.usize(..2);
        match random.u8(..12) {
            0..3 => self.upload_new(template),
            3..6 => self.reload(template),
            6 => {
                // No reload meets a template that is not there.
                let library = library(&self.folder);
                library.remove(TEMPLATES[template]).unwrap();
                self.count("removals");
                library.gc(PATIENCE).unwrap();
                self.upload_new(template);
            }
            7 => {
                library(&self.folder).gc(PATIENCE).unwrap();
                self.count("collections");
            }
            8 => self.damage(),
            9 => self.outage(random),
            10 => self.full(random),
            _ => self.socket(),
        }
    }

    /// Runs a guest on a socket.
    fn guest(&self, random: &mut fastrand::Rng) {
        let words = format!(
            "--balloon --millis {} --seed {} --patience-ms 20000",
            random.u32(100..1200),
            random.u32(..)
        );
        let (twin, seed) = {
            let sockets = self.sockets.lock().unwrap();
            let (socket, (_, seed)) = sockets.iter().nth(random.usize(..sockets.len())).unwrap();
            let mut twin = Twin::at(socket, MIB, &format!("{words} --image-seed {seed}"));
            // From then on nothing changes its version.
            let pid = twin.0.id() as i32;
            let is_there = || {
                let listed = slat_pager::list(&self.control);
                listed.is_ok_and(|listed| listed.sessions.iter().any(|session| session.pid == pid))
            };
            let until = Instant::now() + LONGEST;
            while !is_there() && twin.0.try_wait().unwrap().is_none() {
                assert!(Instant::now() < until, "it is not accepted");
                std::thread::sleep(Duration::from_millis(3));
            }
            (twin, *seed)
        };
        let report = twin.report();
        assert!(report.is_right(), "image {seed}: {report:?}");
        assert!(report.longest < LONGEST.as_nanos() as u64, "{report:?}");
        self.longest.fetch_max(report.longest, Ordering::Relaxed);
        self.count("guests");
    }
}

/// Ends the threads, also if one of them fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the chaos. Returns the counts of events, and the report of a guest that expects a version that it does not get.
fn run(seconds: u64, seed: u64) -> Option<(BTreeMap<&'static str, u64>, Report)> {
    if !is_offered() {
        return None;
    }
    let folder = folder(&format!("chaos-{seed}"));
    let (control, disk) = (folder.join("control"), Disk::mount(&folder.join("store")));
    let chaos = Chaos {
        folder: folder.clone(),
        control: control.clone(),
        disk,
        sockets: Mutex::default(),
        is_over: AtomicBool::new(false),
        counts: Mutex::default(),
        longest: AtomicU64::new(0),
        newest: [AtomicU64::new(2), AtomicU64::new(1001)],
    };
    (0..2).for_each(|template| chaos.upload(template).unwrap());
    let other = folder.join("other.socket");
    let flags = format!(
        "--cache 0 --store-delay-ms 2 --control {} --guest {}=other --store-down {}",
        control.display(),
        other.display(),
        folder.join("down").display()
    );
    let mut daemon = Daemon::in_folder(folder, &flags);
    {
        let mut sockets = chaos.sockets.lock().unwrap();
        sockets.insert(daemon.socket(), (0, 2));
        sockets.insert(other, (1, 1001));
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        let _ends = Ends(&chaos.is_over);
        let chaos = &chaos;
        let lasts = move || Instant::now() < until && !chaos.is_over.load(Ordering::Relaxed);
        let mut threads = Vec::new();
        for slot in 0..3 {
            threads.push(scope.spawn(move || {
                let _ends = Ends(&chaos.is_over);
                let mut random = fastrand::Rng::with_seed(seed ^ slot);
                while lasts() {
                    chaos.guest(&mut random);
                }
            }));
        }
        threads.push(scope.spawn(move || {
            let _ends = Ends(&chaos.is_over);
            let mut random = fastrand::Rng::with_seed(seed);
            while lasts() {
                chaos.act(&mut random);
            }
        }));
        while lasts() && !threads.iter().any(ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(500));
            daemon.kill();
            chaos.count("kills");
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
    // The negative control: each image differs from the next version's.
    let wrong = daemon.twin_of(MIB, "--millis 100 --image-seed 1 --patience-ms 10000").report();
    chaos.ask(&Request::Drain);
    assert_eq!(daemon.end().code(), Some(0));
    let library = library(&chaos.folder);
    for name in library.list().unwrap() {
        assert!(library.verify(&name).unwrap().damaged.is_empty(), "{name}");
    }
    let mut counts = chaos.counts.into_inner().unwrap();
    counts.insert("longest wait in ms", chaos.longest.into_inner() / 1_000_000);
    Some((counts, wrong))
}

#[test]
fn guests_have_their_versions_beside_kills_and_everything_that_a_store_may_do() {
    let (seconds, seed) = (number("SLAT_PAGER_CHAOS_SECONDS", 8), number("SLAT_PAGER_CHAOS_SEED", 7));
    let Some((counts, wrong)) = run(seconds, seed) else { return };
    println!("{seconds} s, seed {seed}: {counts:?}");
    assert!(counts["kills"] > 0 && counts["guests"] > 0, "{counts:?}");
    assert!(!wrong.is_right(), "a guest of another version is not seen: {wrong:?}");
}
