//! The catalog lists the templates of a store, and the uploads under way. It is one object, and hosts change it only by
//! conditional writes.
//!
//! The hosts of a fleet agree through it. An upload gets its epoch from the catalog, and becomes a template by it. A
//! collection begins an epoch in it, and gives up uploads of dead hosts. So each host sees the changes of the others in
//! one order, without a clock.

use super::chunk::Name;
use super::{Hash, Store, StoreError, is_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub const KEY: &str = "catalog";
/// Most bytes of the catalog: some 100,000 templates.
pub const MOST: usize = 16 << 20;
/// Number of tries of a change while other hosts change the catalog, or while the store does not answer.
const TRIES: u32 = 12;

/// Contents of the catalog.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Grows with each change, so no two states have the same text.
    pub serial: u64,
    /// Grows with each collection. Objects of an upload have this number in their names.
    pub epoch: u32,
    /// The manifest of each template.
    pub templates: BTreeMap<String, String>,
    /// Manifests that no template has any more, with the change that removed them. Earlier uploads may rely on their
    /// chunks.
    pub retired: BTreeMap<String, u64>,
    /// Uploads under way.
    pub uploads: BTreeMap<String, Active>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

/// An upload that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Active {
    /// The lease that its host renews.
    pub lease: String,
    pub epoch: u32,
    /// The change that began it.
    pub began: u64,
}

/// Result of an edit.
pub enum Edit<T> {
    /// Write the new state.
    Write(T),
    /// The state is already right.
    Keep(T),
}

#[derive(Clone)]
pub struct Catalog(pub Arc<dyn Store>);

impl Catalog {
    pub fn read(&self) -> Result<State, StoreError> {
        match self.0.get(KEY, MOST) {
            Err(StoreError::Missing(_)) => Ok(State::new()),
            bytes => State::parse(&bytes?).map_err(with_cure),
        }
    }

