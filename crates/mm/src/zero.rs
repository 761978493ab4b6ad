//! Zeroing frames ahead of need, by a thread with idle priority.
//!
//! A fault on fresh memory spends most of its time on zeroing. If the frame was never used, the kernel also
//! allocates memory for it. The zeroer does both ahead of time. The frames stay free: any allocation may take
//! them, and [`Arena::trim`] returns them to the system. In an arena with [poison](crate::ArenaBuilder::poison)
//! their zeroes are checked like the fill of other free frames.

use crate::arena::Arena;
use crate::nodes::{ListStats, Node};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Time between two checks of the number of zeroed frames.
const PERIOD: Duration = Duration::from_millis(2);

impl Arena {
    /// Zeroes free frames of each node until the node has `frames` of them, or no more are free. Returns how
    /// many were zeroed.
    ///
    /// ```
    /// # use slat_mm::*;
    /// # use slat::Level;
    /// let arena = Arena::builder().limit(64 << 20).build()?;
    /// assert_eq!(arena.zero_ahead(100), 100);
    /// let page = arena.zeroed(Level::K4)?;
    /// assert_eq!(arena.list_stats().zeroed, 1);
    /// # Ok::<(), MmError>(())
    /// ```
    pub fn zero_ahead(&self, frames: u64) -> u64 {
        std::iter::repeat_with(|| self.zero_some(frames)).take_while(|&made| made > 0).sum()
    }

    /// Zeroes a batch of frames on the first node that lacks some.
    fn zero_some(&self, frames: u64) -> u64 {
        let of_node = |node| {
            let node = self.node(Node(node));
            let missing = frames.saturating_sub(node.zeroed());
            if missing == 0 { 0 } else { node.zero_ahead(missing, |pfn| self.zero_free(pfn)) }
        };
        (0..self.nodes()).map(of_node).find(|&made| made > 0).unwrap_or(0)
    }

    /// Returns counts of single-frame allocations: how often they used shared state.
    pub fn list_stats(&self) -> ListStats {
        (0..self.nodes()).map(|node| self.node(Node(node)).list_stats()).fold(
            ListStats::default(),
            |sum, node| ListStats {
                taken: sum.taken + node.taken,
                zeroed: sum.zeroed + node.zeroed,
                batches: sum.batches + node.batches,
                waits: sum.waits + node.waits,
            },
        )
    }
}

/// A thread that keeps `frames` frames of each node zeroed ahead of need. Dropping this stops it, after at most
/// one batch of 32 frames. The kernel runs it only when no other thread wants its processor (`SCHED_IDLE`). If
/// the system cannot start a thread, faults zero their frames.
///
/// ```
/// # use slat_mm::*;
/// let arena = Arena::builder().limit(64 << 20).build()?;
/// let zeroer = Zeroer::start(&arena, 1024);
/// # Ok::<(), MmError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it stops the thread"]
pub struct Zeroer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Zeroer {
    /// Starts the thread.
    pub fn start(arena: &Arc<Arena>, frames: u64) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (stopped, arena) = (stop.clone(), arena.clone());
        let thread = Builder::new().name("zeroer".into()).spawn(move || {
            run_when_idle();
            let (flag, changed) = &*stopped;
            let mut stop = flag.lock();
            while !*stop {
                let made = MutexGuard::unlocked(&mut stop, || arena.zero_some(frames));
                if !*stop && made == 0 {
                    changed.wait_for(&mut stop, PERIOD);
                }
            }
        });
        Self { stop, thread: thread.ok() }
    }
}

