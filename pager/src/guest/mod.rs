//! One guest: its memory, and the threads that serve its faults.

mod bits;
mod capture;
mod content;
mod fault;
mod fill;
mod harvest;
mod huge_page;
mod load;
mod memory_reader;
mod plan;
mod reclaim;
mod replay;
mod serve;
mod track;
mod waits;

pub use harvest::{Handle, Harvest, HarvestError, Stored};
pub use memory_reader::Life;
pub use reclaim::swap_file;
pub(crate) use waits::Waiting;

use crate::cache::{Cache, Source};
use crate::journal::{Journal, MOST_READERS};
use crate::latency::{Latencies, Latency, Times};
use crate::layout::Layout;
use crate::share::Share;
use crate::store::Template;
use crate::uffd::Uffd;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, epoll, eventfd};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most threads that fill pages ahead of the faults of one guest.
pub const MOST_REPLAYING: usize = 64;

/// Options for serving a guest.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// Number of threads that serve the guest, 1 to [`MOST_READERS`]. The first reads its faults; the others wait for
    /// the store.
    pub threads: usize,
    /// Most pages that one fault brings: an aligned window in the same chunk. A power of two.
    pub window: usize,
    /// Treatment of a page that the store lost.
    pub lost: Lost,
    /// Treatment of a guest that a [`Worker`](crate::Worker) can no longer serve.
    pub on_failure: OnFailure,
    /// Time for which a guest is recorded if its template has no working set. The pages that it touches in this time
    /// become the template's [`WorkingSet`](crate::WorkingSet). It gets pages one by one meanwhile, so that the record
    /// has no others. One guest of a template is recorded at a time. `None`: no guest is recorded.
    pub record: Option<Duration>,
    /// Number of threads that fill the pages of the template's working set ahead of faults, at most [`MOST_REPLAYING`];
    /// also the number of chunks that they request at the same time. They end when the working set is filled. 0: none
    /// are filled ahead.
    pub replay: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 3,
            window: 16,
            lost: Lost::Wait,
            on_failure: OnFailure::Wait,
            record: None,
            replay: 16,
        }
    }
}

impl Options {
    /// Checks the options.
    pub fn check(&self) -> io::Result<()> {
        let what = if self.replay > MOST_REPLAYING {
            format!("replay is {}: at most {MOST_REPLAYING} threads are allowed", self.replay)
        } else if !(1..=MOST_READERS).contains(&self.threads) {
            format!("threads is {}: 1 to {MOST_READERS} are allowed", self.threads)
        } else if !self.window.is_power_of_two() {
            format!("window is {} pages: a power of two is allowed", self.window)
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }
}

/// Treatment of a page whose chunk is missing or damaged. If the store cannot be reached, the guest always waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum Lost {
    /// A thread that touches it waits until the chunk is back.
    Wait,
    /// A thread that touches it gets SIGBUS, as after a memory error. On kernels before 6.6, which lack this, it waits.
    Poison,
}

/// Treatment of a guest that can no longer be served, because its template is lost or the kernel refuses a call. A VMM
/// whose handshake is refused is not killed; its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum OnFailure {
    /// The guest waits at its next missing page until an operator ends its VMM.
    Wait,
    /// The VMM gets SIGKILL.
    Kill,
}

/// Counters of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GuestStats {
    /// Times of its faults, by source.
    pub latency: Vec<(String, Latency)>,
    /// Pages filled, including those that came with another.
    pub filled: u64,
    /// Of these, pages filled ahead of faults, from the template's working set.
    pub ahead: u64,
    /// Chunks of the working set still to fill ahead.
    pub chunks_left: u64,
    /// Pages of the working set that was recorded with this guest. 0: none was.
    pub recorded: u64,
    /// Removals that the kernel reported.
    pub removes: u64,
    /// Repeated faults, because the guest's memory changed or the store did not answer.
    pub again: u64,
    /// Pages marked as lost.
    pub poisoned: u64,
    /// Pages written to the swap file, counted each time.
    #[serde(default)]
    pub reclaimed: u64,
    /// Settled pages: their content is no longer the template's.
    pub settled: u64,
    /// Faults that wait now: for the store, the swap file, or memory.
    #[serde(default)]
    pub waiting: u64,
}

impl GuestStats {
    /// Returns the number of faults served from this source.
    pub fn faults(&self, source: Source) -> u64 {
        self.latency.iter().find(|(name, _)| name == source.name()).map_or(0, |(_, latency)| latency.count)
    }
}

