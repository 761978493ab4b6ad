//! Pages that replace those of a template: a guest's own network identity, host name or secrets.
//!
//! An overlay is a template of its own in the store. It has a few pages, and refers to the manifest of its base. So it
//! copies nothing of the base: its guests share the base's chunks, working set and packs, and the memory that clones
//! share. A lease on the overlay protects both.

use super::StoreError;
use super::manifest::{MOST_OVERLAY, Overlaid};
use crate::cache::Chunk;
use crate::uffd::PAGE;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::ops::Range;

/// The pages of an open overlay, with their content.
pub struct Overlay {
    /// Ranges of pages in ascending order, and the offset of each in the content.
    runs: Vec<(Range<usize>, usize)>,
    content: Chunk,
}

impl Overlay {
    /// `content` has the pages of the manifest, in order.
    pub fn new(overlaid: &Overlaid, content: Vec<u8>) -> Self {
        debug_assert_eq!(content.len(), overlaid.count() * PAGE);
        let mut offset = 0;
        let runs = overlaid.pages.iter().map(|(first, count)| {
            offset += count * PAGE;
            (*first..first + count, offset - count * PAGE)
        });
        Self { runs: runs.collect(), content: Chunk::new(content) }
    }

    /// Returns the number of its pages.
    pub fn count(&self) -> usize {
        self.content.len() / PAGE
    }

    /// Returns its pages, in ascending order.
    pub fn pages(&self) -> impl Iterator<Item = usize> {
        self.runs.iter().flat_map(|(run, _)| run.clone())
    }

    /// Returns the index of the first range that ends after a page.
    fn after(&self, page: usize) -> usize {
        self.runs.partition_point(|(run, _)| run.end <= page)
    }

    /// Returns whether it has one of these pages.
    pub fn covers(&self, pages: &Range<usize>) -> bool {
        self.runs.get(self.after(pages.start)).is_some_and(|(run, _)| run.start < pages.end)
    }

    /// Returns the pages around a page that come from the same source as it: all in the overlay, or all in the base. Both
    /// pages are `within`, a chunk of the base.
    pub fn stretch(&self, page: usize, within: &Range<usize>) -> Range<usize> {
        let next = self.after(page);
        let found = match self.runs.get(next) {
            Some((run, _)) if run.start <= page => run.clone(),
            run => {
                let start = next.checked_sub(1).map_or(0, |last| self.runs[last].0.end);
                start..run.map_or(usize::MAX, |(run, _)| run.start)
            }
        };
        found.start.max(within.start)..found.end.min(within.end)
    }

    /// Returns the content of a [`stretch`](Self::stretch). `None`: the base has it.
    pub fn content(&self, stretch: &Range<usize>) -> Option<Chunk> {
        let (run, offset) =
            self.runs.get(self.after(stretch.start)).filter(|(run, _)| run.contains(&stretch.start))?;
        let from = offset + (stretch.start - run.start) * PAGE;
        Some(self.content.part(from..from + stretch.len() * PAGE))
    }
}

/// The pages of an overlay that is being made.
#[derive(Default)]
pub struct Patched(BTreeMap<usize, Vec<u8>>);

impl Patched {
    /// Puts bytes at an offset. `read` returns the content of a page that they cover in part.
    pub fn put(
        &mut self,
        offset: u64,
        bytes: &[u8],
        mut read: impl FnMut(usize) -> Result<Vec<u8>, StoreError>,
    ) -> Result<(), StoreError> {
        let (mut at, mut rest) = (offset as usize, bytes);
        while !rest.is_empty() {
            let (page, within) = (at / PAGE, at % PAGE);
            let (part, after) = rest.split_at(rest.len().min(PAGE - within));
            let content = match self.0.entry(page) {
                Occupied(entry) => entry.into_mut(),
                Vacant(entry) if part.len() == PAGE => entry.insert(vec![0; PAGE]),
                Vacant(entry) => entry.insert(read(page)?),
            };
            content[within..within + part.len()].copy_from_slice(part);
            if self.0.len() > MOST_OVERLAY {
                let what = format!(
                    "the overlay has more than {MOST_OVERLAY} pages of {PAGE} bytes: make a template with `slat-pager snapshot`"
                );
                return Err(StoreError::Size(what));
            }
            (at, rest) = (at + part.len(), after);
        }
        Ok(())
    }

    /// Returns the ranges of pages, and their content in order.
    pub fn finish(self) -> (Vec<(usize, usize)>, Vec<u8>) {
        let mut pages: Vec<(usize, usize)> = Vec::new();
        for page in self.0.keys() {
            match pages.last_mut() {
                Some((first, count)) if *first + *count == *page => *count += 1,
                _ => pages.push((*page, 1)),
            }
        }
        (pages, self.0.into_values().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Hash;
    use crate::store::chunk::Name;

    #[test]
    fn each_page_is_in_one_stretch_with_its_own_content() {
        let pages = vec![(0, 1), (3, 2), (6, 1), (7, 3), (15, 4)];
        let name = Name { hash: Hash::of(b"a"), epoch: 0 }.to_string();
        let overlaid = Overlaid { base: "a".into(), version: name.clone(), pages, content: name };
        let covered: Vec<usize> =
            overlaid.pages.iter().flat_map(|(first, count)| *first..first + count).collect();
        let content: Vec<u8> = covered.iter().flat_map(|page| vec![*page as u8; PAGE]).collect();
        let overlay = Overlay::new(&overlaid, content);
        assert!(overlay.pages().eq(covered.iter().copied()) && overlay.count() == 11);
        for (page, chunk) in (0..24).flat_map(|page| {
            [1, 4, 8, 24].map(|pages| (page, page / pages * pages..page / pages * pages + pages))
        }) {
            let (stretch, has) = (overlay.stretch(page, &chunk), covered.contains(&page));
            assert!(stretch.contains(&page) && chunk.start <= stretch.start && stretch.end <= chunk.end);
            assert!(
                stretch.clone().all(|other| covered.contains(&other) == has),
                "{page} of {chunk:?}: {stretch:?}"
            );
            assert_eq!(overlay.covers(&(page..page + 1)), has);
            assert_eq!(overlay.covers(&chunk), chunk.clone().any(|other| covered.contains(&other)));
            let found = overlay.content(&stretch);
            assert_eq!(found.is_some(), has);
            let bytes = |found: &[u8]| {
                stretch.clone().zip(found.chunks(PAGE)).all(|(page, bytes)| bytes == [page as u8; PAGE])
            };
            assert!(found.is_none_or(|found| found.len() == stretch.len() * PAGE && bytes(&found)));
        }
    }
}
