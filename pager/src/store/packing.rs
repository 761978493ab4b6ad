//! Writes and reads the packs of a template's working set.

use super::pack::{PACK, Pack};
use super::upload::Upload;
use super::{StoreError, Template, WorkingSet};
use crate::cache::{Cache, Chunk, Source};
use crate::compute_limit::ComputeLimit;
use crate::uffd::PAGE;
use std::ops::Range;

impl Template {
    /// Returns the pages that the packs of a working set have, in their order. Each range is in one chunk. The packs have
    /// the content of the base, also for the pages of an overlay.
    pub(crate) fn packed(&self, set: &WorkingSet) -> Vec<Range<usize>> {
        let (mut ranges, end, base) = (Vec::new(), (self.size() / PAGE as u64) as usize, self.base());
        for run in set.runs() {
            let mut run = run.start.min(end)..run.end.min(end);
            while !run.is_empty() {
                let part = run.start..run.end.min(base.chunk_of(run.start).end);
                run.start = part.end;
                if !base.is_zero(part.start) {
                    ranges.push(part);
                }
            }
        }
        ranges
    }

    /// Returns the content of a pack, through the cache. May sleep.
    pub(crate) fn pack(
        &self,
        pack: &Pack,
        cache: &Cache,
        compute_limit: Option<&ComputeLimit>,
    ) -> Result<(Chunk, Source), StoreError> {
        let library = self.library().ok_or_else(|| StoreError::Missing(pack.key()))?;
        let length = pack.pages * PAGE;
        let read = || self.object(library, &pack.key(), pack.name, length, compute_limit);
        let found = cache.get(pack.name.hash, read)?;
        // The same content may be cached as a chunk; its length follows from its hash.
        debug_assert_eq!(found.0.len(), length);
        Ok(found)
    }

    /// As [`Template::keep_working_set`], with packs of its pages in the store. `cache` may have some of its chunks.
    ///
    /// # Errors
    /// As of [`Template::keep_working_set`]. If a chunk cannot be read and a retry does not help, the set has no packs.
    pub(crate) fn keep_packed(
        &self,
        set: &WorkingSet,
        cache: &Cache,
        compute_limit: &ComputeLimit,
    ) -> Result<(), StoreError> {
        let Some(library) = self.library() else { return self.keep_working_set(set.clone()) };
        let upload = Upload::register(library)?;
        match self.base().write_packs(&upload, set, cache, compute_limit) {
            Ok(packs) => self.keep_working_set(set.clone().with_packs(packs)),
            Err(error) if error.may_pass() => Err(error),
            Err(_) => self.keep_working_set(set.clone()),
        }
        // The upload ends here, when the set protects its packs.
    }

