//! Makes, shares, verifies, removes and collects templates in a folder.

use crate::daemon::folder;
use slat_pager::{Folder, Library, PATIENCE, Store, StoreError};

fn image(pages: &[u8]) -> Vec<u8> {
    pages.iter().flat_map(|byte| [*byte; 4096]).collect()
}

#[test]
fn templates_share_chunks_and_gc_takes_what_none_needs() {
    let folder = folder("gc");
    let (library, store) = (Library::new(Folder::open(&folder).unwrap()), Folder::open(&folder).unwrap());
    let snapshot = |name, pages: &[u8]| {
        let image = image(pages);
        library.snapshot(name, &*image, image.len() as u64, 4096).unwrap().chunks
    };
    assert_eq!(snapshot("a", &[1, 2, 0, 2, 3]), 3, "zeros, and what occurs twice, are not stored");
    assert_eq!(snapshot("b", &[3, 4]), 1, "what another one has is not stored again");
    assert_eq!(library.list().unwrap(), ["a", "b"]);
    assert_eq!(store.list("chunks").unwrap().len(), 4);
    let open = library.open("a").unwrap();
    library.remove("a").unwrap();
    assert!(matches!(library.remove("a"), Err(StoreError::Missing(_))));
    assert_eq!(library.gc(PATIENCE).unwrap().removed, 0, "it is being served");
    drop(open);
    let gc = library.gc(PATIENCE).unwrap();
    assert_eq!((gc.kept, gc.removed), (2, 2));
    assert_eq!(library.verify("b").unwrap().chunks, 2);
    // A deleted chunk is written again, under another name.
    assert_eq!(snapshot("c", &[1, 4]), 1);
    assert!(store.list("chunks").unwrap().iter().any(|name| name.ends_with(".2")));
    assert_eq!(library.verify("c").unwrap().chunks, 2);
    let kinds = ["leases", "manifests", "sets", "templates"].map(|kind| store.list(kind).unwrap().len());
    assert_eq!(kinds, [0, 2, 0, 0], "nothing else is left behind");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn damage_is_found_and_stops_a_collection() {
    let folder = folder("damage");
    let library = Library::new(Folder::open(&folder).unwrap());
    library.snapshot("a", &*image(&[1, 2, 3, 4]), 4 * 4096, 8192).unwrap();
    let chunk = library.open("a").unwrap().chunks()[1].unwrap();
    let path = folder.join(chunk.key());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let verified = library.verify("a").unwrap();
    assert_eq!((verified.chunks, verified.damaged.len()), (2, 1));
    assert!(verified.damaged[0].contains("chunk 1 of a"), "{verified:?}");
    std::fs::remove_file(path).unwrap();
    assert!(library.verify("a").unwrap().damaged[0].ends_with("is not in the store"));
    let manifest = Folder::open(&folder).unwrap().list("manifests").unwrap().remove(0);
    std::fs::write(folder.join("manifests").join(manifest), "{}").unwrap();
    assert!(matches!(library.gc(PATIENCE), Err(StoreError::Damaged { .. })));
    assert_eq!(Folder::open(&folder).unwrap().list("chunks").unwrap().len(), 1, "nothing was deleted");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_image_that_ends_too_early_leaves_the_template_as_it_was() {
    let folder = folder("early");
    let library = Library::new(Folder::open(&folder).unwrap());
    library.snapshot("a", &*image(&[1]), 4096, 4096).unwrap();
    let before = library.open("a").unwrap().chunks().to_vec();
    assert!(matches!(library.snapshot("a", &*image(&[2]), 8192, 4096), Err(StoreError::Io { .. })));
    assert_eq!(library.open("a").unwrap().chunks(), before);
    assert_eq!(library.gc(PATIENCE).unwrap().given_up, 0, "it left no upload behind");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_write_that_expects_another_version_is_none() {
    let folder = folder("if");
    let store = Folder::open(&folder).unwrap();
    assert!(store.put_if("catalog", b"a", None).unwrap());
    assert!(!store.put_if("catalog", b"b", None).unwrap());
    let version = store.read("catalog", 9).unwrap().1;
    assert!(store.put_if("catalog", b"c", Some(&version)).unwrap());
    assert!(!store.put_if("catalog", b"d", Some(&version)).unwrap());
    assert_eq!(store.get("catalog", 9).unwrap(), b"c");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_name_leads_to_no_other_folder() {
    let folder = folder("names");
    let library = Library::new(Folder::open(&folder).unwrap());
    for name in ["", ".", "..", "../a", "a/b", "a\0", ".a", &"a".repeat(129)] {
        assert!(matches!(library.open(name), Err(StoreError::Name(_))), "{name:?}");
        let refused = library.snapshot(name, &*image(&[1]), 4096, 4096);
        assert!(matches!(refused, Err(StoreError::Name(_))), "{name:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
