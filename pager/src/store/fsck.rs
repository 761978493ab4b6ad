//! Checks a store, and rebuilds a catalog that is damaged or lost.

use super::catalog::{KEY, MOST, State};
use super::chunk::Name;
use super::library::Library;
use super::names::{self, NAMES};
use super::pack::PACKS;
use super::{Store, StoreError, is_name};
use std::collections::{BTreeMap, BTreeSet};

/// Distance to the last known serial and epoch of a catalog that was lost. Later ones may have been lost with it.
const DISTANCE: u32 = 1 << 16;

/// Result of [`Library::fsck`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Fsck {
    /// Number of templates.
    pub templates: usize,
    /// Faults that were found and are still there, one line each.
    pub problems: Vec<String>,
    /// Repairs, one line each.
    pub repairs: Vec<String>,
}

impl Library {
    /// Checks the catalog, and that each template's manifest, chunks and packs are in the store. Reads no chunk;
    /// [`Library::verify`] does.
    ///
    /// With `repair`, it rebuilds a damaged or lost catalog from the names and the manifests. A manifest without a name
    /// becomes the template `recovered.HASH`, with the first digits of its hash; it may be an earlier version, or that
    /// of a removed template. Uploads under way are given up. It also removes working sets that cannot be used, and
    /// writes missing names.
    ///
    /// # Errors
    /// An error of the store, or [`StoreError::Busy`] if another host changed the catalog meanwhile.
    pub fn fsck(&self, repair: bool) -> Result<Fsck, StoreError> {
        let mut fsck = Fsck::default();
        let read = match self.store.read(KEY, MOST) {
            Ok((bytes, version)) => State::parse(&bytes).map_err(|error| (error, Some(version))),
            Err(error) if error.may_pass() => return Err(error),
            Err(error @ StoreError::Missing(_)) if !self.store.list("manifests")?.is_empty() => {
                Err((error, None))
            }
            Err(StoreError::Missing(_)) => return Ok(fsck),
            Err(error) => return Err(error),
        };
        let state = match read {
            Ok(state) => state,
            Err((error, version)) => {
                let state = self.rebuilt()?;
                let found = format!("{error}; {} templates can be restored", state.templates.len());
                if !repair {
                    fsck.problems.push(found);
                } else if self.store.put_if(KEY, &state.print(), version.as_ref())? {
                    let names: Vec<_> = state.templates.keys().map(String::as_str).collect();
                    fsck.repairs.push(format!("{error}: restored {}", names.join(", ")));
                } else {
                    return Err(StoreError::Busy(format!("{KEY} has changed meanwhile")));
                }
                state
            }
        };
        fsck.templates = state.templates.len();
        let chunks: BTreeSet<String> = self.store.list("chunks")?.into_iter().collect();
        let packs: BTreeSet<String> = self.store.list(PACKS)?.into_iter().collect();
        for (template, manifest) in &state.templates {
            self.check_template(&mut fsck, (template, manifest), (&chunks, &packs), repair)?;
            let is_named = |(found, _): (String, u64)| found == *manifest;
            if !names::read(&*self.store, template)?.is_some_and(is_named)
                && self.has_still(template, Some(manifest))
            {
                let wrong = format!("{} does not have the manifest of the catalog", names::key(template));
                fsck.note(wrong, repair, || names::write(&*self.store, template, manifest, state.serial))?;
            }
        }
        for name in self.store.list(NAMES)?.iter().filter(|name| !state.templates.contains_key(*name)) {
            if self.has_still(name, None) {
                let wrong = format!("{} is of no template", names::key(name));
                fsck.note(wrong, repair, || names::delete(&*self.store, name))?;
            }
        }
        Ok(fsck)
    }

    /// Returns whether the catalog still says this of a template: another host may have added, replaced or removed it
    /// meanwhile.
    fn has_still(&self, template: &str, manifest: Option<&String>) -> bool {
        let read = self.store.read(KEY, MOST).ok();
        let state = read.and_then(|(bytes, _)| State::parse(&bytes).ok());
        state.is_none_or(|state| state.templates.get(template) == manifest)
    }

