//! Working sets are recorded from faults, and filled ahead of faults.

use super::content::{Content, Loaded, Piece};
use super::plan::{Job, JobPiece};
use super::{Inner, pause};
use crate::store::{StoreError, WorkingSet};
use crate::uffd::{PAGE, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most pages that are filled under one hold of `order`. A thread that wants to read an event waits for at most one
/// such batch of each replaying thread, and no further batch begins before it. So faults come first.
const BATCH: usize = 32;
/// Number of tries for a chunk before it is left to the faults.
const TRIES: u32 = 8;
/// Number of times that one batch waits for a change of the guest's memory.
const CHANGES: u32 = 1000;

impl Inner {
    /// Fills pages ahead of faults, until the plan is done or the guest ends. A thread of its own runs this.
    pub(super) fn replay(&self) {
        while let Some(job) = self.plan.next() {
            for tries in 0.. {
                if self.has_stopped(Duration::ZERO) {
                    return;
                }
                match self.try_job(job) {
                    Ok(()) => break,
                    Err(error) if error.may_pass() && tries < TRIES => _ = self.has_stopped(pause(tries)),
                    // A fault will ask again, and longer.
                    Err(_) => {
                        self.end_job();
                        break;
                    }
                }
            }
        }
    }

    /// Reads the content of a job, and fills its pages.
    fn try_job(&self, job: &Job) -> Result<(), StoreError> {
        let limit = &self.plan.compute_limit;
        if let Some((bytes, _)) = self.load_pack(job, Some(limit)) {
            let _permit = limit.acquire();
            let content = Content::Bytes(bytes);
            for JobPiece { address, pages, from } in &job.pieces {
                self.fill_run(
                    *address,
                    &Piece { pages: pages.clone(), content: &content, from: *from, write: false },
                );
            }
            self.end_job();
            return Ok(());
        }
        let mut loaded: Option<Loaded> = None;
        for JobPiece { address, pages, .. } in &job.pieces {
            let now = match loaded.take().filter(|loaded| loaded.has(pages)) {
                Some(now) => now,
                None => self.load_chunk(pages, pages.start, Some(limit))?,
            };
            let _permit = limit.acquire();
            self.fill_run(*address, &now.piece(pages.clone()));
            loaded = Some(now);
        }
        self.end_job();
        Ok(())
    }

    /// Fills the unsettled pages of a job whose content a fault has loaded.
    pub(super) fn do_job(&self, job: &Job, loaded: &Loaded) {
        for JobPiece { address, pages, from } in &job.pieces {
            let piece = if job.has_pack() {
                Piece { pages: pages.clone(), content: &loaded.content, from: *from, write: false }
            } else {
                loaded.piece(pages.clone())
            };
            self.fill_run(*address, &piece);
        }
        self.end_job();
    }

    /// Fills the unsettled pages of a piece, from this address on.
    fn fill_run(&self, address: u64, piece: &Piece) {
        let (first, end) = (piece.pages.start, piece.pages.end);
        let (mut page, mut changes) = (first, 0);
        while page < end {
            let place = address + ((page - first) * PAGE) as u64;
            let pages = page..end.min(page + BATCH.max(self.layout.unit()));
            let from = piece.from + (page - first) * PAGE;
            match self.fill_ahead(&Piece { pages, from, ..piece.clone() }, place) {
                Ok(next) => page = next,
                Err(Refusal::Again) if changes < CHANGES && !self.has_stopped(super::fault::CHANGE) => {
                    changes += 1;
                }
                Err(Refusal::Gone) => return self.finish(),
                // Something else is mapped there now.
                Err(_) => return,
            }
        }
    }

    /// Fills the first stretch of unsettled pages. Returns the page to continue with.
    fn fill_ahead(&self, piece: &Piece, address: u64) -> Result<usize, Refusal> {
        let _order = self.order.read();
        let pages = &piece.pages;
        let settled = |page: &usize| self.journal.is_settled(*page);
        let Some(start) = pages.clone().find(|page| !settled(page)) else { return Ok(pages.end) };
        let end = (start..pages.end).find(settled).unwrap_or(pages.end);
        let skipped = (start - pages.start) * PAGE;
        let stretch = Piece { pages: start..end, from: piece.from + skipped, ..piece.clone() };
        let (filled, refusal) = self.put(&stretch, address + skipped as u64);
        self.ahead.fetch_add(filled as u64, Ordering::Relaxed);
        match refusal {
            None => Ok(end),
            // A fault, or an earlier daemon, filled the page and woke the waiting threads.
            Some(Refusal::Exists) => {
                let there = self.unit_of(start + filled);
                // Or there is no huge page left, which is left to a fault.
                if !self.is_huge() {
                    self.settle(there.clone());
                }
                Ok(there.end)
            }
            Some(refusal) => Err(refusal),
        }
    }

    /// Ends the record after this time, or when the guest ends, and stores it. A thread of its own runs this.
    pub(super) fn record(&self, time: Duration) {
        self.has_stopped(time);
        let faults = self.recorder.end();
        if !faults.is_empty() {
            let set = WorkingSet::of_faults(faults);
            let pages = set.pages() as u64;
            // The store may be out of reach for a moment. If it stays so, a later process records again.
            for tries in 0..TRIES {
                match self.template.keep_packed(&set, &self.cache, &self.plan.compute_limit) {
                    Ok(()) => {
                        self.recorded.store(pages, Ordering::Relaxed);
                        break;
                    }
                    Err(error) if error.may_pass() => std::thread::sleep(pause(tries)),
                    Err(_) => break,
                }
            }
        }
        self.template.end_recording();
    }

    /// Waits for `wait`, or until the guest ends or is stopped. Returns whether it ended or was stopped.
    fn has_stopped(&self, wait: Duration) -> bool {
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        // An error is an interruption: the caller repeats the call.
        poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
    }
}
