//! Packs of a working set: a replay reads them instead of the chunks. If they are wrong or lost, the chunks replace them.

use crate::daemon::{folder, is_offered};
use crate::working_set::{Slow, faults, open, work};
use slat_pager::twin::{Image, Memory, is_page};
use slat_pager::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Records a guest, and opens the template as another process does.
fn recorded(name: &str) -> Slow {
    let mut slow = Slow::new(name);
    slow.guest(|options| options.record = Some(Duration::from_secs(3600)), false);
    slow.template = open(&slow.folder, &slow.keys, &slow.is_slow, "twin");
    slow
}

fn kinds(slow: &Slow) -> [usize; 2] {
    let keys = slow.keys.lock().unwrap();
    ["packs/", "chunks/"].map(|kind| keys.iter().filter(|key| key.starts_with(kind)).count())
}

#[test]
fn a_replay_reads_packs_and_no_chunk() {
    if !is_offered() {
        return;
    }
    let slow = recorded("packed");
    let touched = work().len() as u64;
    let stats = slow.guest(|_| {}, true);
    assert_eq!((faults(&stats), stats.ahead, stats.filled), (0, touched, touched));
    let [packs, chunks] = kinds(&slow);
    assert!(packs > 1 && chunks == 0, "{packs} packs, {chunks} chunks");
    // Of a guest that does not wait for the replay, faults read packs, too.
    slow.guest(|_| {}, false);
    assert_eq!(kinds(&slow)[1], 0);
    // The control: without a replay the guest needs each chunk.
    slow.guest(|options| options.replay = 0, false);
    assert!(kinds(&slow)[0] == 0 && kinds(&slow)[1] > packs);
}

/// Damages the packs by `damage`, which gets their folder.
fn is_right_beside(name: &str, damage: impl Fn(&Path, &[String])) {
    if !is_offered() {
        return;
    }
    let slow = recorded(name);
    let packs = slow.folder.join("store/packs");
    damage(&packs, &Folder::open(slow.folder.join("store")).unwrap().list("packs").unwrap());
    // Each run checks each page.
    let ready = slow.guest(|_| {}, true);
    assert_eq!((faults(&ready), ready.ahead), (0, work().len() as u64));
    assert!(kinds(&slow)[1] > 0, "chunks replaced them");
    slow.guest(|_| {}, false);
    slow.guest(|options| options.replay = 1, false);
}

#[test]
fn lost_packs_are_replaced_by_their_chunks() {
    is_right_beside("packs-lost", |folder, _| std::fs::remove_dir_all(folder).unwrap());
}

#[test]
fn damaged_packs_are_replaced_by_their_chunks() {
    is_right_beside("packs-damaged", |folder, packs| {
        for (number, pack) in packs.iter().enumerate() {
            let mut bytes = std::fs::read(folder.join(pack)).unwrap();
            let at = bytes.len() * number / packs.len();
            bytes[at] ^= 1;
            std::fs::write(folder.join(pack), bytes).unwrap();
        }
    });
}

#[test]
fn packs_with_the_content_of_others_are_replaced_by_their_chunks() {
    is_right_beside("packs-exchanged", |folder, packs| {
        let content: Vec<_> = packs.iter().map(|pack| std::fs::read(folder.join(pack)).unwrap()).collect();
        for (pack, bytes) in packs.iter().zip(content.iter().cycle().skip(1)) {
            std::fs::write(folder.join(pack), bytes).unwrap();
        }
    });
}

#[test]
fn a_set_whose_packs_have_other_pages_is_replayed_from_chunks() {
    if !is_offered() {
        return;
    }
    let mut slow = recorded("packs-other");
    let path = slow.folder.join("store/sets/twin");
    let text = std::fs::read_to_string(&path).unwrap();
    // One page less, with the right sum.
    let other = WorkingSet::seal(text.replacen(",256]", ",255]", 1).as_bytes()).unwrap();
    assert!(other != text.as_bytes());
    std::fs::write(&path, other).unwrap();
    slow.template = open(&slow.folder, &slow.keys, &slow.is_slow, "twin");
    assert!(slow.template.working_set().is_some());
    assert_eq!(faults(&slow.guest(|_| {}, true)), 0);
    assert_eq!(kinds(&slow)[0], 0);
}

/// Serves a guest from an image file, which touches these pages. Returns its counters, and the cache's.
fn from_image(name: &str, pages: impl Iterator<Item = usize>) -> (GuestStats, CacheStats) {
    const IMAGE: Image = Image { seed: 3, pages: 1 << 10 };
    let folder = folder(name);
    let path = folder.join("image");
    IMAGE.write(&mut std::io::BufWriter::new(std::fs::File::create(&path).unwrap())).unwrap();
    let memory = Memory::new(IMAGE, false).unwrap();
    let uffd = Uffd::new(Features::REMOVE).unwrap();
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for Region { base, size, .. } in regions {
        uffd.register(base, size, false).unwrap();
    }
    let template = Template::of_image(&path).unwrap();
    let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(64 << 20)));
    let parts = Parts { uffd, layout, template, cache: cache.clone(), journal, life: None };
    let guest = Guest::serve(parts, Options::default()).unwrap();
    for page in pages {
        // SAFETY: nothing writes to it but the pager.
        assert!(is_page(&IMAGE, page, Some(0), &unsafe { memory.read(page) }), "page {page}");
    }
    let stats = guest.stop();
    std::fs::remove_dir_all(folder).unwrap();
    (stats, cache.stats())
}

#[test]
fn an_image_is_read_by_pages_and_not_cached_twice() {
    if !is_offered() {
        return;
    }
    let (far, cache) = from_image("image-far", (0..1024).step_by(64));
    assert_eq!(cache, CacheStats::default(), "the kernel has the file's pages");
    // The file was just written, so the kernel has it: a fault far from others brings its page alone.
    let brought = if far.faults(Source::Cache) == 16 { 16 } else { 16 * 16 };
    assert!(far.filled <= brought, "{far:?}");
    let (near, _) = from_image("image-near", 0..1024);
    assert!(faults(&near) <= 256 && near.filled == 1024, "{near:?}");
}
