//! What the threads of a run publish for its watchers. Each vCPU has cache lines of its own, which it writes between two
//! batches of accesses; no two threads add to the same counter.

use crate::run::figures::VcpuCounts;
use parking_lot::Mutex;
use slat::Gfn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// See the module's header.
// ORDER(live): Relaxed, all of it: figures for people, each by itself.
pub struct Live {
    vcpus: Box<[VcpuLive]>,
    watchers: AtomicUsize,
    /// Pages that the dirty log has told of, as often as it has.
    told: AtomicU64,
    /// A bit for each guest frame: told of since it was last taken. Kept only while there is a watcher.
    written: Mutex<Vec<u64>>,
}

/// One vCPU's counters.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct VcpuLive {
    accesses: AtomicU64,
    faults: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl VcpuLive {
    /// For the thread that runs it.
    pub fn set(&self, counts: VcpuCounts) {
        self.accesses.store(counts.accesses, Relaxed);
        self.faults.store(counts.faults, Relaxed);
        self.hits.store(counts.hits, Relaxed);
        self.misses.store(counts.misses, Relaxed);
    }

    fn get(&self) -> VcpuCounts {
        VcpuCounts {
            accesses: self.accesses.load(Relaxed),
            faults: self.faults.load(Relaxed),
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
        }
    }
}

impl Live {
    /// Nothing has happened yet, and there is no watcher.
    pub fn new(vcpus: u32) -> Self {
        Self {
            vcpus: (0..vcpus).map(|_| VcpuLive::default()).collect(),
            watchers: AtomicUsize::new(0),
            told: AtomicU64::new(0),
            written: Mutex::default(),
        }
    }

    /// One vCPU's.
    pub fn vcpu(&self, id: u32) -> &VcpuLive {
        &self.vcpus[id as usize]
    }

    /// Of each vCPU.
    pub fn vcpus(&self) -> impl Iterator<Item = VcpuCounts> {
        self.vcpus.iter().map(VcpuLive::get)
    }

    /// Adds a watcher, until the returned value is dropped.
    pub fn watch(&self) -> Watching<'_> {
        self.watchers.fetch_add(1, Relaxed);
        Watching(self)
    }

    /// The dirty log has told of these.
    pub fn told_of(&self, pages: impl Iterator<Item = Gfn>, count: u64) {
        self.told.fetch_add(count, Relaxed);
        if self.watchers.load(Relaxed) == 0 {
            return;
        }
        let mut written = self.written.lock();
        for Gfn(gfn) in pages {
            let word = gfn as usize / 64;
            if word >= written.len() {
                written.resize(word + 1, 0);
            }
            written[word] |= 1 << (gfn % 64);
        }
    }

    /// Pages that the dirty log has told of.
    pub fn told(&self) -> u64 {
        self.told.load(Relaxed)
    }

    /// Which frames of 64 from `first` on were told of since this was last asked.
    pub fn take_written(&self, first: Gfn) -> u64 {
        self.written.lock().get_mut(first.0 as usize / 64).map_or(0, std::mem::take)
    }
}

/// See [`Live::watch`].
#[must_use = "the watcher is gone when it is dropped"]
pub struct Watching<'l>(&'l Live);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        if self.0.watchers.fetch_sub(1, Relaxed) == 1 {
            self.0.written.lock().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_kept_while_a_reader_watches_and_told_once() {
        let live = Live::new(1);
        let tell = |gfns: &[u64]| live.told_of(gfns.iter().copied().map(Gfn), gfns.len() as u64);
        tell(&[1]);
        assert_eq!((live.told(), live.take_written(Gfn(0))), (1, 0), "no watcher");
        let (one, two) = (live.watch(), live.watch());
        tell(&[1, 63, 64 + 3]);
        drop(one);
        assert_eq!([0, 0, 64, 64, 1 << 40].map(|gfn| live.take_written(Gfn(gfn))), [1 << 63 | 2, 0, 8, 0, 0]);
        tell(&[5]);
        drop(two);
        assert_eq!((live.told(), live.take_written(Gfn(0))), (5, 0));
    }
}
