//! Counters that the threads of a run publish for its watchers. Each vCPU writes its own cache line between two
//! batches of accesses.

use crate::figures::VcpuCounts;
use parking_lot::Mutex;
use slat::{Gfn, VcpuId};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The counters.
// ORDER(live): Relaxed, all of it: figures for people, each by itself.
pub struct Live {
    vcpus: Box<[VcpuLive]>,
    watchers: AtomicUsize,
    /// Pages in all harvests of the dirty log.
    logged: AtomicU64,
    /// A bit per guest frame, set by a harvest and cleared by the watcher. Kept only while a watcher exists.
    written: Mutex<Vec<u64>>,
}

/// The counters of one vCPU, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct VcpuLive(Mutex<VcpuCounts>);

impl Live {
    /// All counters at zero, no watcher.
    pub fn new(vcpus: u32) -> Self {
        Self {
            vcpus: (0..vcpus).map(|_| VcpuLive::default()).collect(),
            watchers: AtomicUsize::new(0),
            logged: AtomicU64::new(0),
            written: Mutex::default(),
        }
    }

    /// Sets the counters of a vCPU. Its thread calls this.
    pub fn set(&self, VcpuId(id): VcpuId, counts: VcpuCounts) {
        *self.vcpus[id as usize].0.lock() = counts;
    }

    /// The counters of each vCPU.
    pub fn vcpus(&self) -> impl Iterator<Item = VcpuCounts> {
        self.vcpus.iter().map(|vcpu| *vcpu.0.lock())
    }

    /// Adds a watcher until the returned value is dropped.
    pub fn watch(&self) -> Watching<'_> {
        self.watchers.fetch_add(1, Relaxed);
        Watching(self)
    }

    /// Adds the pages of a harvest.
    pub fn add_logged(&self, pages: impl Iterator<Item = Gfn>, count: u64) {
        self.logged.fetch_add(count, Relaxed);
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

    /// Pages in all harvests.
    pub fn logged(&self) -> u64 {
        self.logged.load(Relaxed)
    }

    /// Takes the bits of the 64 frames from `first` on.
    pub fn take_written(&self, first: Gfn) -> u64 {
        self.written.lock().get_mut(first.0 as usize / 64).map_or(0, std::mem::take)
    }
}

/// A registered watcher; see [`Live::watch`].
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
    fn written_pages_are_kept_while_watched_and_reported_once() {
        let live = Live::new(1);
        let tell = |gfns: &[u64]| live.add_logged(gfns.iter().copied().map(Gfn), gfns.len() as u64);
        tell(&[1]);
        assert_eq!((live.logged(), live.take_written(Gfn(0))), (1, 0), "no watcher");
        let (one, two) = (live.watch(), live.watch());
        tell(&[1, 63, 64 + 3]);
        drop(one);
        assert_eq!([0, 0, 64, 64, 1 << 40].map(|gfn| live.take_written(Gfn(gfn))), [1 << 63 | 2, 0, 8, 0, 0]);
        tell(&[5]);
        drop(two);
        assert_eq!((live.logged(), live.take_written(Gfn(0))), (5, 0));
    }
}
