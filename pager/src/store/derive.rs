//! Derives a template from another one: an overlay replaces some pages, and a snapshot of a guest keeps most of the chunks.

use super::library::check_name;
use super::manifest::{Manifest, Overlaid};
use super::overlay::{Overlay, Patched};
use super::upload::Upload;
use super::{Library, StoreError, Template};
use crate::compute_limit::ComputeLimit;
use crate::uffd::PAGE;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const BYTES: u64 = PAGE as u64;

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

impl Library {
    /// Makes the template `name` as an overlay: the template `base` with other bytes at some offsets of its image. Where
    /// two patches have the same byte, the later one counts. A patch need not be in whole pages: the rest of its first and
    /// last page is copied from the base, and nothing else is. An overlay of an overlay has the pages of both.
    ///
    /// The overlay stays as it is when the base is replaced or removed.
    ///
    /// ```
    /// # use slat_pager::*;
    /// # let folder = std::env::temp_dir().join(format!("slat-pager-doc-overlay-{}", std::process::id()));
    /// let library = Library::new(Folder::open(&folder)?);
    /// library.snapshot("debian", &[0; 1 << 20][..], 1 << 20, 64 << 10)?;
    /// library.overlay("debian", &[(0x1234, b"guest-7".to_vec())], "debian.7")?;
    /// assert_eq!(library.open("debian.7")?.overlay(), Some(("debian", 1)));
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Size`]: a patch is empty or not in the guest's memory, or all patches have more than 512 pages.
    /// [`StoreError::Name`]: both have the same name. Or those of [`Library::open`] and [`Library::snapshot`].
    pub fn overlay(&self, base: &str, patches: &[(u64, Vec<u8>)], name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        if base == name {
            return Err(StoreError::Size(format!(
                "{name} cannot be an overlay of itself: give it another name"
            )));
        }
        // Registered first. If the base is removed from now on, its chunks stay until the upload ends.
        let upload = Upload::register(self)?;
        let below = self.open(base)?;
        let memory = below.machine().map_or(below.size(), |machine| machine.memory);
        let mut patched = Patched::default();
        let read = |page: usize| below.read(page as u64 * BYTES..(page as u64 + 1) * BYTES);
        for page in below.layer().into_iter().flat_map(Overlay::pages) {
            patched.put(page as u64 * BYTES, &read(page)?, read)?;
        }
        for (offset, bytes) in patches {
            if bytes.is_empty() {
                return Err(StoreError::Size(format!("the patch at {offset:#x} is empty")));
            }
            let end = offset.checked_add(bytes.len() as u64);
            if end.is_none_or(|end| end > memory) {
                let what = format!(
                    "{} bytes at {offset:#x}: the memory of {base} has {memory:#x} bytes",
                    bytes.len()
                );
                return Err(StoreError::Size(what));
            }
            patched.put(*offset, bytes, read)?;
        }
        let (pages, content) = patched.finish();
        if pages.is_empty() {
            return Err(StoreError::Size("an overlay without bytes".into()));
        }
        let content = upload.page_content(&content)?.to_string();
        let (base, version) = (below.base().name().into(), below.base().version().into());
        let overlay = Some(Overlaid { base, version, pages, content });
        let (size, chunk) = (below.size(), below.chunk_size());
        upload.publish(name, &Manifest { size, chunk, chunks: Vec::new(), machine: None, overlay })
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
        check_name(name)?;
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
        upload.publish(name, &Manifest { size, chunk, chunks, machine: None, overlay: None })?;
        Ok((library.open(name)?, written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Folder, PATIENCE, Store};
    use std::path::PathBuf;

    /// A store with the template `a`: 64 pages of 1, in chunks of 4 pages, every second chunk zero.
    fn template(name: &str) -> (PathBuf, Library, Vec<u8>) {
        let folder = std::env::temp_dir().join(format!("slat-pager-overlay-{name}-{}", std::process::id()));
        let library = Library::new(Folder::open(&folder).unwrap());
        let image: Vec<u8> = (0..64).flat_map(|page| [(page / 4 % 2) as u8; PAGE]).collect();
        library.snapshot("a", &*image, image.len() as u64, 4 * PAGE).unwrap();
        (folder, library, image)
    }

    fn all(library: &Library, name: &str) -> Vec<u8> {
        let template = library.open(name).unwrap();
        template.read(0..template.size()).unwrap()
    }

    fn put(image: &mut [u8], patches: &[(u64, Vec<u8>)]) {
        for (offset, bytes) in patches {
            image[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    #[test]
    fn an_overlay_has_its_bytes_at_any_offset_and_the_bases_elsewhere() {
        let (folder, library, base) = template("random");
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..40 {
            let patches: Vec<(u64, Vec<u8>)> = (0..random.usize(1..8))
                .map(|number| {
                    let length = [1, 17, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE][random.usize(0..6)];
                    let aligned = random.usize(0..60) * PAGE;
                    let offset = if random.bool() { aligned } else { aligned + random.usize(0..PAGE) };
                    (offset as u64, vec![100 + number as u8; length])
                })
                .collect();
            let mut image = base.clone();
            put(&mut image, &patches);
            library.overlay("a", &patches, "b").unwrap();
            assert!(all(&library, "b") == image, "round {round}: {patches:?}");
            // An overlay of an overlay has both, and refers to the template below.
            let more = vec![(random.u64(0..200_000), vec![9; random.usize(1..9000)])];
            put(&mut image, &more);
            library.overlay("b", &more, "c").unwrap();
            assert!(all(&library, "c") == image, "round {round}: {more:?}");
            assert_eq!(library.open("c").unwrap().overlay().unwrap().0, "a");
        }
        assert!(all(&library, "a") == base, "the base is as it was");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_overlay_adds_one_chunk_and_protects_its_base() {
        let (folder, library, mut image) = template("shared");
        let store = Folder::open(&folder).unwrap();
        let count = || store.list("chunks").unwrap().len();
        let (before, patches) = (count(), vec![(0x3001, vec![7; 2])]);
        library.overlay("a", &patches, "b").unwrap();
        assert_eq!(count(), before + 1);
        put(&mut image, &patches);
        let version = library.open("b").unwrap().version().to_owned();
        assert!(std::fs::metadata(folder.join("manifests").join(&version)).unwrap().len() < 600);
        library.remove("a").unwrap();
        library.gc(PATIENCE).unwrap();
        assert!(all(&library, "b") == image && library.verify("b").unwrap().damaged.is_empty());
        assert!(library.fsck(false).unwrap().problems.is_empty());
        // A host that serves it protects both after its removal.
        let open = library.open("b").unwrap();
        library.remove("b").unwrap();
        library.gc(PATIENCE).unwrap();
        assert!(open.at(&version).unwrap().read(0..open.size()).unwrap() == image);
        assert!(library.open_version("b", &version).unwrap().read(0..open.size()).unwrap() == image);
        drop(open);
        library.gc(PATIENCE).unwrap();
        assert_eq!(count(), 0);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_overlay_whose_base_is_lost_is_named_and_stops_a_collection() {
        let (folder, library, _) = template("lost");
        library.overlay("a", &[(5, vec![1])], "b").unwrap();
        let base = library.open("a").unwrap().version().to_owned();
        library.remove("a").unwrap();
        std::fs::remove_file(folder.join("manifests").join(base)).unwrap();
        assert!(library.open("b").is_err() && library.gc(PATIENCE).is_err());
        let problems = library.fsck(false).unwrap().problems;
        assert!(problems[0].contains("b has lost its base") && problems.len() == 1, "{problems:?}");
        library.remove("b").unwrap();
        library.gc(PATIENCE).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_overlay_that_is_no_part_of_the_memory_is_refused() {
        let (folder, library, image) = template("refused");
        let size = image.len() as u64;
        let error = |patches: &[(u64, usize)]| {
            let patches: Vec<_> =
                patches.iter().map(|(offset, length)| (*offset, vec![1; *length])).collect();
            library.overlay("a", &patches, "b").unwrap_err().to_string()
        };
        for (offset, length) in [(size, 1), (size - 1, 2), (u64::MAX, 1)] {
            assert!(error(&[(offset, length)]).contains("the memory of a has 0x40000 bytes"));
        }
        assert_eq!(error(&[]), "an overlay without bytes");
        assert_eq!(error(&[(0, 0)]), "the patch at 0x0 is empty");
        let same = library.overlay("a", &[(0, vec![1])], "a").unwrap_err();
        assert!(same.to_string().contains("another name"));
        assert!(matches!(library.overlay("none", &[(0, vec![1])], "b"), Err(StoreError::Missing(_))));
        assert_eq!(library.list().unwrap(), ["a"]);
        // The largest, and one page more.
        library.snapshot("large", &vec![0; 4 << 20][..], 4 << 20, 64 << 10).unwrap();
        let mut patches = vec![(0, vec![1; 2 << 20])];
        library.overlay("large", &patches, "b").unwrap();
        patches.push((3 << 20, vec![1]));
        let large = library.overlay("large", &patches, "b").unwrap_err().to_string();
        assert!(large.contains("more than 512 pages"), "{large}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
