//! Names of templates, from which a lost catalog can be rebuilt.
//!
//! A manifest does not have its template's name, because templates of the same content share it. So each template also
//! has an object with its name, which only a repair reads.
//!
//! Format, version 1: the object `names/TEMPLATE` has the name of the manifest as JSON, with the number of the change of
//! the catalog, and a sum as in the catalog. It is written after the catalog. A crash between both leaves an earlier
//! name, or none, which `fsck` reports and repairs.

use super::chunk::Name;
use super::{Hash, Store, StoreError};
use serde::{Deserialize, Serialize};

/// Kind of these objects.
pub const NAMES: &str = "names";

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    manifest: String,
    change: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

/// Returns the key of a template's name.
pub fn key(template: &str) -> String {
    format!("{NAMES}/{template}")
}

/// Writes the name of a template. If this fails, [`Library::fsck`](super::Library::fsck) reports it.
pub fn write(store: &dyn Store, template: &str, manifest: &str, change: u64) -> Result<(), StoreError> {
    let mut text = Text { version: 1, manifest: manifest.into(), change, sum: None };
    text.sum = Some(sum(&text));
    store.put(&key(template), &serde_json::to_vec(&text).expect("numbers and strings are JSON"))
}

/// Deletes the name of a removed template.
pub fn delete(store: &dyn Store, template: &str) -> Result<(), StoreError> {
    store.delete(&key(template))
}

/// Returns the manifest in the name of a template, and the number of the change. `None`: it is missing or damaged.
pub fn read(store: &dyn Store, template: &str) -> Result<Option<(String, u64)>, StoreError> {
    match store.get(&key(template), 4096) {
        Err(error) if error.may_pass() => Err(error),
        bytes => Ok(bytes.ok().and_then(|bytes| parse(&bytes))),
    }
}

/// Parses the name of a template.
pub(crate) fn parse(bytes: &[u8]) -> Option<(String, u64)> {
    let mut text: Text = serde_json::from_slice(bytes).ok()?;
    let is_whole = text.version == 1 && text.sum.take() == Some(sum(&text));
    (is_whole && Name::parse(&text.manifest).is_some()).then_some((text.manifest, text.change))
}

/// Returns the hash of a name without its sum.
fn sum(text: &Text) -> String {
    Hash::of(&serde_json::to_vec(text).expect("numbers and strings are JSON")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Folder;

    #[test]
    fn a_name_comes_back_and_a_damaged_one_does_not() {
        let folder = std::env::temp_dir().join(format!("slat-pager-fsck-name-{}", std::process::id()));
        let store = Folder::open(&folder).unwrap();
        let manifest = Name { hash: Hash::of(b"a"), epoch: 7 }.to_string();
        write(&store, "a", &manifest, 5).unwrap();
        let text = String::from_utf8(store.get("names/a", 4096).unwrap()).unwrap();
        assert_eq!(parse(text.as_bytes()), Some((manifest, 5)));
        for (from, to) in [("5,", "6,"), (".7", ".8"), ("version\":1", "version\":2"), ("}", "")] {
            let edited = text.replacen(from, to, 1);
            assert!(edited != text && parse(edited.as_bytes()).is_none(), "{from} -> {to}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
