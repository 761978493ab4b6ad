//! Loads content for a fault or a fill ahead: of a chunk, of a pack of a working set, or of an image on this host.

use super::Inner;
use super::content::{Content, Loaded};
use super::plan::Job;
use crate::cache::{Chunk, Source};
use crate::compute_limit::ComputeLimit;
use crate::share::Share;
use crate::store::StoreError;
use crate::uffd::PAGE;
use std::ops::Range;

impl Inner {
    /// Returns whether content is used page by page, so that it need not be that of a whole chunk.
    fn is_by_page(&self) -> bool {
        !self.is_huge() && self.share().is_none()
    }

    /// Returns the template's content of a page, if it is at hand.
    pub(super) fn loaded_now(&self, page: usize) -> Option<Loaded<'_>> {
        if self.is_by_page()
            && let Some(image) = self.template.file()
        {
            let bytes = image.pages_now(&(page..page + 1))?;
            return Some(Loaded::of_image(bytes, page..page + 1, Source::Cache));
        }
        if let Some((job, pages, from)) = self.plan.packed(page)
            && let Some(bytes) = job.pack().and_then(|pack| pack.look(&self.cache))
        {
            let content = Content::Bytes(bytes);
            return Some(Loaded { content, source: Source::Cache, pages, from, job: Some(job) });
        }
        let now = |page| self.template.content_now(page, &self.cache);
        if self.is_huge() {
            let found = self.huge_content(page, |page| now(page).ok_or(()));
            return found.ok().map(|found| self.of_chunk(page, found));
        }
        let Some(share) = self.share() else {
            return now(page).map(|found| self.of_chunk(page, Content::of(found)));
        };
        if self.template.covers(&(page..page + 1)) {
            return now(page).map(|found| self.of_chunk(page, Content::of(found)));
        }
        // Clones of all overlays share the base.
        let base = self.template.base();
        let chunk = base.chunk_of(page);
        if share.has(&chunk) {
            return Some(self.of_chunk(page, (Content::Shared, Source::Shared)));
        }
        let found = base.content_now(page, share.cache())?;
        Some(self.shared(page, share.take(&chunk, Content::of(found))))
    }

    /// Returns the template's content of a page for a fault: from a pack, or as [`Inner::load_chunk`]. May sleep.
    pub(super) fn load(&self, page: usize, window: &Range<usize>) -> Result<Loaded<'_>, StoreError> {
        if let Some((job, pages, from)) = self.plan.packed(page)
            && let Some((bytes, source)) = self.load_pack(job, None)
        {
            return Ok(Loaded { content: Content::Bytes(bytes), source, pages, from, job: Some(job) });
        }
        self.load_chunk(window, page, None)
    }

    /// Returns the content of a job's pack. `None`: it has none, or its chunks must replace it.
    pub(super) fn load_pack(
        &self,
        job: &Job,
        compute_limit: Option<&ComputeLimit>,
    ) -> Option<(Chunk, Source)> {
        let content = self.template.pack(job.pack()?, &self.cache, compute_limit);
        // Also if the failure may pass: the chunks have the same content, and their failure says what the guest waits for.
        content.inspect_err(|_| job.lose_pack()).ok()
    }

    /// Returns the template's content of the chunk that holds a page, or of its huge page. Of an image on this host, it
    /// returns that of these pages. May sleep.
    pub(super) fn load_chunk(
        &self,
        pages: &Range<usize>,
        page: usize,
        compute_limit: Option<&ComputeLimit>,
    ) -> Result<Loaded<'_>, StoreError> {
        if self.is_by_page()
            && let Some(image) = self.template.file()
        {
            return Ok(Loaded::of_image(image.pages(pages)?, pages.clone(), Source::Store));
        }
        if self.is_huge() {
            let get = |page| self.template.content(page, &self.cache, compute_limit);
            return Ok(self.of_chunk(page, self.huge_content(page, get)?));
        }
        let Some(share) = self.share() else {
            let found = self.template.content(page, &self.cache, compute_limit)?;
            return Ok(self.of_chunk(page, Content::of(found)));
        };
        if self.template.covers(&(page..page + 1)) {
            let found = self.template.content(page, share.cache(), compute_limit)?;
            return Ok(self.of_chunk(page, Content::of(found)));
        }
        let base = self.template.base();
        let chunk = base.chunk_of(page);
        if share.has(&chunk) {
            return Ok(self.of_chunk(page, (Content::Shared, Source::Shared)));
        }
        let found = base.content(page, share.cache(), compute_limit)?;
        Ok(self.shared(page, share.take(&chunk, Content::of(found))))
    }

    /// Returns content of a chunk of the base as that of the pages that come with a page.
    fn shared(&self, page: usize, content: (Content, Source)) -> Loaded<'_> {
        let mut loaded = self.of_chunk(page, content);
        loaded.from = (loaded.pages.start - self.template.base().chunk_of(page).start) * PAGE;
        loaded
    }

    fn of_chunk(&self, page: usize, (content, source): (Content, Source)) -> Loaded<'_> {
        let pages = self.chunk_of(page);
        let job = self.plan.of_chunk(pages.start);
        Loaded { content, source, pages, from: 0, job }
    }
}

impl Share {
    /// Puts content into the memory that clones share. Without room there, the guest gets a copy of its own.
    fn take(&self, chunk: &Range<usize>, (content, source): (Content, Source)) -> (Content, Source) {
        match content {
            Content::Bytes(bytes) if self.write(chunk, &bytes).is_ok() => (Content::Shared, source),
            content => (content, source),
        }
    }
}
