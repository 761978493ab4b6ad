//! Opens and verifies templates.

use super::catalog::Catalog;
use super::chunk::Name;
use super::lease::Pin;
use super::library::check_name;
use super::manifest::Manifest;
use super::overlay::Overlay;
use super::working_set::{self, MOST_WORKING_SET};
use super::{Hash, Library, StoreError, Template, Verified, WorkingSet, chunk};
use crate::uffd::PAGE;
use std::collections::{BTreeMap, BTreeSet};

impl Library {
    /// Opens a template. Its chunks stay in the store while it is open, even if it is replaced or removed.
    pub fn open(&self, name: &str) -> Result<Template, StoreError> {
        check_name(name)?;
        let missing = || StoreError::Missing(format!("templates/{name}"));
        let catalog = Catalog(self.store.clone());
        let mut found = catalog.read()?.templates.remove(name).ok_or_else(missing)?;
        loop {
            // Write the pin first, then check the catalog; a collection does it in the opposite order.
            let pin = self.lease.pin(&found)?;
            let current = catalog.read()?.templates;
            let now = current.get(name).ok_or_else(missing)?;
            if *now != found {
                found.clone_from(now);
                continue;
            }
            return self.open_manifest(name, &found, pin, &current);
        }
    }

    /// Opens a template by its manifest. `current` has the manifests of the current versions of templates.
    fn open_manifest(
        &self,
        name: &str,
        version: &str,
        pin: Pin,
        current: &BTreeMap<String, String>,
    ) -> Result<Template, StoreError> {
        let manifest = self.manifest(version)?;
        let Some(overlaid) = manifest.overlay else {
            return self.open_chunks(name, version, manifest, pin, current);
        };
        let base = self.manifest(&overlaid.version)?;
        if base.overlay.is_some() || (base.size, base.chunk) != (manifest.size, manifest.chunk) {
            let what = format!("manifests/{} is not its base", overlaid.version);
            return Err(StoreError::Damaged { key: format!("manifests/{version}"), what });
        }
        let no_name = || StoreError::Name(overlaid.content.clone());
        let content = Name::parse(&overlaid.content).ok_or_else(no_name)?;
        let content = self.chunk(&content.key(), content, overlaid.count() * PAGE, None)?;
        // Its pin protects the base, too.
        let base = self.open_chunks(&overlaid.base, &overlaid.version, base, pin, current)?;
        Ok(Template::overlaid(name, version, base, Overlay::new(&overlaid, content)))
    }

    /// Opens a template that has chunks of its own.
    fn open_chunks(
        &self,
        name: &str,
        version: &str,
        manifest: Manifest,
        pin: Pin,
        current: &BTreeMap<String, String>,
    ) -> Result<Template, StoreError> {
        let is_current = current.get(name).is_some_and(|current| current == version);
        // A damaged working set counts as none: it has no effect on content.
        let set = match is_current.then(|| self.working_set(name, &manifest)) {
            Some(Err(error)) if error.may_pass() => return Err(error),
            set => set.and_then(Result::ok).flatten(),
        };
        let template = Template::new(name, version, manifest, self.clone(), pin);
        if let Some(set) = set {
            template.use_set(set)?;
        }
        if !is_current {
            // A record of it would replace that of the current version.
            template.record_none();
        }
        Ok(template)
    }

    /// Opens an earlier version of a template. This succeeds while a lease pins that version.
    pub(super) fn open_version(&self, name: &str, version: &str) -> Result<Template, StoreError> {
        check_name(name)?;
        if Name::parse(version).is_none() {
            return Err(StoreError::Name(version.into()));
        }
        let pin = self.lease.pin_of_guest(version);
        self.open_manifest(name, version, pin, &BTreeMap::new())
    }

    /// Reads and checks every chunk of a template, and its working set.
    pub fn verify(&self, name: &str) -> Result<Verified, StoreError> {
        let template = self.open(name)?;
        let (mut seen, mut damaged) = (BTreeSet::<Hash>::new(), Vec::new());
        let pages = template.chunk_size() / PAGE;
        for index in 0..template.chunks().len() {
            let Some(chunk) = template.chunk_name(index).filter(|name| seen.insert(name.hash)) else {
                continue;
            };
            let length = template.base().chunk_of(index * pages).len() * PAGE;
            match chunk::read(&*self.store, &chunk.key(), chunk, length) {
                Ok(_) => {}
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => damaged.push(format!("chunk {index} of {name}: {error}")),
            }
        }
        let base = template.base();
        match self.working_set(base.name(), &self.manifest(base.version())?) {
            Err(error) if error.may_pass() => return Err(error),
            Err(error) => damaged.push(error.to_string()),
            Ok(set) => damaged.extend(self.damaged_packs(name, &set.unwrap_or_default())?),
        }
        Ok(Verified { chunks: seen.len(), damaged })
    }

    /// Reads the packs of a working set. Returns the errors.
    fn damaged_packs(&self, name: &str, set: &WorkingSet) -> Result<Vec<String>, StoreError> {
        let mut damaged = Vec::new();
        for (index, pack) in set.packs().iter().enumerate() {
            match chunk::read(&*self.store, &pack.key(), pack.name, pack.pages * PAGE) {
                Ok(_) => {}
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => damaged.push(format!("pack {index} of {name}: {error}")),
            }
        }
        Ok(damaged)
    }

    pub(super) fn working_set(
        &self,
        name: &str,
        manifest: &Manifest,
    ) -> Result<Option<WorkingSet>, StoreError> {
        let key = working_set::key(name);
        match self.store.get(&key, MOST_WORKING_SET) {
            Err(StoreError::Missing(_)) => Ok(None),
            bytes => WorkingSet::parse(&key, manifest.identity(), &bytes?),
        }
    }
}

impl Template {
    /// Opens this version of the template, for a guest that began with it and continues.
    ///
    /// # Errors
    /// The image file has changed; or an error of the store.
    pub fn at(&self, version: &str) -> Result<Self, StoreError> {
        if version == self.version() {
            return Ok(self.clone());
        }
        let changed = || StoreError::Damaged {
            key: self.name().into(),
            what: "it has changed since the guest began with it".into(),
        };
        self.library().ok_or_else(changed)?.open_version(self.name(), version)
    }
}
