//! Collects chunks and manifests that nothing needs.
//!
//! A collection may run on any host, beside uploads and restores on others. Several may run at a time, and each may
//! stop at any point. It does these steps in order. First one change of the catalog gives up the uploads of hosts whose
//! leases have ended, and begins an epoch. Then it reads the leases. Then it deletes objects of epochs before the first
//! upload under way, unless a manifest of the catalog or of a lease names them, or for packs a working set or a lease. The
//! manifest of an overlay names that of its base. A host that opens a template writes its lease first, and then checks
//! that the catalog still has the template. So either the host or the collection sees the other.

use super::catalog::{Catalog, Edit, State};
use super::chunk::Name;
use super::lease::{LEASES, pinned};
use super::library::Library;
use super::pack::PACKS;
use super::{Entry, StoreError, seen};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Counters of [`Library::gc`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Gc {
    /// Chunks that a template, a host or an upload needs, or may need.
    pub kept: usize,
    /// Deleted chunks.
    pub removed: usize,
    /// Leases that have ended.
    pub ended: usize,
    /// Uploads of dead hosts.
    pub given_up: usize,
}

impl Library {
    /// Deletes the chunks that no template needs, that no host serves, and on which no upload relies. A lease that was
    /// not renewed between two collections, `patience` apart, has ended, and its host no longer serves its manifests. A
    /// manifest that cannot be read stops the collection before the first deletion.
    ///
    /// # Errors
    /// An error of the store, or [`StoreError::Busy`] if other hosts change the catalog again and again.
    pub fn gc(&self, patience: Duration) -> Result<Gc, StoreError> {
        let mut gc = Gc::default();
        let catalog = Catalog(self.store.clone());
        // An upload writes its lease first. So an upload whose lease is not listed has lost it.
        let uploads = catalog.read()?.uploads;
        // Written now, so its age is the store's clock.
        let _pin = self.lease.pin("")?;
        let leases = self.store.entries(LEASES)?;
        let own = self.lease.id();
        let ended = match leases.iter().find(|entry| entry.name == own) {
            Some(now) => seen::ended(&*self.store, &old(&leases, now, patience), now.modified, patience)?,
            None => BTreeSet::new(),
        };
        let state = catalog.change(|state, _| {
            gc.given_up += state.begin_collection(|id, upload| {
                let is_listed = leases.iter().any(|entry| entry.name == upload.lease);
                ended.contains(&upload.lease) || uploads.contains_key(id) && !is_listed
            });
            Ok(Edit::Write(state.clone()))
        })?;
        let mut manifests: BTreeSet<String> = state.manifests().cloned().collect();
        let mut packs = BTreeSet::new();
        for lease in self.store.list(LEASES)? {
            if !ended.contains(&lease) {
                let pinned = pinned(&*self.store, &lease)?;
                manifests.extend(pinned.manifests);
                packs.extend(pinned.packs);
            }
        }
        let (mut chunks, mut bases) = (BTreeSet::new(), BTreeSet::new());
        for name in &manifests {
            match self.manifest(name) {
                // A lease may pin a manifest that another collection has deleted; its host will see that.
                Err(StoreError::Missing(_)) if !state.manifests().any(|other| other == name) => {}
                manifest => {
                    let manifest = manifest?;
                    chunks.extend(manifest.names().map(|name| name.to_string()));
                    bases.extend(manifest.overlay.map(|overlay| overlay.version));
                }
            }
        }
        for name in bases.difference(&manifests) {
            chunks.extend(self.manifest(name)?.names().map(|name| name.to_string()));
        }
        manifests.extend(bases);
        let floor = state.floor();
        (gc.kept, gc.removed) = self.sweep("chunks", floor, &chunks)?;
        self.sweep("manifests", floor, &manifests)?;
        self.sweep_sets(&state)?;
        packs.extend(self.packs_of_sets(&state)?);
        self.sweep(PACKS, floor, &packs)?;
        // Such a host may have come back meanwhile.
        for lease in self.store.entries(LEASES)?.iter().filter(|lease| leases.contains(lease)) {
            if ended.contains(&lease.name) {
                self.store.delete(&format!("{LEASES}/{}", lease.name))?;
            }
        }
        gc.ended = ended.len();
        Ok(gc)
    }

    /// Returns the numbers of kept and of deleted objects.
    fn sweep(&self, kind: &str, floor: u32, needed: &BTreeSet<String>) -> Result<(usize, usize), StoreError> {
        let goes = |name: &String| {
            !needed.contains(name) && Name::parse(name).is_some_and(|name| name.epoch < floor)
        };
        let (rest, kept): (Vec<_>, Vec<_>) = self.store.list(kind)?.into_iter().partition(goes);
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let delete = || {
            while let Some(name) = rest.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.store.delete(&format!("{kind}/{name}")) {
                    next.store(rest.len(), Ordering::Relaxed);
                    failed.lock().get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.writers.min(rest.len()) {
                // Without it, there are fewer.
                _ = std::thread::Builder::new().spawn_scoped(scope, delete);
            }
            delete();
        });
        failed.into_inner().map_or(Ok((kept.len(), rest.len())), Err)
    }

    /// Returns the packs of the templates' working sets. A set that cannot be used needs none.
    fn packs_of_sets(&self, state: &State) -> Result<BTreeSet<String>, StoreError> {
        let mut packs = BTreeSet::new();
        let sets = self.store.list("sets")?;
        for name in sets.iter().filter(|name| state.templates.contains_key(*name)) {
            let manifest = self.manifest(&state.templates[name]);
            match manifest.and_then(|manifest| self.working_set(name, &manifest)) {
                Err(error) if error.may_pass() => return Err(error),
                set => {
                    let set = set.ok().flatten().unwrap_or_default();
                    packs.extend(set.packs().iter().map(|pack| pack.name.to_string()));
                }
            }
        }
        Ok(packs)
    }

    /// Deletes working sets of removed templates. If one is still needed, it is recorded again.
    fn sweep_sets(&self, state: &State) -> Result<(), StoreError> {
        let sets = self.store.list("sets")?;
        let rest = sets.iter().filter(|name| !state.templates.contains_key(*name));
        rest.into_iter().try_for_each(|name| self.store.delete(&format!("sets/{name}")))
    }
}

/// Returns the other leases that were written `patience` or more before `now`, the collector's.
fn old(leases: &[Entry], now: &Entry, patience: Duration) -> Vec<String> {
    let age = |entry: &&Entry| now.modified.duration_since(entry.modified).unwrap_or_default();
    let old = leases.iter().filter(|entry| entry.name != now.name && age(entry) >= patience);
    old.map(|entry| entry.name.clone()).collect()
}
