//! Pages of a running machine. The VMM asks for each page by its guest-physical address, and maps it itself.
//!
//! The pager writes a page into its memory file once. If the VMM asks again, a page in the file stays as it is, because
//! the guest may have written to it. If the page is not in the file any more, the guest gave it back (a balloon), and
//! it is zero.

use super::Restore;
use crate::cache::{Cache, Chunk, Source};
use crate::compute_limit::ComputeLimit;
use crate::guest::{GuestStats, pause};
use crate::journal::Journal;
use crate::latency::Latencies;
use crate::store::{Template, WorkingSet};
use crate::uffd::PAGE;
use crate::wire::{HEADER, MigrationError, MigrationRequest, Slots, answer, range};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub(super) struct Pages<'a> {
    slots: &'a Slots,
    /// The memory file of each memslot, which the VMM has mapped.
    files: Vec<File>,
    template: &'a Template,
    cache: &'a Cache,
    /// Pages that are or were in their file. It outlives this process.
    journal: Journal,
    progress: Mutex<Progress>,
    /// First pages of chunks, in the order of the fill ahead.
    order: Vec<usize>,
    compute_limit: ComputeLimit,
    latencies: Latencies,
}

struct Progress {
    /// The VMM also asks for all pages in order while its guest runs: the page that this pass has reached.
    pass: usize,
    /// Pages that the VMM asked for out of this order, because the guest touched them. `None`: not recorded.
    record: Option<Vec<usize>>,
    /// Next chunk to fill ahead.
    next: usize,
    stats: GuestStats,
}

impl<'a> Pages<'a> {
    pub fn new(
        slots: &'a Slots,
        files: Vec<File>,
        journal: Journal,
        template: &'a Template,
        cache: &'a Cache,
        with: &Restore,
    ) -> Self {
        let pages = (slots.size() / PAGE as u64) as usize;
        let record = (with.record.is_some() && template.begin_recording()).then(Vec::new);
        let set = template.working_set().unwrap_or_default();
        let wanted = set.runs().map(|run| run.start).filter(|page| *page < pages);
        let next = |page: &usize| Some(template.chunk_of(*page).end);
        let all = wanted.chain(std::iter::successors(Some(0), next).take_while(|page| *page < pages));
        let mut seen = HashSet::new();
        // A record recognizes the VMM's own pass by the pages that are still missing, so nothing else may fill them.
        let is_first = |chunk: &usize| record.is_none() && seen.insert(*chunk);
        let order = all.map(|page| template.chunk_of(page).start).filter(is_first).collect();
        let progress = Mutex::new(Progress { pass: 0, record, next: 0, stats: GuestStats::default() });
        let (compute_limit, latencies) = (ComputeLimit::default(), Latencies::new());
        Self { slots, files, template, cache, journal, progress, order, compute_limit, latencies }
    }

    /// Answers the VMM's requests on this connection until the VMM closes it.
    pub fn serve(&self, mut connection: &UnixStream, with: &Restore) -> Result<(), MigrationError> {
        let (began, mut head) = (Instant::now(), [0; HEADER]);
        let mut result = Ok(());
        // A VMM closes it when it has all pages, or when it ends.
        while result.is_ok() && connection.read_exact(&mut head).is_ok() {
            if with.record.is_some_and(|record| began.elapsed() > record) {
                self.keep_record();
            }
            result = self.request(&head, connection);
            _ = connection.write_all(&answer(result.is_ok()));
        }
        self.progress.lock().next = self.order.len();
        self.keep_record();
        result
    }

    fn request(&self, head: &[u8; HEADER], mut connection: &UnixStream) -> Result<(), MigrationError> {
        let since = Instant::now();
        match MigrationRequest::parse(head)? {
            MigrationRequest::PageFault => {}
            request => return Err(request.out_of_turn("PageFault")),
        }
        let mut bytes = [0; HEADER];
        connection.read_exact(&mut bytes)?;
        let asked = range(&bytes)?;
        let place = self.slots.layout.page(asked.start);
        let Some((_, first)) = place.filter(|(region, _)| asked.end - region.base <= region.size) else {
            return Err(MigrationError::Sense(format!(
                "a page fault at {asked:x?}, which is not in one memslot"
            )));
        };
        let end = first + ((asked.end - asked.start) / PAGE as u64) as usize;
        let (mut source, mut page) = (Source::Present, first);
        while page < end {
            let part = page..end.min(self.template.chunk_of(page).end);
            page = part.end;
            source = self.bring(part, connection)?;
        }
        self.latencies.record(source, since.elapsed());
        Ok(())
    }

