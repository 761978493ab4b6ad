//! Working sets are recorded from faults, and filled ahead of faults.

use super::fill::{Content, Piece};
use super::{Inner, pause};
use crate::compute_limit::ComputeLimit;
use crate::layout::Layout;
use crate::store::{Template, WorkingSet};
use crate::uffd::{PAGE, Refusal};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Most pages that are filled under one hold of `order`. A thread that wants to read an event waits for at most one
/// such batch of each replaying thread, and no further batch begins before it. So faults come first.
const BATCH: usize = 32;
/// Number of tries for a chunk before it is left to the faults.
const TRIES: u32 = 8;
/// Number of times that one batch waits for a change of the guest's memory.
const CHANGES: u32 = 1000;

/// Record of the pages that a guest has touched.
#[derive(Debug)]
pub(super) struct Recorder {
    is_on: AtomicBool,
    faults: Mutex<Vec<usize>>,
}

impl Recorder {
    pub fn new(is_on: bool) -> Self {
        Self { is_on: AtomicBool::new(is_on), faults: Mutex::default() }
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Notes pages that a fault filled with the template's content.
    pub fn note(&self, pages: Range<usize>) {
        if self.is_on() {
            self.faults.lock().extend(pages);
        }
    }

    pub fn end(&self) -> Vec<usize> {
        self.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.faults.lock())
    }
}

/// Plan of the pages to fill ahead of faults: those of a working set, by chunk, in the order of the chunks' first use.
#[derive(Debug, Default)]
pub(super) struct Plan {
    jobs: Vec<Job>,
    /// Index of a job, by the first page of its chunk.
    of_chunk: HashMap<usize, usize>,
    next: AtomicUsize,
    /// Number of jobs that are not done.
    left: AtomicUsize,
    /// Keeps the replaying threads from taking the processors from the guest.
    pub compute_limit: ComputeLimit,
}

/// Pages of one chunk to fill.
#[derive(Debug)]
pub(super) struct Job {
    /// Addresses, with the pages of the image that belong there.
    pieces: Vec<(u64, Range<usize>)>,
    /// A thread fills the pages, or has filled them.
    taken: AtomicBool,
}

impl Plan {
    pub fn new(set: &WorkingSet, layout: &Layout, template: &Template) -> Self {
        let mut plan = Self::default();
        let (end, unit) = ((template.size() / PAGE as u64) as usize, layout.unit());
        for run in set.runs() {
            let mut run = run.start.min(end)..run.end.min(end);
            while !run.is_empty() {
                let mut chunk = template.chunk_of(run.start);
                let mut part = run.start..run.end.min(chunk.end);
                if unit > 1 {
                    // A huge page is filled whole, and once.
                    let start = run.start / unit * unit;
                    chunk = start..start + unit;
                    part = if plan.of_chunk.contains_key(&start) { start..start } else { chunk.clone() };
                }
                run.start = run.end.min(chunk.end);
                for piece in layout.places(part) {
                    let job = *plan.of_chunk.entry(chunk.start).or_insert_with(|| {
                        plan.jobs.push(Job { pieces: Vec::new(), taken: AtomicBool::new(false) });
                        plan.jobs.len() - 1
                    });
                    plan.jobs[job].pieces.push(piece);
                }
            }
        }
        plan.left = AtomicUsize::new(plan.jobs.len());
        plan
    }

    /// Number of jobs that are not done.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Returns the job of the chunk that begins with this page, unless another thread has taken it. The caller must do
    /// it.
    pub fn take(&self, chunk: usize) -> Option<&Job> {
        let job = &self.jobs[*self.of_chunk.get(&chunk)?];
        (!job.taken.swap(true, Ordering::Relaxed)).then_some(job)
    }

    /// Returns the next job in order.
    fn next(&self) -> Option<&Job> {
        loop {
            let job = self.jobs.get(self.next.fetch_add(1, Ordering::Relaxed))?;
            if !job.taken.swap(true, Ordering::Relaxed) {
                return Some(job);
            }
        }
    }
}

impl Inner {
    /// Fills pages ahead of faults, until the plan is done or the guest ends. A thread of its own runs this.
    pub(super) fn replay(&self) {
        while let Some(job) = self.plan.next() {
            let Some((_, pages)) = job.pieces.first() else { continue };
            for tries in 0.. {
                if self.has_stopped(Duration::ZERO) {
                    return;
                }
                match self.content(pages.start, Some(&self.plan.compute_limit)) {
                    Ok((content, _)) => {
                        let _permit = self.plan.compute_limit.acquire();
                        self.do_job(job, &content);
                        break;
                    }
                    Err(error) if error.may_pass() && tries < TRIES => _ = self.has_stopped(pause(tries)),
                    // A fault will ask again, and longer.
                    Err(_) => {
                        self.plan.left.fetch_sub(1, Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
    }

    /// Fills the unsettled pages of a job with the content of its chunk.
    pub(super) fn do_job(&self, job: &Job, content: &Content) {
        for (address, pages) in &job.pieces {
            let mut page = pages.start;
            let mut changes = 0;
            while page < pages.end {
                let place = address + ((page - pages.start) * PAGE) as u64;
                let pages = page..pages.end.min(page + BATCH.max(self.layout.unit()));
                match self.fill_ahead(&pages, place, content) {
                    Ok(next) => page = next,
                    Err(Refusal::Again) if changes < CHANGES && !self.has_stopped(super::fault::CHANGE) => {
                        changes += 1;
                    }
                    Err(Refusal::Gone) => return self.finish(),
                    // Something else is mapped there now.
                    Err(_) => break,
                }
            }
        }
        self.plan.left.fetch_sub(1, Ordering::Relaxed);
    }

    /// Fills the first stretch of unsettled pages. Returns the page to continue with.
    fn fill_ahead(&self, pages: &Range<usize>, address: u64, content: &Content) -> Result<usize, Refusal> {
        let _order = self.order.read();
        let settled = |page: &usize| self.journal.is_settled(*page);
        let Some(start) = pages.clone().find(|page| !settled(page)) else { return Ok(pages.end) };
        let end = (start..pages.end).find(settled).unwrap_or(pages.end);
        let chunk = self.chunk_of(start).start;
        let place = address + ((start - pages.start) * PAGE) as u64;
        let (filled, refusal) = self.put(&Piece { pages: start..end, chunk, content, write: false }, place);
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
                match self.template.keep_working_set(set.clone()) {
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