    fn write_packs(
        &self,
        upload: &Upload,
        set: &WorkingSet,
        cache: &Cache,
        compute_limit: &ComputeLimit,
    ) -> Result<Vec<Pack>, StoreError> {
        let (mut packs, mut content) = (Vec::new(), Vec::with_capacity(PACK * PAGE));
        let mut write = |content: &mut Vec<u8>| {
            let name = upload.pack(content, compute_limit)?;
            packs.push(Pack { name, pages: content.len() / PAGE });
            content.clear();
            Ok::<_, StoreError>(())
        };
        for pages in self.packed(set) {
            let first = self.chunk_of(pages.start).start;
            let Some((chunk, _)) = self.content(pages.start, cache, Some(compute_limit))? else { continue };
            for page in pages {
                content.extend_from_slice(&chunk[(page - first) * PAGE..][..PAGE]);
                if content.len() == PACK * PAGE {
                    write(&mut content)?;
                }
            }
        }
        if !content.is_empty() {
            write(&mut content)?;
        }
        Ok(packs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::pack::PACKS;
    use crate::store::{Entry, Folder, Library, PATIENCE, Store, Version};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A store that fails after so many writes.
    struct Ends(Folder, AtomicUsize);

    impl Ends {
        fn count(&self, key: &str) -> Result<(), StoreError> {
            let left = self.1.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            // An error that is not retried.
            left.map(|_| ()).map_err(|_| StoreError::Size(format!("{key}: the host is dead")))
        }
    }

    impl Store for Ends {
        fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError> {
            self.0.read(key, most)
        }
        fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
            self.count(key)?;
            self.0.put(key, bytes)
        }
        fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
            self.count(key)?;
            self.0.put_if(key, bytes, before)
        }
        fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
            self.0.entries(kind)
        }
        fn delete(&self, key: &str) -> Result<(), StoreError> {
            self.0.delete(key)
        }
    }

    /// A template of 1,024 pages, each with its number, in chunks of 8. The chunks 0, 2, 4 … are zeros.
    fn template(name: &str) -> (PathBuf, Library) {
        let folder = std::env::temp_dir().join(format!("slat-pager-pack-{name}-{}", std::process::id()));
        let library = Library::new(Folder::open(&folder).unwrap());
        let image: Vec<u8> = (0..1024).flat_map(content).collect();
        library.snapshot("a", &*image, image.len() as u64, 8 * PAGE).unwrap();
        (folder, library)
    }

    fn content(page: usize) -> Vec<u8> {
        let number = if (page / 8).is_multiple_of(2) { 0 } else { page as u16 };
        number.to_le_bytes().repeat(PAGE / 2)
    }

    fn keep(template: &Template, set: &WorkingSet) -> Result<(), StoreError> {
        template.keep_packed(set, &Cache::new(0), &ComputeLimit::default())
    }

    fn packs(folder: &Path) -> usize {
        Folder::open(folder).unwrap().list(PACKS).unwrap().len()
    }

    #[test]
    fn packs_have_the_pages_of_the_set_in_its_order() {
        let (folder, library) = template("order");
        let (open, set) = (library.open("a").unwrap(), WorkingSet::of_faults((0..1024).rev()));
        keep(&open, &set).unwrap();
        let set = library.open("a").unwrap().working_set().unwrap();
        let sizes: Vec<_> = set.packs().iter().map(|pack| pack.pages).collect();
        assert_eq!(sizes, [256, 256], "512 pages are in chunks of zeros");
        let (cache, mut all) = (Cache::new(0), Vec::new());
        for pack in set.packs() {
            all.extend_from_slice(&open.pack(pack, &cache, None).unwrap().0);
        }
        let pages: Vec<usize> = open.packed(&set).into_iter().flatten().collect();
        assert!(pages.len() == 512 && pages[0] == 1024 - 64 + 8, "the last block was touched first");
        assert!(pages.iter().zip(all.chunks(PAGE)).all(|(page, bytes)| *bytes == content(*page)));
        assert!(library.verify("a").unwrap().damaged.is_empty());
        std::fs::write(folder.join(set.packs()[1].key()), "{").unwrap();
        assert!(library.verify("a").unwrap().damaged[0].contains("pack 1 of a"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn collections_keep_the_packs_that_a_set_or_a_host_needs() {
        let (folder, library) = template("gc");
        keep(&library.open("a").unwrap(), &WorkingSet::of_faults(0..100)).unwrap();
        let gc = || library.gc(PATIENCE).map(|_| packs(&folder)).unwrap();
        assert_eq!((gc(), gc()), (1, 1), "the set needs it");
        let open = library.open("a").unwrap();
        library.forget("a").unwrap();
        assert_eq!((gc(), gc()), (1, 1), "a host needs it");
        drop(open);
        assert_eq!(gc(), 0);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_host_that_dies_while_it_packs_leaves_no_set_and_no_packs() {
        for writes in 0..7 {
            let (folder, library) = template("dies");
            let dying = Ends(Folder::open(&folder).unwrap(), AtomicUsize::new(writes + 1));
            let open = Library::new(dying).open("a").unwrap();
            let is_kept = keep(&open, &WorkingSet::of_faults(0..1024)).is_ok();
            // As if the process had been killed: nothing is given back.
            std::mem::forget(open);
            let set = library.open("a").unwrap().working_set();
            // The lease, the catalog, two packs, the set, and the lease once more.
            assert_eq!((is_kept, set.is_some()), (writes >= 6, writes >= 6), "after {writes} writes");
            assert!(set.unwrap_or_default().packs().iter().all(|pack| folder.join(pack.key()).exists()));
            library.gc(std::time::Duration::ZERO).unwrap();
            library.gc(std::time::Duration::ZERO).unwrap();
            assert_eq!(packs(&folder), if is_kept { 2 } else { 0 }, "after {writes} writes");
            assert!(library.verify("a").unwrap().damaged.is_empty());
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