    fn check_template(
        &self,
        fsck: &mut Fsck,
        (template, manifest): (&str, &str),
        (chunks, packs): (&BTreeSet<String>, &BTreeSet<String>),
        repair: bool,
    ) -> Result<(), StoreError> {
        let manifest = match self.manifest(manifest) {
            Ok(manifest) => manifest,
            Err(error) if error.may_pass() => return Err(error),
            Err(error) => {
                fsck.problems.push(format!("{template} is lost: {error}; `rm {template}` removes it"));
                return Ok(());
            }
        };
        let mut names: BTreeSet<String> = manifest.names().map(|name| name.to_string()).collect();
        if let Some(overlay) = &manifest.overlay {
            match self.manifest(&overlay.version) {
                Ok(base) => names.extend(base.names().map(|name| name.to_string())),
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => {
                    fsck.problems
                        .push(format!("{template} has lost its base: {error}; `rm {template}` removes it"));
                    return Ok(());
                }
            }
        }
        let missing = names.difference(chunks).count();
        if missing > 0 {
            let all = names.len();
            fsck.problems.push(format!("{template}: {missing} of {all} chunks are not in the store"));
        }
        let wrong = match self.working_set(template, &manifest) {
            Err(error) if error.may_pass() => return Err(error),
            Err(error) => Some(error.to_string()),
            Ok(set) => {
                let set = set.unwrap_or_default();
                let missing =
                    set.packs().iter().filter(|pack| !packs.contains(&pack.name.to_string())).count();
                let all = set.packs().len();
                (missing > 0).then(|| format!("{template}: {missing} of {all} packs are not in the store"))
            }
        };
        match wrong {
            Some(wrong) => fsck.note(wrong, repair, || self.forget(template)),
            None => Ok(()),
        }
    }

    /// Returns a catalog of the names and the manifests that are in the store and whole.
    fn rebuilt(&self) -> Result<State, StoreError> {
        let (mut state, mut manifests) = (State::new(), BTreeMap::new());
        for kind in ["chunks", PACKS, "manifests"] {
            for name in self.store.list(kind)?.iter().filter_map(|name| Name::parse(name)) {
                state.epoch = state.epoch.max(name.epoch);
                if kind == "manifests" {
                    match self.manifest(&name.to_string()) {
                        Err(error) if error.may_pass() => return Err(error),
                        manifest => _ = manifest.is_ok().then(|| manifests.insert(name.to_string(), name)),
                    }
                }
            }
        }
        let mut named = BTreeSet::new();
        for template in self.store.list(NAMES)?.into_iter().filter(|name| is_name(name)) {
            if let Some((manifest, change)) = names::read(&*self.store, &template)?
                && manifests.contains_key(&manifest)
            {
                state.serial = state.serial.max(change);
                named.insert(manifest.clone());
                state.templates.insert(template, manifest);
            }
        }
        for (manifest, name) in manifests.into_iter().filter(|(manifest, _)| !named.contains(manifest)) {
            let digits = &name.hash.to_string()[..12];
            state.templates.insert(format!("recovered.{digits}.{}", name.epoch), manifest);
        }
        let full =
            || StoreError::Damaged { key: KEY.into(), what: "its numbers have come to their end".into() };
        state.serial = state.serial.checked_add(DISTANCE.into()).ok_or_else(full)?;
        state.epoch = state.epoch.checked_add(DISTANCE).ok_or_else(full)?;
        Ok(state)
    }
}

impl Fsck {
    /// Makes a repair, or notes what is wrong.
    fn note(
        &mut self,
        wrong: String,
        repair: bool,
        make: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if repair {
            make()?;
            self.repairs.push(wrong);
        } else {
            self.problems.push(wrong);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Entry, Folder, PATIENCE, Version, WorkingSet};
    use std::fs;
    use std::sync::{Arc, Once};

    /// A store to which another host adds a template after the catalog was read, and before the names are listed.
    struct Adds {
        store: Arc<Folder>,
        other: Library,
        added: Once,
    }

    impl Store for Adds {
        fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError> {
            self.store.read(key, most)
        }

        fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
            self.store.put(key, bytes)
        }

        fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
            self.store.put_if(key, bytes, before)
        }

        fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
            self.added.call_once(|| _ = self.other.snapshot("b", &[2; 4096][..], 4096, 4096).unwrap());
            self.store.entries(kind)
        }

        fn delete(&self, key: &str) -> Result<(), StoreError> {
            self.store.delete(key)
        }
    }

    #[test]
    fn a_template_that_is_added_during_a_repair_keeps_its_name() {
        let folder = std::env::temp_dir().join(format!("slat-pager-fsck-adds-{}", std::process::id()));
        let store = Arc::new(Folder::open(&folder).unwrap());
        let other = Library::new(store.clone());
        other.snapshot("a", &[1; 4096][..], 4096, 4096).unwrap();
        let library = Library::new(Adds { store, other: other.clone(), added: Once::new() });
        assert_eq!(library.fsck(true).unwrap(), Fsck { templates: 1, ..Fsck::default() });
        assert_eq!(other.fsck(false).unwrap(), Fsck { templates: 2, ..Fsck::default() });
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_catalog_is_rebuilt_from_names_and_manifests() {
        let folder = std::env::temp_dir().join(format!("slat-pager-fsck-{}", std::process::id()));
        let library = Library::new(Folder::open(&folder).unwrap());
        for (name, byte) in [("a", 1), ("b", 2), ("old", 3), ("gone", 4)] {
            library.snapshot(name, &[byte; 4096][..], 4096, 4096).unwrap();
        }
        library.remove("gone").unwrap();
        library.gc(PATIENCE).unwrap();
        let fine = Fsck { templates: 3, ..Fsck::default() };
        assert_eq!(library.fsck(false).unwrap(), fine);
        // A store of an earlier version has no names, as after a crash before the name was written.
        fs::remove_file(folder.join("names/old")).unwrap();
        let before = State::parse(&fs::read(folder.join(KEY)).unwrap()).unwrap();
        for damage in [Some("{\"version\":1"), Some(""), None] {
            match damage {
                Some(text) => fs::write(folder.join(KEY), text).unwrap(),
                None => fs::remove_file(folder.join(KEY)).unwrap(),
            }
            if damage.is_some() {
                assert!(library.open("a").err().unwrap().to_string().contains("fsck --repair"));
                assert!(library.gc(PATIENCE).is_err(), "nothing is collected by a damaged catalog");
            }
            assert!(library.fsck(false).unwrap().problems[0].contains("3 templates can be restored"));
            assert_eq!(library.fsck(true).unwrap().problems, [""; 0]);
            let after = State::parse(&fs::read(folder.join(KEY)).unwrap()).unwrap();
            assert!(after.serial > before.serial && after.epoch > before.epoch);
        }
        let names = library.list().unwrap();
        assert!(names[..2] == ["a", "b"] && names[2].starts_with("recovered.") && names.len() == 3);
        assert_eq!(library.fsck(false).unwrap(), fine);
        library.gc(PATIENCE).unwrap();
        for name in names {
            assert!(library.verify(&name).unwrap().damaged.is_empty(), "{name}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_missing_is_reported_and_what_costs_nothing_is_repaired() {
        let folder = std::env::temp_dir().join(format!("slat-pager-fsck-missing-{}", std::process::id()));
        let library = Library::new(Folder::open(&folder).unwrap());
        for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
            library.snapshot(name, &[byte; 8192][..], 8192, 4096).unwrap();
        }
        let [a, b, c] = ["a", "b", "c"].map(|name| library.open(name).unwrap());
        fs::remove_file(folder.join(a.chunks()[0].unwrap().key())).unwrap();
        fs::write(folder.join("manifests").join(b.version()), "{").unwrap();
        let (set, limit) = (WorkingSet::of_faults([0]), crate::compute_limit::ComputeLimit::default());
        c.keep_packed(&set, &crate::cache::Cache::new(0), &limit).unwrap();
        fs::remove_dir_all(folder.join(PACKS)).unwrap();
        fs::write(folder.join("names/c"), "{}").unwrap();
        let found = library.fsck(false).unwrap().problems;
        let parts = ["a: 1 of 1 chunks", "b is lost", "c: 1 of 1 packs", "names/c does not have"];
        assert!(
            found.len() == 4 && parts.iter().zip(&found).all(|(part, line)| line.contains(part)),
            "{found:?}"
        );
        let after = library.fsck(true).unwrap();
        assert_eq!((after.problems.len(), after.repairs.len()), (2, 2), "{after:?}");
        fs::remove_dir_all(folder).unwrap();
    }
}
