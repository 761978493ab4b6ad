//! Uploads by processes that are killed, beside collections and removals: each template that is listed is whole.

use crate::daemon::{folder, library};
use slat_pager::PATIENCE;
use slat_pager::twin::Image;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGES: usize = 512;
const UPLOADS: usize = 48;

/// Makes images that have halves in common.
fn images(folder: &Path) -> Vec<PathBuf> {
    let halves: Vec<Vec<u8>> = (1..=4)
        .map(|seed| {
            let mut bytes = Vec::new();
            Image { seed, pages: PAGES / 2 }.write(&mut bytes).unwrap();
            bytes
        })
        .collect();
    let pairs = [(0, 1), (2, 3), (0, 3), (1, 1)];
    let write = |(one, other): (usize, usize)| {
        let path = folder.join(format!("image-{one}-{other}"));
        std::fs::write(&path, [&*halves[one], &*halves[other]].concat()).unwrap();
        path
    };
    pairs.into_iter().map(write).collect()
}

fn upload(folder: &Path, image: &Path, name: &str) -> Child {
    let mut snapshot = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
    snapshot.arg("snapshot").arg(image).arg(name).arg("--store").arg(folder.join("store"));
    snapshot.args(["--chunk", "64K"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn templates_are_whole_after_uploads_that_were_killed_beside_collections() {
    let folder = folder("uploads");
    let (images, library) = (images(&folder), library(&folder));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let collector = || {
            let mut random = fastrand::Rng::with_seed(5);
            while !is_over.load(Ordering::Relaxed) {
                library.gc(PATIENCE).unwrap();
                // It may not be there.
                _ = library.remove(&format!("t{}", random.usize(..6)));
            }
        };
        scope.spawn(collector);
        let mut random = fastrand::Rng::with_seed(17);
        for _ in 0..UPLOADS / 2 {
            let mut two = [0, 1].map(|_| {
                let name = format!("t{}", random.usize(..6));
                upload(&folder, &images[random.usize(..images.len())], &name)
            });
            std::thread::sleep(Duration::from_millis(random.u64(..25)));
            two[0].kill().unwrap();
            for upload in &mut two {
                upload.wait().unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (nth, image) in images[..3].iter().enumerate() {
        assert!(upload(&folder, image, &format!("last{nth}")).wait().unwrap().success());
    }
    library.gc(Duration::ZERO).unwrap();
    let names = library.list().unwrap();
    assert!(names.len() >= 3, "{names:?}");
    for name in &names {
        let verified = library.verify(name).unwrap();
        assert!(verified.damaged.is_empty() && verified.chunks > 0, "{name}: {verified:?}");
    }
    // Negative control: a chunk that a collection took too early is found.
    let chunks = std::fs::read_dir(folder.join("store/chunks")).unwrap();
    chunks.for_each(|chunk| std::fs::remove_file(chunk.unwrap().path()).unwrap());
    assert!(!library.verify("last0").unwrap().damaged.is_empty());
    std::fs::remove_dir_all(folder).unwrap();
}
