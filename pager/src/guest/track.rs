//! Tracks which pages a guest writes, and which of them a snapshot still has to read while the guest runs.
//!
//! Tracking costs nothing before the first harvest. The harvest write-protects all present pages, and later fills
//! protect their pages in the same request. The first write to each page is a fault, which sets the page's bit.
//!
//! A harvest takes the bits and protects all pages in one step, while no thread fills pages. Then the guest may run. A
//! background thread reads the content of the harvest; a page that is about to be written, filled or removed is read
//! before that.

use super::Inner;
use super::content::{Content, Piece};
use super::fault::{Answer, Fault};
use crate::cache::Source;
use crate::uffd::Refusal;
use crate::uffd::abi::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

impl Inner {
    /// Returns whether pages that are filled now must be protected. Notes unprotected ones as dirty, because the guest
    /// may write to them at once.
    pub(super) fn before_fill(&self, piece: &Piece) -> bool {
        if !self.tracking.is_on() {
            return false;
        }
        // No request fills with zeros and protects.
        let is_protected = !piece.write && !matches!(piece.content, Content::Zeros);
        if !is_protected {
            piece.pages.clone().for_each(|page| self.tracking.dirty().set(page));
        }
        is_protected
    }

    /// Returns whether a page that is mapped again must be protected.
    pub(super) fn before_resume(&self, page: usize) -> bool {
        let is_on = self.tracking.is_on();
        if is_on && !self.can_resume_protected {
            self.before_write(page);
        }
        is_on && self.can_resume_protected
    }

    /// Notes a page that becomes zeros as dirty: the guest may write to it at once.
    pub(super) fn before_zeros(&self, page: usize) {
        if self.tracking.is_on() {
            self.before_write(page);
        }
    }

    /// Returns whether a page that comes back from the swap file must be protected.
    pub(super) fn before_return(&self, page: usize, is_write: bool) -> bool {
        let is_on = self.tracking.is_on();
        if is_on && is_write {
            self.before_write(page);
        }
        is_on && !is_write
    }

    fn before_write(&self, page: usize) {
        let pages = self.unit_of(page);
        pages.clone().for_each(|page| self.tracking.dirty().set(page));
        self.capture_early(pages);
    }

    /// Lets the guest write to a protected page.
    pub(super) fn permit_write(&self, fault: &Fault, page: usize) -> Answer {
        let _order = self.order.read();
        self.young.set(page);
        self.before_write(page);
        let refusal = match self.uffd.unprotect(fault.address, self.page_bytes()) {
            Ok(()) => return self.done(fault, Source::Written),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Refusal::Again,
                Some(libc::ESRCH) => Refusal::Gone,
                Some(libc::ENOENT) => Refusal::Unmapped,
                _ => Refusal::Other(error),
            },
        };
        self.refused(&refusal, fault)
    }

    fn capture_early(&self, pages: Range<usize>) {
        if self.tracking.is_capturing()
            && let Some(capture) = &mut *self.tracking.capture.lock()
        {
            capture.read_early(&self.layout, &self.journal, pages);
        }
    }

    /// Called before events are read, under the exclusive lock. Returns how many may be read at a time. While a harvest
    /// reads, its remaining pages are read before a removal's event, because to read that event permits the removal. If
    /// no removal is under way, the ready event is a fault. It stays one, because no thread fills pages under this
    /// lock, and the kernel delivers faults before removals. So a single event that is read now is no removal that came
    /// a moment later.
    pub(super) fn before_events(&self, most: usize) -> usize {
        if !self.tracking.is_capturing() {
            return most;
        }
        let now = Timespec::default();
        let is_ready = poll(&mut [PollFd::from_borrowed_fd(self.uffd.as_fd(), PollFlags::IN)], Some(&now));
        if self.uffd.is_changing() {
            self.capture_early(0..self.layout.image_pages());
        }
        usize::from(is_ready != Ok(0))
    }

    /// Notes removed pages, which are zero in the next snapshot. If a harvest still needed the content of one, it
    /// fails.
    pub(super) fn note_removal(&self, message: &Message) {
        let Some(range) = message.removed().filter(|_| self.tracking.is_on()) else { return };
        for pages in self.layout.pages(range.start, range.end) {
            pages.clone().for_each(|page| self.tracking.dirty().set(page));
            if let Some(capture) = &mut *self.tracking.capture.lock()
                && capture.needs(pages.clone())
            {
                let what = "the guest gave pages back in the moment in which they were to be read: try again";
                capture.fail(io::Error::new(io::ErrorKind::ResourceBusy, what));
            }
        }
    }
}