    /// Fills pages of one chunk and answers.
    fn bring(&self, pages: Range<usize>, connection: &UnixStream) -> Result<Source, MigrationError> {
        let is_there = self.note(pages.clone());
        let none = (None, Source::Present);
        let (chunk, source) = if is_there { none } else { self.content(pages.start, connection)? };
        pages.into_iter().try_for_each(|page| self.give(page, chunk.as_ref(), true))?;
        Ok(source)
    }

    /// Returns the content of the chunk that holds a page. Waits for the store until it answers or the VMM hangs up.
    fn content(&self, page: usize, vmm: &UnixStream) -> Result<(Option<Chunk>, Source), MigrationError> {
        let mut tries = 0;
        loop {
            match self.template.content(page, self.cache, None) {
                Ok(found) => {
                    return Ok(found.map_or((None, Source::Zero), |(chunk, from)| (Some(chunk), from)));
                }
                Err(error) if hangs_up(vmm, pause(tries)) => return Err(error.into()),
                Err(_) => tries += 1,
            }
            self.progress.lock().stats.again += 1;
        }
    }

    /// Notes a request. Returns whether all of its pages were filled before.
    fn note(&self, pages: Range<usize>) -> bool {
        let progress = &mut *self.progress.lock();
        for page in pages.clone() {
            while progress.pass < self.pages() && self.journal.is_settled(progress.pass) {
                progress.pass += 1;
            }
            if page == progress.pass {
                progress.pass += 1;
            } else if let Some(record) = &mut progress.record
                && !self.journal.is_settled(page)
            {
                record.push(page);
            }
        }
        pages.into_iter().all(|page| self.journal.is_settled(page))
    }

    /// Writes a page into its file, once. `chunk` is the content of its chunk; `None`: zeros.
    fn give(&self, page: usize, chunk: Option<&Chunk>, is_asked: bool) -> io::Result<()> {
        let Some((slot, place)) = self.slots.at(page) else { return Ok(()) };
        let at = (page - self.template.chunk_of(page).start) * PAGE;
        let bytes =
            chunk.map(|chunk| &chunk[at..at + PAGE]).filter(|bytes| bytes.iter().any(|byte| *byte != 0));
        // Under one hold, so that no other thread writes the page once the guest may have it.
        let progress = &mut *self.progress.lock();
        let is_new = !self.journal.is_settled(page);
        match bytes.filter(|_| is_new) {
            Some(bytes) => {
                self.files[slot].write_all_at(bytes, place)?;
                progress.stats.filled += 1;
                progress.stats.ahead += u64::from(!is_asked);
            }
            // A present page stays; a missing one becomes zero.
            None if is_asked => fallocate(&self.files[slot], FallocateFlags::empty(), place, PAGE as u64)?,
            // A page of zeros needs no memory before the VMM asks for it.
            None => {}
        }
        // A pager that is killed before this step writes the page again later. That does no harm: the VMM has no answer
        // yet, and so no mapping.
        self.journal.settle(page..page + 1);
        Ok(())
    }

    /// Fills chunks ahead of faults: first those of the working set, then the others. A thread of its own runs this.
    pub fn fill_ahead(&self) {
        loop {
            let next = {
                let mut progress = self.progress.lock();
                progress.next += 1;
                progress.next - 1
            };
            let Some(first) = self.order.get(next) else { return };
            // A failure of the store or of memory is left to a fault.
            if let Ok(found) = self.template.content(*first, self.cache, Some(&self.compute_limit)) {
                let (chunk, pages) = (found.map(|(chunk, _)| chunk), self.template.chunk_of(*first));
                let end = pages.end.min(self.pages());
                _ = (pages.start..end).try_for_each(|page| self.give(page, chunk.as_ref(), false));
            }
        }
    }

    /// Ends the record, if there is one, and stores it.
    fn keep_record(&self) {
        let Some(record) = self.progress.lock().record.take() else { return };
        let set = WorkingSet::of_faults(record);
        let pages = set.pages() as u64;
        if pages > 0 && self.template.keep_working_set(set).is_ok() {
            self.progress.lock().stats.recorded = pages;
        }
        self.template.end_recording();
    }

    pub fn stats(&self) -> GuestStats {
        let progress = self.progress.lock();
        let settled = self.journal.settled() as u64;
        GuestStats { latency: self.latencies.all(), settled, ..progress.stats.clone() }
    }

    fn pages(&self) -> usize {
        (self.slots.size() / PAGE as u64) as usize
    }
}

/// Waits for `wait`. Returns whether the VMM hung up.
fn hangs_up(connection: &UnixStream, wait: Duration) -> bool {
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    // An error is an interruption: the caller repeats the call.
    poll(&mut [PollFd::new(connection, PollFlags::RDHUP)], Some(&wait)).is_ok_and(|ready| ready > 0)
}
