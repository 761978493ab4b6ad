//! The answer to one fault: which pages to fill, their source, and the kernel's answer.

use super::content::{Content, Loaded, Piece};
use super::fault::{Answer, Fault, Kind};
use super::{Inner, Lost};
use crate::cache::Source;
use crate::layout::Region;
use crate::uffd::{Filled, PAGE, Refusal};
use std::ops::Range;
use std::sync::atomic::Ordering;

const BYTES: u64 = PAGE as u64;

impl Inner {
    /// Answers a fault. `may_sleep`: this thread may wait for the store.
    pub(super) fn resolve(&self, fault: &Fault, may_sleep: bool) -> Answer {
        let Some((region, page)) = self.layout.page(fault.address) else { return Answer::Ignored };
        match fault.kind {
            // In memory that clones share, the kernel reports each missing page as minor, and only some are the
            // template's.
            Kind::Minor if self.share().is_none() => return self.resume(fault, page),
            Kind::Missing | Kind::Minor => {}
            Kind::Protected => return self.permit_write(fault, page),
            Kind::Unclear => {
                _ = self.uffd.wake(fault.address, self.page_bytes());
                return self.done(fault, Source::Present);
            }
        }
        let zero = || {
            self.before_zeros(page);
            self.one(fault, Source::Zero, |start| self.fill_zeros(start, self.page_bytes()))
        };
        let window = || self.window(region, page);
        let mut order = self.order.read();
        if self.is_away(page) {
            drop(order);
            return self.bring_back(fault, page, may_sleep);
        }
        if self.journal.is_settled(page) {
            return zero();
        }
        let loaded = match self.loaded_now(page) {
            Some(loaded) => loaded,
            None if !may_sleep => return Answer::Elsewhere,
            None => {
                drop(order);
                // This may take long, and the guest may remove pages meanwhile.
                // It waits already if another thread has handed it over.
                if !fault.waits {
                    self.waits.begin(fault.since);
                }
                let loaded = self.load(page, &window());
                if !fault.waits {
                    self.waits.end(fault.since);
                }
                let loaded = match loaded {
                    Ok(loaded) => loaded,
                    Err(error) if error.may_pass() || self.options.lost == Lost::Wait => {
                        self.waits.because(error);
                        return Answer::NoContent;
                    }
                    Err(_) => return self.give_up(fault),
                };
                order = self.order.read();
                if self.is_away(page) {
                    // The page was filled meanwhile, and reclaimed again.
                    return Answer::Again;
                }
                if self.journal.is_settled(page) {
                    return zero();
                }
                loaded
            }
        };
        let place = |page: usize| region.base + (page as u64 * BYTES - region.offset);
        // Before the guest continues and, perhaps, ends.
        self.recorder.note(self.unit_of(page));
        // Fill the page itself first: failures of its neighbours do not matter.
        let own = Piece { write: fault.write, ..loaded.piece(self.unit_of(page)) };
        let answer = match self.put(&own, place(page)).1 {
            None => self.done(fault, loaded.source),
            // The VMM's mapping is not the one that it announced.
            Some(Refusal::Other(error)) if matches!(loaded.content, Content::Shared) => {
                self.waits.because(format_args!("its VMM did not map the file that clones share: {error}"));
                Answer::NoContent
            }
            Some(refusal) => self.refused(&refusal, fault),
        };
        if !matches!(answer, Answer::Done) {
            return answer;
        }
        // A page of the working set brings the others of its chunk or pack, unless another thread is filling them.
        if let Some(job) = loaded.job.filter(|job| job.take()) {
            drop(order);
            self.do_job(job, &loaded);
            return answer;
        }
        for pages in self.neighbours(&window(), page) {
            let start = place(pages.start);
            // A present page, or a change of the guest's memory, ends the stretch.
            if loaded.has(&pages) {
                self.put(&loaded.piece(pages), start);
            } else if self.is_near_others(page)
                && let Some(more) = self.template.file().and_then(|image| image.pages_now(&pages))
            {
                self.put(&Loaded::of_image(more, pages.clone(), loaded.source).piece(pages), start);
            }
        }
        answer
    }

    /// Returns the bytes of a page of the guest.
    pub(super) fn page_bytes(&self) -> u64 {
        self.layout.page_size() as u64
    }

    /// Fills pages with zeros.
    fn fill_zeros(&self, start: u64, len: u64) -> Filled {
        if self.is_huge() {
            return self.fill_huge_zeros(start, len);
        }
        match self.uffd.zero(start, len) {
            // In memory that clones share, a protection marker makes ZEROPAGE fail, but not COPY. A snapshot left the
            // marker, perhaps by an earlier pager.
            (0, Some(Refusal::Exists)) if self.share().is_some() => self.uffd.copy(start, &[0; PAGE]),
            filled => filled,
        }
    }

    /// Settles pages: from now on their content is not the template's. A clone's pages stay unsettled until they are
    /// removed, because it needs the content again if the kernel took them from its page table.
    pub(super) fn settle(&self, pages: Range<usize>) {
        if self.share().is_none() {
            self.journal.settle(pages);
        }
    }

    /// Records the time of an answered fault.
    pub(super) fn done(&self, fault: &Fault, source: Source) -> Answer {
        self.latencies.record(source, fault.since.elapsed());
        Answer::Done
    }

