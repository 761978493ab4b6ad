//! Leases that collections have seen, to tell those of dead hosts from those that only look old.
//!
//! A lease looks old if its host is dead, or if the store's clock has jumped. A live host renews its lease, and each
//! renewal changes the lease's content. So a collection that finds an old lease notes its content. A later collection
//! ends the lease if it is old and the noted content is the same after the patience of the collection. One jump of the
//! clock ends no lease of a live host. Two jumps must come within one renewal to do so.
//!
//! Format, version 1: the object `seen` has the notes as JSON. It may be lost or damaged: then leases end later.

use super::lease::mark;
use super::{Hash, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const KEY: &str = "seen";
const MOST: usize = 16 << 20;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Text {
    version: u32,
    leases: BTreeMap<String, Note>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Hash of the lease's content.
    mark: String,
    /// Time of the note on the store's clock, in seconds since 1970.
    at: u64,
}

/// Returns those of the old leases that have ended, and notes the others. `now` is the time on the store's clock.
pub fn ended(
    store: &dyn Store,
    old: &[String],
    now: SystemTime,
    patience: Duration,
) -> Result<BTreeSet<String>, StoreError> {
    if old.is_empty() {
        return Ok(BTreeSet::new());
    }
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let before = match store.get(KEY, MOST) {
        Err(error) if error.may_pass() => return Err(error),
        bytes => bytes.map(|bytes| parse(&bytes)).unwrap_or_default(),
    };
    let (mut ended, mut after) = (BTreeSet::new(), Text { version: 1, ..Text::default() });
    for lease in old {
        // Otherwise the host has given it back.
        let Some(mark) = mark(store, lease)? else { continue };
        let note = Note { mark: mark.to_string(), at: now };
        let note = before.leases.get(lease).filter(|before| before.mark == note.mark).unwrap_or(&note);
        if now.saturating_sub(note.at) >= patience.as_secs() {
            ended.insert(lease.clone());
        }
        after.leases.insert(lease.clone(), note.clone());
    }
    if after != before {
        store.put(KEY, &serde_json::to_vec(&after).expect("numbers and strings are JSON"))?;
    }
    Ok(ended)
}

/// Returns no notes if the object is damaged.
fn parse(bytes: &[u8]) -> Text {
    let text: Text = serde_json::from_slice(bytes).unwrap_or_default();
    if text.version == 1 && text.leases.values().all(|note| Hash::parse(&note.mark).is_some()) {
        text
    } else {
        Text::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Folder, Library, PATIENCE};
    use std::fs::File;

    /// Makes each object of a folder this much older.
    fn age(folder: &std::path::Path, kind: &str, time: Duration) {
        for entry in std::fs::read_dir(folder.join(kind)).unwrap() {
            let file = File::options().write(true).open(entry.unwrap().path()).unwrap();
            let then = file.metadata().unwrap().modified().unwrap() - time;
            file.set_modified(then).unwrap();
        }
    }

    #[test]
    fn a_lease_that_a_clock_jump_makes_old_has_not_ended() {
        let folder = std::env::temp_dir().join(format!("slat-pager-seen-{}", std::process::id()));
        let library = |host| Library::new(Folder::open(&folder).unwrap()).numbered(host);
        let (host, other) = (library(1), library(2));
        host.snapshot("a", &[7; 4096][..], 4096, 4096).unwrap();
        let open = host.open("a").unwrap();
        other.remove("a").unwrap();
        other.gc(PATIENCE).unwrap();
        // The store's clock jumps.
        age(&folder, "leases", PATIENCE * 2);
        for _ in 0..2 {
            assert_eq!(other.gc(PATIENCE).unwrap().removed, 0);
        }
        // Later the lease looks old once more, but it was renewed meanwhile.
        let pin = host.lease.pin("").unwrap();
        age(&folder, "leases", PATIENCE * 2);
        let now = SystemTime::now() + PATIENCE * 2;
        let old = [host.lease.id()];
        let store = Folder::open(&folder).unwrap();
        assert!(ended(&store, &old, now, PATIENCE).unwrap().is_empty(), "its content is another one");
        // The control: without a renewal it has ended.
        assert!(ended(&store, &old, now + PATIENCE / 2, PATIENCE).unwrap().is_empty());
        assert_eq!(ended(&store, &old, now + PATIENCE, PATIENCE).unwrap().len(), 1);
        assert_eq!(other.gc(Duration::ZERO).unwrap().removed, 1, "an operator may have no patience");
        drop((open, pin));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_notes_are_none() {
        let note = r#"{"version":1,"leases":{"a":{"mark":"0","at":0}}}"#;
        for text in ["", "{}", "[", r#"{"version":2,"leases":{}}"#, note] {
            assert_eq!(parse(text.as_bytes()), Text::default(), "{text}");
        }
    }
}
