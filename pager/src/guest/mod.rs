//! One guest: its memory, and the threads that serve its faults.

mod bits;
mod fill;
mod harvest;
mod huge;
mod memory_reader;
mod reclaim;
mod replay;
mod serve;
mod track;

pub use harvest::{Handle, Harvest, HarvestError, Stored};
pub use reclaim::swap_file;

use crate::cache::{Cache, Source};
use crate::journal::{Journal, MOST_READERS};
use crate::latency::{Latencies, Latency};
use crate::layout::Layout;
use crate::sabotage::Sabotage;
use crate::share::Share;
use crate::store::Template;
use crate::uffd::Uffd;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that may fill pages ahead of the faults of one guest.
pub const MOST_REPLAYING: usize = 64;

/// How a guest is served.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// Threads that serve it, 1 to [`MOST_READERS`]. The first reads its faults; if there are others, they wait for the store.
    pub threads: usize,
    /// Pages that come with one that faults, at most: an aligned window of so many, in the same chunk. A power of two.
    pub window: usize,
    /// What becomes of a page that the store lost.
    pub lost: Lost,
    /// What becomes of a guest that a [`Worker`](crate::Worker) cannot serve any more.
    pub on_failure: OnFailure,
    /// Whether a guest of a template that has no working set is recorded, and for how long: the pages that it touches in this time
    /// become the template's [`WorkingSet`](crate::WorkingSet). It gets them one by one meanwhile, so that the record has no others.
    /// One guest of a template is recorded at a time.
    pub record: Option<Duration>,
    /// Threads that fill the pages of the template's working set ahead of faults, at most [`MOST_REPLAYING`]. They end when it is
    /// there. So many chunks are asked of the store at the same time. 0: none are filled ahead.
    pub replay: usize,
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
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
            sabotage: None,
        }
    }
}

impl Options {
    /// Whether they make sense.
    pub fn check(&self) -> io::Result<()> {
        if self.replay > MOST_REPLAYING {
            let what = format!("{} threads that replay: at most {MOST_REPLAYING}", self.replay);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if (1..=MOST_READERS).contains(&self.threads) && self.window.is_power_of_two() {
            return Ok(());
        }
        let what = format!(
            "{} threads, a window of {} pages: 1 to {MOST_READERS}, and a power of two",
            self.threads, self.window
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }
}

/// What becomes of a page whose chunk is missing or damaged. Where the store cannot be reached, the guest waits in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum Lost {
    /// Who touches it waits, until the chunk has come back.
    Wait,
    /// Who touches it gets SIGBUS, as after a memory error. Where the kernel cannot do that (before 6.6), it waits.
    Poison,
}

/// What becomes of a guest that cannot be served any more: its template is lost, or the system refuses what its service takes. Where a
/// VMM's handshake is refused, its connection is closed, and it is not killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum OnFailure {
    /// It stands still at its next missing page, until an operator ends its VMM.
    Wait,
    /// Its VMM gets SIGKILL.
    Kill,
}

/// By which the end of a guest's process is known.
#[derive(Debug)]
pub enum Life {
    /// A descriptor of the process.
    Process(OwnedFd),
    /// The connection: closed when the process ends.
    Connection(OwnedFd),
}

/// What was done for a guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GuestStats {
    /// Times of its faults, by source.
    pub latency: Vec<(String, Latency)>,
    /// Pages that were filled, with those that came along.
    pub filled: u64,
    /// Those of them that were filled ahead of faults, from the template's working set.
    pub ahead: u64,
    /// Chunks of the working set that are still to be filled ahead.
    pub chunks_left: u64,
    /// Pages of the working set that was recorded with this guest. 0: none was.
    pub recorded: u64,
    /// Removals that were told.
    pub removes: u64,
    /// Faults that had to be tried again, because the guest's memory changed or the store did not answer.
    pub again: u64,
    /// Pages that were given up.
    pub poisoned: u64,
    /// Pages that left for the swap file, each time counted.
    #[serde(default)]
    pub reclaimed: u64,
    /// Pages for which the template no longer speaks.
    pub settled: u64,
}

impl GuestStats {
    /// Faults from this source.
    pub fn faults(&self, source: Source) -> u64 {
        self.latency.iter().find(|(name, _)| name == source.name()).map_or(0, |(_, latency)| latency.count)
    }
}