/// State that the threads of a guest share.
struct Inner {
    uffd: Uffd,
    life: Option<Life>,
    layout: Layout,
    template: Template,
    cache: Arc<Cache>,
    journal: Journal,
    options: Options,
    /// Threads fill pages under the shared lock, and read and note events under the exclusive one. So a page that is
    /// checked in the journal and filled under one hold has no removal that was read and not noted. If a removal was
    /// not read yet, the kernel refuses to fill the page.
    order: RwLock<()>,
    /// Faults to try again.
    later: Mutex<VecDeque<fault::Fault>>,
    stop: OwnedFd,
    /// An epoll of the descriptors that the first thread awaits.
    events: OwnedFd,
    /// An eventfd that counts the faults handed to threads that may wait for the store.
    handed: OwnedFd,
    plan: plan::Plan,
    recorder: plan::Recorder,
    tracking: capture::Tracking,
    backing: Backing,
    /// Pages touched since the last tick, and the ticks since the last touch of each page. Empty if no page is reclaimed.
    young: bits::Bits,
    ages: Mutex<Vec<u8>>,
    reclaimed: AtomicU64,
    /// The kernel can map a page of shared memory and protect it in one step (from 6.4 on).
    can_resume_protected: bool,
    ahead: AtomicU64,
    recorded: AtomicU64,
    latencies: Latencies,
    filled: AtomicU64,
    removes: AtomicU64,
    again: AtomicU64,
    poisoned: AtomicU64,
    waits: waits::Waits,
    /// When the guest began, if it has a plan and begins with no page; and how long its plan took.
    began: Option<Instant>,
    prefetch: OnceLock<Duration>,
}

/// A served guest. Dropping it stops the service; the guest's next fault then waits for another pager.
pub struct Guest {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// The counters of a guest, for a thread that reads them while another thread waits for the guest's end.
pub(crate) struct Watch(Arc<Inner>);

impl Watch {
    pub fn stats(&self) -> GuestStats {
        self.0.stats()
    }

    /// Returns the faults that wait. `None`: none does.
    pub fn waiting(&self) -> Option<Waiting> {
        self.0.waits.now()
    }

    /// Adds the times of its faults, by source.
    pub fn add_to(&self, times: &mut [Times; Source::ALL.len()]) {
        self.0.latencies.add_to(times);
    }

    /// Returns the time from its begin until its working set was filled. `None`: it is not, or it has none, or an earlier
    /// worker began the guest.
    pub fn prefetch(&self) -> Option<Duration> {
        self.0.prefetch.get().copied()
    }
}

/// The kind of a guest's memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum Backing {
    /// Private memory, or unknown memory.
    Own,
    /// Shared memory in this file, at the offsets of the regions. Snapshots and reclaim of shared memory need the file.
    Memory(OwnedFd),
    /// Shared memory, as above, with a swap file for cold pages: [`Handle::reclaim`]. Only the VMM may map it.
    Swapped {
        /// The memory's file.
        memory: OwnedFd,
        /// The swap file: an empty file, or that of the previous pager, with the same offsets.
        swap: OwnedFd,
    },
    /// A private mapping of the memory that clones share, at the offsets of the regions.
    Share(Share),
}

/// Parts of a guest.
pub struct Parts {
    /// The guest's userfaultfd.
    pub uffd: Uffd,
    /// The place of its memory.
    pub layout: Layout,
    /// The initial content of its memory.
    pub template: Template,
    /// The cache of this host.
    pub cache: Arc<Cache>,
    /// Its journal; empty for a new guest.
    pub journal: Journal,
    /// Means to see its end. Without one, the next fault shows it.
    pub life: Option<Life>,
}

impl Guest {
    /// Begins to serve a guest. Threads whose faults an earlier pager has read and not answered fault again.
    ///
    /// # Errors
    /// `InvalidInput`: the options. Or no thread can be started.
    pub fn serve(parts: Parts, options: Options) -> io::Result<Self> {
        Self::serve_on(parts, Backing::Own, options)
    }