    /// Changes the catalog. `edit` gets the state, and whether an earlier try may have been written: after an error the
    /// store may still have done the write.
    pub fn change<T>(
        &self,
        mut edit: impl FnMut(&mut State, bool) -> Result<Edit<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let (mut maybe, mut last) = (false, StoreError::Busy(format!("{KEY} changes all the time")));
        for tries in 0..TRIES {
            // A change that loses to another one has seen progress. The pauses of changes that collide again and again
            // differ.
            if tries > 2 || maybe {
                let spread = u64::from(std::process::id() ^ tries.wrapping_mul(2_654_435_761)) % 16;
                std::thread::sleep(Duration::from_millis((1 << tries.min(8)) + spread));
            }
            let read = match self.0.read(KEY, MOST) {
                Err(StoreError::Missing(_)) => Ok((State::new(), None)),
                Err(error) => Err(error),
                Ok((bytes, version)) => State::parse(&bytes).map(|state| (state, Some(version))),
            };
            let read = read.map_err(with_cure);
            let (mut state, version) = match read {
                Err(error) if error.may_pass() => {
                    last = error;
                    continue;
                }
                read => read?,
            };
            let result = match edit(&mut state, maybe)? {
                Edit::Keep(result) => return Ok(result),
                Edit::Write(result) => result,
            };
            state.serial += 1;
            match self.0.put_if(KEY, &state.print(), version.as_ref()) {
                Ok(true) => return Ok(result),
                Ok(false) => {}
                Err(error) if error.may_pass() => (maybe, last) = (true, error),
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}

/// Returns an error of the catalog with the command that repairs it.
fn with_cure(error: StoreError) -> StoreError {
    match error {
        StoreError::Damaged { key, what } => {
            StoreError::Damaged { key, what: format!("{what}; `slat-pager fsck --repair` rebuilds it") }
        }
        error => error,
    }
}

impl State {
    /// Makes the state of a new store.
    pub fn new() -> Self {
        Self { version: 1, ..Self::default() }
    }

    /// Returns the number of the change under way.
    pub fn change(&self) -> u64 {
        self.serial + 1
    }

    /// Gives a template this manifest, or removes it.
    pub fn set(&mut self, template: &str, manifest: Option<&str>) {
        let before = match manifest {
            Some(manifest) => self.templates.insert(template.into(), manifest.into()),
            None => self.templates.remove(template),
        };
        if let Some(before) = before.filter(|before| manifest != Some(before)) {
            self.retired.insert(before, self.change());
        }
        self.forget_retired();
    }

    /// Forgets retired manifests on which no upload can rely.
    pub fn forget_retired(&mut self) {
        let first = self.uploads.values().map(|upload| upload.began).min();
        self.retired.retain(|_, at| first.is_some_and(|first| first < *at));
    }

    /// Begins a collection: gives up the lost uploads, and begins an epoch. Returns the number of given-up uploads.
    pub fn begin_collection(&mut self, is_lost: impl Fn(&String, &Active) -> bool) -> usize {
        let before = self.uploads.len();
        self.uploads.retain(|id, upload| !is_lost(id, upload));
        self.epoch += 1;
        self.forget_retired();
        before - self.uploads.len()
    }

    /// Returns the epoch below which objects belong to templates or are garbage: no upload under way writes any of
    /// them.
    pub fn floor(&self) -> u32 {
        self.uploads.values().map(|upload| upload.epoch).fold(self.epoch, u32::min)
    }

    /// Returns the manifests of templates, and those on which uploads may rely.
    pub fn manifests(&self) -> impl Iterator<Item = &String> {
        self.templates.values().chain(self.retired.keys())
    }

    pub fn print(&self) -> Vec<u8> {
        let mut text = Self { sum: None, ..self.clone() };
        text.sum = Some(text.sum());
        serde_json::to_vec(&text).expect("numbers and strings are JSON")
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |what: String| StoreError::Damaged { key: KEY.into(), what };
        let mut state: Self = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if state.version != 1 {
            return Err(damaged(format!("version {} is unknown", state.version)));
        }
        if state.sum.take() != Some(state.sum()) {
            return Err(damaged("its sum is wrong".into()));
        }
        // The next change, or the next collection, would have no number.
        if state.serial == u64::MAX || state.epoch == u32::MAX {
            return Err(damaged("its numbers have come to their end".into()));
        }
        if let Some(wrong) = state.templates.keys().find(|name| !is_name(name)) {
            return Err(damaged(format!("{wrong:?} is no template's name")));
        }
        if let Some(wrong) = state.manifests().find(|name| Name::parse(name).is_none()) {
            return Err(damaged(format!("{wrong:?} is no manifest")));
        }
        Ok(state)
    }

    fn sum(&self) -> String {
        Hash::of(&serde_json::to_vec(self).expect("numbers and strings are JSON")).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalog_comes_back_and_a_damaged_one_does_not() {
        let name = Name { hash: Hash::of(b"a"), epoch: 2 }.to_string();
        let mut state = State { version: 1, epoch: 2, ..State::default() };
        state.templates.insert("a".into(), name);
        let text = String::from_utf8(state.print()).unwrap();
        assert_eq!(State::parse(text.as_bytes()).unwrap(), state);
        for (from, to) in [("\"epoch\":2", "\"epoch\":3"), ("\"a\"", "\"b\""), ("}", "")] {
            let edited = text.replacen(from, to, 1);
            assert!(edited != text && State::parse(edited.as_bytes()).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn manifests_that_an_upload_may_rely_on_stay_until_it_ends() {
        let mut state = State::default();
        let upload = |epoch, began| Active { lease: "l".into(), epoch, began };
        state.set("a", Some("old"));
        state.serial = 4;
        state.uploads.insert("u".into(), upload(1, 4));
        state.epoch = 3;
        state.set("a", Some("new"));
        assert!(state.retired.contains_key("old") && state.floor() == 1);
        state.uploads.insert("later".into(), upload(3, 9));
        state.uploads.remove("u");
        state.forget_retired();
        assert!(state.retired.is_empty() && state.floor() == 3);
        state.set("a", None);
        assert_eq!(state.retired.len(), 0, "the upload began after change 5");
    }
}
