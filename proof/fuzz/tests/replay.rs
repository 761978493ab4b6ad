//! Replays every kept input without a fuzzer: the corpus, and inputs that once made a target panic.
//!
//! A failing test names the file of the input. `SLAT_FUZZ_STEPS=1` prints its steps.

use slat_fuzz::{Target, bounded};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the kept inputs of a target, sorted by name.
fn kept(target: &Target, folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target.name);
    let Ok(files) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(name: &str) {
    let target = Target::named(name).unwrap();
    let corpus = kept(target, "corpus");
    assert!(corpus.len() >= 8, "{name} has hardly a corpus");
    for file in kept(target, "crashes").iter().chain(&corpus) {
        // Printed if the test fails.
        println!("{}", file.display());
        (target.run)(&fs::read(file).unwrap());
    }
}

#[test]
fn vm() {
    replay("vm");
}

#[test]
fn slots() {
    replay("slots");
}

#[test]
fn trace() {
    replay("trace");
}

#[test]
fn lru_gen() {
    replay("lru_gen");
}

#[test]
fn swap() {
    replay("swap");
}

#[test]
fn sound() {
    replay("sound");
}

#[test]
fn nested() {
    replay("nested");
}

#[test]
fn pager() {
    replay("pager");
}

#[test]
fn map() {
    replay("map");
}

#[test]
#[should_panic(expected = "bytes of memory for 4")]
fn a_parser_that_believes_a_length_is_found() {
    bounded("it", &[0, 0, 0, 1], |bytes| {
        let length = u32::from_le_bytes(bytes.try_into().unwrap());
        assert!(Vec::<u8>::with_capacity(length as usize).is_empty());
    });
}

/// Every target must be in the list above.
#[test]
fn every_target_is_replayed() {
    let names: Vec<_> = Target::ALL.iter().map(|target| target.name).collect();
    assert_eq!(names, ["vm", "slots", "trace", "lru_gen", "swap", "sound", "nested", "pager", "map"]);
}

/// The kept inputs are small, and few.
#[test]
fn a_corpus_is_no_archive() {
    let all = |folder| Target::ALL.iter().flat_map(move |target| kept(target, folder));
    let sizes: Vec<_> =
        all("corpus").chain(all("crashes")).map(|file| file.metadata().unwrap().len()).collect();
    assert!(sizes.len() <= 440, "{} files", sizes.len());
    assert!(sizes.iter().sum::<u64>() <= 1 << 20, "in bytes");
}