    /// As [`Guest::serve`], with the kind of the guest's memory.
    ///
    /// # Errors
    /// As of [`Guest::serve`].
    pub fn serve_on(parts: Parts, backing: Backing, options: Options) -> io::Result<Self> {
        options.check()?;
        let Parts { uffd, layout, template, cache, journal, life } = parts;
        let zero = || AtomicU64::new(0);
        let pages = layout.image_pages();
        // Only cold pages of such a guest can be reclaimed.
        let aged = if matches!(backing, Backing::Swapped { .. }) { pages } else { 0 };
        let set = template.working_set().filter(|_| options.replay > 0);
        let by_page = layout.unit() == 1 && !matches!(backing, Backing::Share(_));
        let plan = set.map(|set| plan::Plan::new(&set, &layout, &template, by_page)).unwrap_or_default();
        // A guest that was served before has already touched its first pages.
        let is_new = journal.settled() == 0;
        let record = options.record.filter(|_| is_new && template.begin_recording());
        let began = (is_new && plan.left() > 0).then(Instant::now);
        let inner = Arc::new(Inner {
            uffd,
            life,
            layout,
            template,
            cache,
            journal,
            options,
            order: RwLock::new(()),
            later: Mutex::default(),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            handed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE)?,
            plan,
            recorder: plan::Recorder::new(record.is_some()),
            tracking: capture::Tracking::new(pages),
            backing,
            young: bits::Bits::new(aged),
            ages: Mutex::new(vec![0; aged]),
            reclaimed: zero(),
            can_resume_protected: kernel_is_at_least(6, 4),
            ahead: zero(),
            recorded: zero(),
            latencies: Latencies::new(),
            filled: zero(),
            removes: zero(),
            again: zero(),
            poisoned: zero(),
            waits: waits::Waits::default(),
            began,
            prefetch: OnceLock::new(),
        });
        inner.await_events()?;
        if matches!(inner.backing, Backing::Swapped { .. }) {
            for region in inner.layout.regions() {
                inner.uffd.track(region.base, region.size)?;
            }
            inner.recover()?;
        }
        if inner.share().is_some() {
            for region in inner.layout.regions() {
                inner.uffd.trace(region.base, region.size)?;
            }
        }
        for region in inner.layout.regions() {
            // This fails if the guest has ended, which the threads will see.
            _ = inner.uffd.wake(region.base, region.size);
        }
        let mut guest = Self { inner, threads: Vec::new() };
        for number in 0..options.threads {
            let inner = guest.inner.clone();
            guest.spawn(format!("guest-{number}"), move || inner.run(number))?;
        }
        for number in 0..options.replay.min(guest.inner.plan.left()) {
            let inner = guest.inner.clone();
            guest.spawn(format!("replay-{number}"), move || inner.replay())?;
        }
        if let Some(time) = record {
            let inner = guest.inner.clone();
            guest.spawn("record".into(), move || inner.record(time))?;
        }
        Ok(guest)
    }

    /// Starts a thread. On failure the drop of the guest stops the running threads.
    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    /// Returns the counters.
    pub fn stats(&self) -> GuestStats {
        self.inner.stats()
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch(self.inner.clone())
    }

    /// Stops after the work under way, and returns the counters.
    pub fn stop(self) -> GuestStats {
        self.inner.finish();
        self.wait()
    }

    /// Waits until the guest's process has ended, and returns the counters.
    pub fn wait(mut self) -> GuestStats {
        self.threads.drain(..).for_each(|thread| _ = thread.join());
        self.stats()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.inner.finish();
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

impl Inner {
    /// Returns the memory that it shares with other clones.
    fn share(&self) -> Option<&Share> {
        if let Backing::Share(share) = &self.backing { Some(share) } else { None }
    }

    /// Tells all threads to end.
    fn finish(&self) {
        // The counter cannot overflow.
        _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    fn stats(&self) -> GuestStats {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        GuestStats {
            latency: self.latencies.all(),
            filled: read(&self.filled),
            ahead: read(&self.ahead),
            chunks_left: self.plan.left() as u64,
            recorded: read(&self.recorded),
            removes: read(&self.removes),
            again: read(&self.again),
            poisoned: read(&self.poisoned),
            reclaimed: read(&self.reclaimed),
            settled: self.journal.settled() as u64,
            waiting: self.waits.count(),
        }
    }

    /// Notes that a job of the plan is done, or left to the faults.
    fn end_job(&self) {
        if self.plan.end() == 0
            && let Some(began) = self.began
        {
            _ = self.prefetch.set(began.elapsed());
        }
    }
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

/// Returns the pause before the `n`th retry of a fault: none if the guest's memory changed, and longer each time if the
/// store did not answer.
pub(crate) fn pause(n: u32) -> Duration {
    Duration::from_millis(10 << n.min(6))
}