impl Drop for Zeroer {
    fn drop(&mut self) {
        let (flag, changed) = &*self.stop;
        *flag.lock() = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its own thread.
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread idle priority; it keeps its priority if the system refuses.
fn run_when_idle() {
    // SAFETY: all fields are numbers.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: changes the calling thread; reads one valid value.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat::{Level, PAGE_SIZE};
    use std::thread;

    fn is_zero(arena: &Arena, page: &crate::Held<'_>) -> bool {
        // SAFETY: the caller holds the page, and no other thread uses it.
        let bytes: &[u8; PAGE_SIZE as usize] = unsafe { &*arena.frame(page.pfn()).cast() };
        *bytes == [0; PAGE_SIZE as usize]
    }

    #[test]
    fn zeroed_frames_are_taken_first_for_zeroes_and_last_for_all_else() {
        let arena = Arena::builder().limit(4 << 20).nodes(2).poison(0xdd).build().unwrap();
        let used: Vec<_> = (0..64).map(|_| arena.page(Level::K4).unwrap()).collect();
        for page in &used {
            // SAFETY: held.
            unsafe { arena.frame(page.pfn()).write_bytes(7, PAGE_SIZE as usize) };
        }
        drop(used);
        assert_eq!(arena.zero_ahead(70), 140, "70 on each node");
        assert_eq!((arena.zero_ahead(70), arena.stats().in_use), (0, 0), "zeroed frames are free");
        let zeroes: Vec<_> = (0..100).map(|_| arena.zeroed(Level::K4).unwrap()).collect();
        assert_eq!(arena.list_stats().zeroed, 70, "then others are zeroed on demand");
        assert!(zeroes.iter().all(|page| is_zero(&arena, page)));
        drop(zeroes);
        assert!(arena.zero_ahead(512) > 600, "too few frames were zeroed ahead");
        let all: Vec<_> = std::iter::from_fn(|| arena.page(Level::K4).ok()).collect();
        assert_eq!((all.len(), arena.stats().stale_writes), (1024, 0));
        drop(all);
        assert_eq!(arena.stats(), crate::ArenaStats { frames: 1024, ..Default::default() });
        drop([0, 1].map(|node| arena.page_on(Node(node), Level::M2).unwrap()));
    }

    #[test]
    fn a_write_to_a_free_frame_of_zeroes_is_found() {
        let arena = Arena::builder().limit(2 << 20).poison(0xdd).build().unwrap();
        let page = arena.page(Level::K4).unwrap();
        let pfn = page.pfn();
        drop(page);
        arena.zero_ahead(512);
        // SAFETY: no other thread uses it. This write is the bug to detect.
        unsafe { arena.frame(pfn).add(9).write(1) };
        let all: Vec<_> = std::iter::from_fn(|| arena.zeroed(Level::K4).ok()).collect();
        assert_eq!((all.len(), arena.stats().stale_writes), (512, 1));
        assert!(all.iter().all(|page| is_zero(&arena, page)), "the write has no effect");
    }

    #[test]
    fn zeroed_frames_are_trimmed_as_others() {
        let arena = Arena::builder().limit(4 << 20).build().unwrap();
        assert_eq!((arena.zero_ahead(100), arena.trim()), (100, Ok(100 * PAGE_SIZE)));
        assert!(is_zero(&arena, &arena.zeroed(Level::K4).unwrap()));
    }

    #[test]
    fn a_thread_keeps_zeroed_frames_ready() {
        let arena = Arena::builder().limit(16 << 20).build().unwrap();
        let zeroer = Zeroer::start(&arena, 256);
        for _ in 0..4 {
            while arena.node(Node(0)).zeroed() < 256 {
                thread::sleep(PERIOD);
            }
            let pages: Vec<_> = (0..200).map(|_| arena.zeroed(Level::K4).unwrap()).collect();
            assert!(pages.iter().all(|page| is_zero(&arena, page)));
        }
        drop(zeroer);
        assert_eq!(arena.list_stats().zeroed, 800);
        assert_eq!((arena.list_stats().taken, arena.stats().in_use), (800, 0));
    }

    /// Threads that take frames meet once per batch in the arena's bookkeeping, and nowhere else.
    #[test]
    fn threads_that_take_frames_share_no_line_but_once_in_a_batch() {
        const EACH: u64 = 4096;
        /// Number of frames whose states share one pair of lines, and whose notes share two.
        const LINES: u64 = 128 / size_of::<u32>() as u64;
        let arena = Arena::builder().limit(64 << 20).build().unwrap();
        arena.zero_ahead(2 * EACH);
        for zeroed in [true, false] {
            let before = arena.list_stats();
            let take = || {
                let pages: Vec<_> = (0..EACH).map(|_| arena.zeroed(Level::K4).unwrap()).collect();
                let lines = pages.iter().map(|page| page.pfn().0 / LINES);
                (lines.collect::<std::collections::BTreeSet<_>>(), pages)
            };
            let [(one, _), (other, _)] = thread::scope(|scope| {
                let threads = [(); 2].map(|()| scope.spawn(take));
                threads.map(|thread| thread.join().unwrap())
            });
            let shared = one.intersection(&other).count();
            let stats = arena.list_stats();
            assert_eq!(stats.taken - before.taken, 2 * EACH);
            assert_eq!(stats.zeroed - before.zeroed, if zeroed { 2 * EACH } else { 0 });
            assert!(stats.batches - before.batches <= 4 * EACH / 32, "{stats:?}");
            assert_eq!((shared, stats.waits - before.waits), (0, 0));
        }
    }
}