    /// Returns the pages that may come with this one: an aligned window, in its chunk and its region.
    fn window(&self, region: &Region, page: usize) -> Range<usize> {
        if self.is_huge() {
            return page..page + 1;
        }
        let first = (region.offset / BYTES) as usize;
        let last = first + (region.size / BYTES) as usize;
        let size = if self.recorder.is_on() { 1 } else { self.options.window };
        let chunk = self.template.chunk_of(page);
        let start = page / size * size;
        start.max(chunk.start).max(first)..(start + size).min(chunk.end).min(last)
    }

    /// Returns whether the page before or after this one is settled. Then the guest probably touches pages in a row. To
    /// copy the neighbours of each page of a guest that does not would double the time of its faults.
    fn is_near_others(&self, page: usize) -> bool {
        self.journal.is_settled(page + 1)
            || page.checked_sub(1).is_some_and(|page| self.journal.is_settled(page))
    }

    /// Returns stretches of unsettled pages beside this one.
    fn neighbours(&self, window: &Range<usize>, page: usize) -> Vec<Range<usize>> {
        let (mut stretches, mut next) = (Vec::new(), window.start);
        let left_out = |other: &usize| *other == page || self.journal.is_settled(*other);
        while let Some(start) = (next..window.end).find(|other| !left_out(other)) {
            next = (start..window.end).find(left_out).unwrap_or(window.end);
            stretches.push(start..next);
        }
        stretches
    }

    /// Fills pages with content of the template, as far as possible, and settles them. Returns how many, and why not
    /// more.
    pub(super) fn put(&self, piece: &Piece, start: u64) -> (usize, Option<Refusal>) {
        let (mut done, size) = (0, piece.pages.len() * PAGE);
        let is_protected = self.before_fill(piece);
        // Touches of the neighbours are seen from the next tick on.
        piece.pages.clone().for_each(|page| self.young.set(page));
        while done < size {
            let at = start + done as u64;
            let (filled, refusal) = match piece.content {
                Content::Bytes(bytes) => {
                    let from = piece.from;
                    self.uffd.copy_as(at, &bytes[from + done..from + size], is_protected)
                }
                Content::Shared => self.uffd.resume_as(at, (size - done) as u64, is_protected),
                Content::Zeros => self.fill_zeros(at, (size - done) as u64),
            };
            self.filled.fetch_add((filled / PAGE) as u64, Ordering::Relaxed);
            let first = piece.pages.start + done / PAGE;
            self.settle(first..first + filled / PAGE);
            done += filled;
            if refusal.is_some() {
                return (done / PAGE, refusal);
            }
        }
        (done / PAGE, None)
    }

    /// Maps a page that is in the shared memory.
    fn resume(&self, fault: &Fault, page: usize) -> Answer {
        let _order = self.order.read();
        let is_protected = self.before_resume(page);
        self.one(fault, Source::Shared, |start| self.uffd.resume_as(start, self.page_bytes(), is_protected))
    }

    /// Fills one page whose content is not the template's.
    fn one(&self, fault: &Fault, source: Source, fill: impl FnOnce(u64) -> Filled) -> Answer {
        // Before the page is present and the guest continues, because a tick may follow at once.
        if let Some((_, page)) = self.layout.page(fault.address) {
            self.young.set(page);
        }
        match fill(fault.address) {
            (_, None) => {
                self.filled.fetch_add(self.layout.unit() as u64, Ordering::Relaxed);
                self.done(fault, source)
            }
            (_, Some(refusal)) => self.refused(&refusal, fault),
        }
    }

    /// Gives up a page that the store lost.
    fn give_up(&self, fault: &Fault) -> Answer {
        match self.uffd.poison(fault.address, self.page_bytes()) {
            (_, None) => {
                self.poisoned.fetch_add(1, Ordering::Relaxed);
                Answer::Ignored
            }
            (_, Some(Refusal::Other(error))) => {
                self.waits.because(format_args!("the page is lost, and the kernel marks none: {error}"));
                Answer::NoContent
            }
            (_, Some(refusal)) => self.refused(&refusal, fault),
        }
    }

    pub(super) fn refused(&self, refusal: &Refusal, fault: &Fault) -> Answer {
        let address = fault.address;
        match refusal {
            Refusal::Again => Answer::Again,
            Refusal::Gone => Answer::Gone,
            // The kernel also answers this if it has no huge page left. So the page is not settled: a settled page that
            // faults is zero.
            Refusal::Exists if self.is_huge() => Answer::Unclear,
            // Another fault, or an earlier daemon, filled the page.
            Refusal::Exists => {
                if let Some((_, page)) = self.layout.page(address) {
                    self.settle(self.unit_of(page));
                }
                _ = self.uffd.wake(address, self.page_bytes());
                self.done(fault, Source::Present)
            }
            // There is no memory, or no huge page, for now.
            Refusal::Other(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                self.waits.because(format_args!("the kernel has no page for it: {error}"));
                Answer::NoContent
            }
            // The thread faults again, and finds no page, or nothing mapped.
            Refusal::Unmapped | Refusal::Other(_) => {
                _ = self.uffd.wake(address, self.page_bytes());
                Answer::Ignored
            }
        }
    }
}
