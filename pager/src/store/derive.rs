//! Derives a template from another one: a snapshot of a guest keeps most of the chunks.

use super::manifest::Manifest;
use super::upload::Upload;
use super::{Library, StoreError, Template};
use crate::compute_limit::ComputeLimit;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Library {
    /// Removes the templates called `base.N`, N a number, except those with the `keep` highest numbers. Returns the
    /// names of the removed ones.
    ///
    /// A snapshot lists all of its chunks, so it does not need the removed ones. A later [`Library::gc`] deletes the
    /// chunks.
    pub fn retain(&self, base: &str, keep: usize) -> Result<Vec<String>, StoreError> {
        let number = |name: &String| name.strip_prefix(base)?.strip_prefix('.')?.parse::<u64>().ok();
        let mut found: Vec<(u64, String)> =
            self.list()?.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
        found.sort();
        found.truncate(found.len().saturating_sub(keep));
        let names: Vec<String> = found.into_iter().map(|(_, name)| name).collect();
        names.iter().try_for_each(|name| self.remove(name))?;
        Ok(names)
    }
}

impl Template {
    /// Makes the template `name`: this one with new content in these chunks, which `read` returns, several at a time.
    /// Also returns the number of written chunks.
    pub(crate) fn derive<E: From<StoreError> + Send>(
        &self,
        name: &str,
        changed: &[usize],
        compute_limit: &ComputeLimit,
        read: impl Fn(usize) -> Result<Vec<u8>, E> + Sync,
    ) -> Result<(Self, usize), E> {
        let missing = || StoreError::Missing(format!("{}: an image has no chunks", self.name()));
        let library = self.library().ok_or_else(missing)?;
        super::library::check_name(name)?;
        // This template's chunks stay in the store while it is open, so while this runs.
        let mut chunks: Vec<_> = (0..self.chunks().len()).map(|index| self.chunk_name(index)).collect();
        let upload = Upload::begin(library)?;
        let (next, names, failed) = (AtomicUsize::new(0), Mutex::new(&mut chunks), Mutex::new(None));
        let store = || {
            while let Some(index) = changed.get(next.fetch_add(1, Ordering::Relaxed)) {
                match read(*index).and_then(|content| Ok(upload.chunk(&content, compute_limit)?)) {
                    Ok(name) => names.lock()[*index] = name,
                    Err(error) => {
                        next.store(changed.len(), Ordering::Relaxed);
                        failed.lock().get_or_insert(error);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..library.writers.min(changed.len()) {
                // If the thread cannot be started, there are fewer.
                _ = std::thread::Builder::new().spawn_scoped(scope, store);
            }
            store();
        });
        if let Some(error) = failed.into_inner() {
            return Err(error);
        }
        let written = upload.written();
        // The new memory does not match a machine's state.
        let (size, chunk) = (self.size(), self.chunk_size());
        upload.publish(name, &Manifest { size, chunk, chunks, machine: None })?;
        Ok((library.open(name)?, written))
    }
}