/// What the threads of a guest share.
struct Inner {
    uffd: Uffd,
    life: Option<Life>,
    layout: Layout,
    template: Template,
    cache: Arc<Cache>,
    journal: Journal,
    options: Options,
    /// Pages are filled under the shared lock, and events are read and noted under the exclusive one. So a page that is looked up
    /// in the journal and filled under one hold cannot have a removal that is read, but not noted. One that is not read yet makes
    /// the kernel refuse the page.
    order: RwLock<()>,
    /// Faults to try again.
    later: Mutex<VecDeque<serve::Fault>>,
    stop: OwnedFd,
    /// Counts the faults that were handed to threads that may wait for the store.
    handed: OwnedFd,
    plan: replay::Plan,
    recorder: replay::Recorder,
    tracking: track::Tracking,
    backing: Backing,
    /// Pages that were touched since the last tick, where that is noted, and ticks since each was.
    young: bits::Bits,
    ages: Mutex<Vec<u8>>,
    reclaimed: AtomicU64,
    /// The kernel can map a page of shared memory and protect it in one step: from 6.4 on.
    can_resume_protected: bool,
    ahead: AtomicU64,
    recorded: AtomicU64,
    latencies: Latencies,
    filled: AtomicU64,
    removes: AtomicU64,
    again: AtomicU64,
    poisoned: AtomicU64,
}

/// A guest that is being served. Dropping it stops that; the guest's next fault then waits for another pager.
pub struct Guest {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// What is done for a guest, for a thread that watches it while another thread waits for its end.
pub(crate) struct Watch(Arc<Inner>);

impl Watch {
    pub fn stats(&self) -> GuestStats {
        self.0.stats()
    }
}

/// What a guest's memory is.
#[derive(Debug)]
#[non_exhaustive]
pub enum Backing {
    /// Its own, or nothing is known of it.
    Own,
    /// This file, as shared memory. The offsets of its regions are those in the file. What reads or reclaims shared memory needs it.
    Memory(OwnedFd),
    /// Shared memory, as above, of which cold pages may leave for a swap file: [`Handle::reclaim`]. No process but the VMM may use it.
    Swapped {
        /// Its file.
        memory: OwnedFd,
        /// An empty file, or that of the pager before this one. It has the same offsets.
        swap: OwnedFd,
    },
    /// A private mapping of what clones share, at the offsets of its regions.
    Share(Share),
}

/// What a guest is made of.
pub struct Parts {
    /// The guest's userfaultfd.
    pub uffd: Uffd,
    /// Where its memory is.
    pub layout: Layout,
    /// What its memory was.
    pub template: Template,
    /// The cache of this host.
    pub cache: Arc<Cache>,
    /// Its journal: empty for a new guest.
    pub journal: Journal,
    /// By which its end is known. Without one, it is known at the next fault.
    pub life: Option<Life>,
}

impl Guest {
    /// Begins to serve a guest. Faults that another pager has read and not answered are asked for again.
    ///
    /// # Errors
    /// `InvalidInput`: the options; or a thread cannot be had.
    pub fn serve(parts: Parts, options: Options) -> io::Result<Self> {
        Self::serve_on(parts, Backing::Own, options)
    }

    /// As [`Guest::serve`], with what is known of the guest's memory.
    ///
    /// # Errors
    /// As of [`Guest::serve`].
    pub fn serve_on(parts: Parts, backing: Backing, options: Options) -> io::Result<Self> {
        options.check()?;
        let Parts { uffd, layout, template, cache, journal, life } = parts;
        let zero = || AtomicU64::new(0);
        let pages = layout.image_pages();
        let set = template.working_set().filter(|_| options.replay > 0);
        let plan = set.map(|set| replay::Plan::new(&set, &layout, &template)).unwrap_or_default();
        // One that was served before has touched its first pages already.
        let record = options.record.filter(|_| journal.settled() == 0 && template.begin_recording());
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
            handed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE)?,
            plan,
            recorder: replay::Recorder::new(record.is_some()),
            tracking: track::Tracking::new(pages),
            backing,
            young: bits::Bits::new(pages),
            ages: Mutex::new(vec![0; pages]),
            reclaimed: zero(),
            can_resume_protected: kernel_is_at_least(6, 4),
            ahead: zero(),
            recorded: zero(),
            latencies: Latencies::new(),
            filled: zero(),
            removes: zero(),
            again: zero(),
            poisoned: zero(),
        });
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
        if options.sabotage != Some(Sabotage::Wake) {
            for region in inner.layout.regions() {
                // It fails where the guest is gone, which the threads will see.
                _ = inner.uffd.wake(region.base, region.size);
            }
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

    /// Where a thread cannot be had, those that run are stopped by the drop.
    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    /// What was done until now.
    pub fn stats(&self) -> GuestStats {
        self.inner.stats()
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch(self.inner.clone())
    }

    /// Stops, when what is under way is done: what was done until then.
    pub fn stop(self) -> GuestStats {
        self.inner.finish();
        self.wait()
    }

    /// Waits until the guest's process has ended.
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
    /// What it shares with other clones.
    fn share(&self) -> Option<&Share> {
        if let Backing::Share(share) = &self.backing { Some(share) } else { None }
    }

    /// Tells all threads to end.
    fn finish(&self) {
        // It cannot be full.
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
        }
    }
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

/// The time before a fault is tried again for the `n`th time: at once where the guest's memory changed, and longer each time where
/// the store did not answer.
pub(crate) fn pause(n: u32) -> Duration {
    Duration::from_millis(10 << n.min(6))
}
