//! A disk that is slow, full, damaged, shared, or absent.

use super::*;
use crate::store::{Folder, Library, StoreError, Trouble};
use parking_lot::Mutex;
use std::path::Path;
use std::time::{Duration, Instant};

const CHUNK: usize = 8192;
const CHUNKS: usize = 64;
/// So that a chunk has a sixteenth at most.
const ROOM: u64 = 1 << 20;

/// A store whose chunks can be refused, with a disk.
struct Host {
    folder: PathBuf,
    image: Vec<u8>,
    reads: Arc<AtomicU64>,
    is_down: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<String>>>,
    /// The call that fails.
    fails: Arc<Mutex<&'static str>>,
}

impl Host {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("slat-pager-disk-{name}-{}", std::process::id()));
        let image: Vec<u8> = (0..CHUNKS).flat_map(|number| [number as u8 + 1; CHUNK]).collect();
        let library = Library::new(Folder::open(folder.join("store")).unwrap());
        library.snapshot("a", &*image, image.len() as u64, CHUNK).unwrap();
        let (reads, is_down, told, fails) = Default::default();
        Self { folder, image, reads, is_down, told, fails }
    }

    fn disk(&self, limit: u64) -> Disk {
        let (told, fails) = (self.told.clone(), self.fails.clone());
        let before = move |call: &str| {
            let error = || io::Error::from_raw_os_error(libc::ENOSPC);
            if *fails.lock() == call { Err(error()) } else { Ok(()) }
        };
        Disk::calling(self.path(), limit, move |line| told.lock().push(line.into()), before)
    }

    fn path(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// Reads the image through the disk. Returns the number of reads of the store.
    fn read(&self, disk: Option<&Disk>) -> Result<u64, StoreError> {
        let (reads, is_down, before) = (self.reads.clone(), self.is_down.clone(), disk.map(Disk::stats));
        let store = Trouble::calling(Folder::open(self.folder.join("store")).unwrap(), move |_| {
            reads.fetch_add(1, Ordering::Relaxed);
            if is_down.load(Ordering::Relaxed) { Err(io::Error::other("down on purpose")) } else { Ok(()) }
        });
        let library = Library::new(store);
        let library = disk.map_or(library.clone(), |disk| library.on_disk(disk.clone()));
        let template = library.open("a").unwrap();
        let count = self.reads.load(Ordering::Relaxed);
        let content = template.read(0..template.size());
        let count = self.reads.load(Ordering::Relaxed) - count;
        assert!(content? == self.image, "a byte is wrong");
        let until = Instant::now() + Duration::from_secs(30);
        while let (Some(disk), Some(before)) = (disk, before) {
            let all = |stats: DiskStats| stats.written + stats.dropped;
            if all(disk.stats()) >= all(before) + count {
                break;
            }
            assert!(Instant::now() < until, "chunks wait to be written: {:?}", disk.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(count)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_chunk_is_read_from_the_store_once_and_then_while_the_store_is_down() {
    let host = Host::new("once");
    let disk = host.disk(64 << 20);
    assert_eq!(host.read(Some(&disk)).unwrap(), CHUNKS as u64);
    host.is_down.store(true, Ordering::Relaxed);
    assert_eq!(host.read(Some(&disk)).unwrap(), 0);
    // Another process, or the next worker.
    assert_eq!(host.read(Some(&host.disk(64 << 20))).unwrap(), 0);
    assert!(host.read(None).is_err(), "the control: without a disk");
    assert_eq!(disk.stats(), DiskStats { hits: 64, misses: 64, written: 64, ..DiskStats::default() });
    assert!(host.told.lock().is_empty());
}

#[test]
fn a_file_that_is_cut_off_or_damaged_is_not_believed_and_written_again() {
    let host = Host::new("damaged");
    host.read(Some(&host.disk(64 << 20))).unwrap();
    let files = host.files();
    for (number, file) in files.iter().enumerate() {
        let mut bytes = fs::read(file).unwrap();
        match number % 5 {
            0 => bytes.clear(),
            1 => bytes.truncate(bytes.len() / 2),
            2 => bytes.push(0),
            3 => bytes = fs::read(&files[number - 1]).unwrap(),
            _ => *bytes.last_mut().unwrap() ^= 1,
        }
        fs::write(file, bytes).unwrap();
    }
    let disk = host.disk(64 << 20);
    assert_eq!(host.read(Some(&disk)).unwrap(), CHUNKS as u64);
    assert_eq!((disk.stats().damaged, disk.stats().hits), (CHUNKS as u64, 0));
    assert_eq!(host.read(Some(&disk)).unwrap(), 0);
}

#[test]
fn the_limit_holds_and_the_chunks_that_were_used_last_stay() {
    let host = Host::new("limit");
    fs::create_dir(host.path()).unwrap();
    // Larger than its content, so that few files reach the limit. And a file that is no chunk.
    let file = |number: u64| host.path().join(Hash::of(&number.to_le_bytes()).to_string());
    let other = host.path().join("other");
    fs::write(&other, [0; 4096]).unwrap();
    let disk = host.disk(ROOM);
    let bytes = || {
        let sizes = fs::read_dir(host.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        sizes.sum::<u64>() - 4096
    };
    let wait = |count: u64| {
        let until = Instant::now() + Duration::from_secs(30);
        while disk.stats().written + disk.stats().dropped < count {
            assert!(Instant::now() < until, "{:?}", disk.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let get = |number: u64| disk.get(&Hash::of(&number.to_le_bytes()), |stored| Ok::<_, ()>(stored.to_vec()));
    for number in 0..200 {
        disk.put(Hash::of(&u64::to_le_bytes(number)), vec![number as u8; 16 << 10]);
        wait(number + 1);
        assert!(bytes() <= ROOM, "{} bytes", bytes());
        assert!(get(0).is_some(), "it was used after each of {number}");
    }
    assert!(other.exists() && !file(1).exists() && file(199).exists());
    assert!(disk.stats().evicted > 100 && disk.stats().dropped == 0, "{:?}", disk.stats());
    // A chunk that has more than a sixteenth is not kept.
    disk.put(Hash::of(b"large"), vec![0; 128 << 10]);
    wait(201);
    assert_eq!(disk.stats().dropped, 1);
}

#[test]
fn a_disk_that_fails_is_passed_by_with_one_line() {
    for call in ["read", "write", "written", "list"] {
        let host = Host::new(call);
        let disk = host.disk(64 << 20);
        *host.fails.lock() = call;
        for _ in 0..8 {
            assert_eq!(host.read(Some(&disk)).unwrap(), CHUNKS as u64, "{call}");
        }
        assert_eq!(host.told.lock().len(), 1, "{call}: {:?}", host.told.lock());
        *host.fails.lock() = "";
        for _ in 0..8 {
            host.read(Some(&disk)).unwrap();
        }
        let told = host.told.lock().clone();
        assert!(told.len() == 2 && told[1].contains("again"), "{call}: {told:?}");
        assert_eq!(host.read(Some(&disk)).unwrap(), 0, "{call}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_passed_by_until_it_can() {
    let host = Host::new("no-folder");
    fs::write(host.path(), "a file").unwrap();
    let disk = host.disk(64 << 20);
    for _ in 0..3 {
        assert_eq!(host.read(Some(&disk)).unwrap(), CHUNKS as u64);
    }
    let told = host.told.lock().clone();
    assert!(told.len() == 2 && told.iter().all(|line| line.contains("come from the store")), "{told:?}");
    fs::remove_file(host.path()).unwrap();
    for _ in 0..8 {
        host.read(Some(&disk)).unwrap();
    }
    assert_eq!(host.read(Some(&disk)).unwrap(), 0);
    assert!(Path::new(&host.files()[0]).metadata().unwrap().len() < CHUNK as u64, "chunks are compressed");
}
