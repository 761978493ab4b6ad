//! What the sources say of themselves holds: rules that are checked by reading.

use std::fs;
use std::path::Path;

/// Each mistake that loom must find has a row in the list of orderings, and each row names mistakes that there are.
#[test]
fn each_ordering_names_the_mistakes_that_weaken_it() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let [list, seeded] =
        ["sync/orderings.md", "seeded.rs"].map(|path| fs::read_to_string(sources.join(path)).unwrap());
    let rows = list.lines().filter(|line| line.starts_with("| `"));
    let mut named: Vec<&str> =
        rows.flat_map(|row| row.split('|').nth(6).unwrap().split(',')).map(str::trim).collect();
    named.retain(|name| *name != "none");
    let declared = seeded.lines().filter(|line| line.contains(" Loom \""));
    let mut mistakes: Vec<&str> = declared.map(|line| line.split('"').nth(1).unwrap()).collect();
    for names in [&mut named, &mut mistakes] {
        names.sort_unstable();
        names.dedup();
    }
    assert_eq!(named, mistakes);
}
