//! The plan of a replay: the pages of a working set to fill ahead of faults, grouped by the object that has them. And
//! the record that becomes a working set.

use crate::compute_limit::ComputeLimit;
use crate::layout::Layout;
use crate::store::{Pack, Template, WorkingSet};
use crate::uffd::PAGE;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Plan of the pages to fill ahead of faults, in the order of their first use: one job for each pack, and one for each
/// chunk whose pages are in no pack.
#[derive(Debug, Default)]
pub(super) struct Plan {
    jobs: Vec<Job>,
    /// Index of a job, by the first page of its chunk.
    of_chunk: HashMap<usize, usize>,
    /// Pages in packs, sorted: the job and the piece that have them.
    packed: Vec<(Range<usize>, usize, usize)>,
    next: AtomicUsize,
    /// Number of jobs that are not done.
    left: AtomicUsize,
    /// Keeps the replaying threads from taking the processors from the guest.
    pub compute_limit: ComputeLimit,
}

/// Pages of one pack, or of one chunk, to fill.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub pieces: Vec<JobPiece>,
    pack: Option<Pack>,
    /// The pack could not be read.
    is_lost: AtomicBool,
    /// A thread fills the pages, or has filled them.
    taken: AtomicBool,
}

/// Consecutive pages to fill, all in one chunk unless the pages are huge.
#[derive(Debug)]
pub(super) struct JobPiece {
    pub address: u64,
    /// The pages of the image that belong there.
    pub pages: Range<usize>,
    /// Offset of the first page in the pack, in bytes.
    pub from: usize,
}

impl Job {
    /// Returns the pack that has its pages, unless it could not be read.
    pub fn pack(&self) -> Option<&Pack> {
        self.pack.as_ref().filter(|_| !self.is_lost.load(Ordering::Relaxed))
    }

    /// Returns whether its pages are in a pack, also if that could not be read.
    pub fn has_pack(&self) -> bool {
        self.pack.is_some()
    }

    /// Notes that the pack cannot be read: from now on the pages come from their chunks.
    pub fn lose_pack(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Returns whether the caller must do the job, because no other thread does.
    pub fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Relaxed)
    }
}

impl Plan {
    /// Makes the plan of a guest. `by_page`: its memory is filled page by page, so packs can be used.
    pub fn new(set: &WorkingSet, layout: &Layout, template: &Template, by_page: bool) -> Self {
        let plan = if by_page { Self::of_packs(set, layout, template) } else { None };
        let mut plan = plan.unwrap_or_else(|| Self::of_chunks(set, layout, template));
        plan.left = AtomicUsize::new(plan.jobs.len());
        plan
    }

    /// `None`: the working set has no packs, or they have other pages.
    fn of_packs(set: &WorkingSet, layout: &Layout, template: &Template) -> Option<Self> {
        let mut plan = Self::default();
        let mut runs = template.packed(set).into_iter();
        let mut run = 0..0;
        for pack in set.packs() {
            let mut job = Job { pack: Some(*pack), ..Job::default() };
            let mut done = 0;
            while done < pack.pages {
                if run.is_empty() {
                    run = runs.next()?;
                }
                // An overlay splits runs. Its own pages are in the pack with the content of the base.
                let end = run.end.min(run.start + pack.pages - done).min(template.chunk_of(run.start).end);
                let part = run.start..end;
                if !template.covers(&part) {
                    for (address, pages) in layout.places(part.clone()) {
                        let from = (done + pages.start - part.start) * PAGE;
                        job.pieces.push(JobPiece { address, pages, from });
                    }
                }
                (done, run.start) = (done + part.len(), part.end);
            }
            for (piece, place) in job.pieces.iter().enumerate() {
                plan.packed.push((place.pages.clone(), plan.jobs.len(), piece));
            }
            plan.jobs.push(job);
        }
        if plan.jobs.is_empty() || !run.is_empty() || runs.next().is_some() {
            return None;
        }
        plan.packed.sort_unstable_by_key(|(pages, ..)| pages.start);
        // The pages in chunks of zeros, and in an overlay.
        let is_other = |start| template.is_zero(start) || template.covers(&(start..start + 1));
        for run in set.runs() {
            plan.add_chunks(run, layout, template, is_other);
        }
        Some(plan)
    }

    fn of_chunks(set: &WorkingSet, layout: &Layout, template: &Template) -> Self {
        let mut plan = Self::default();
        set.runs().for_each(|run| plan.add_chunks(run, layout, template, |_| true));
        plan
    }

    /// Adds jobs for those pages of a run whose chunks pass the filter.
    fn add_chunks(
        &mut self,
        run: Range<usize>,
        layout: &Layout,
        template: &Template,
        filter: impl Fn(usize) -> bool,
    ) {
        let (end, unit) = ((template.size() / PAGE as u64) as usize, layout.unit());
        let mut run = run.start.min(end)..run.end.min(end);
        while !run.is_empty() {
            let mut chunk = template.chunk_of(run.start);
            let mut part = run.start..run.end.min(chunk.end);
            if unit > 1 {
                // A huge page is filled whole, and once.
                let start = run.start / unit * unit;
                chunk = start..start + unit;
                part = if self.of_chunk.contains_key(&start) { start..start } else { chunk.clone() };
            }
            run.start = run.end.min(chunk.end);
            if !filter(part.start) {
                continue;
            }
            for (address, pages) in layout.places(part) {
                let job = *self.of_chunk.entry(chunk.start).or_insert_with(|| {
                    self.jobs.push(Job::default());
                    self.jobs.len() - 1
                });
                self.jobs[job].pieces.push(JobPiece { address, pages, from: 0 });
            }
        }
    }

    /// Number of jobs that are not done.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Notes that a job is done, or left to the faults. Returns the number of jobs that are left.
    pub fn end(&self) -> usize {
        self.left.fetch_sub(1, Ordering::Relaxed) - 1
    }

    /// Returns the job of the chunk that begins with this page.
    pub fn of_chunk(&self, chunk: usize) -> Option<&Job> {
        Some(&self.jobs[*self.of_chunk.get(&chunk)?])
    }

    /// Returns the job whose pack has a page, with the pages around it that are consecutive in the pack, and the offset
    /// of their first one in the pack.
    pub fn packed(&self, page: usize) -> Option<(&Job, Range<usize>, usize)> {
        let at = self.packed.partition_point(|(pages, ..)| pages.end <= page);
        let (pages, job, piece) = self.packed.get(at).filter(|(pages, ..)| pages.contains(&page))?;
        let job = &self.jobs[*job];
        Some((job, pages.clone(), job.pieces[*piece].from))
    }

    /// Returns the next job in order that no thread has taken. The caller must do it.
    pub fn next(&self) -> Option<&Job> {
        loop {
            let job = self.jobs.get(self.next.fetch_add(1, Ordering::Relaxed))?;
            if job.take() {
                return Some(job);
            }
        }
    }
}

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
