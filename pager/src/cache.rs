//! The host's cache of chunks: shared by all guests, with a limit.

use crate::store::{Hash, StoreError};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;

/// The content of a chunk.
pub type Chunk = Arc<Vec<u8>>;

/// Where a page came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// The host's cache.
    Cache,
    /// The store.
    Store,
    /// Nowhere: it is zero.
    Zero,
    /// It was in the shared memory.
    Shared,
    /// It was there when the fault was looked at.
    Present,
    /// It was there, and protected: a write to it is noted.
    Written,
}

impl Source {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Cache, Self::Store, Self::Zero, Self::Shared, Self::Present, Self::Written];

    /// In reports.
    pub fn name(self) -> &'static str {
        ["cache", "store", "zero", "shared", "present", "written"][self as usize]
    }
}

/// A cache with a limit. What was not asked for since the hand last came by goes first (a clock). A chunk is read from the store
/// once, however many guests wait for it.
#[derive(Debug)]
pub struct Cache {
    limit: usize,
    state: Mutex<State>,
    read: Condvar,
}

#[derive(Debug, Default)]
struct State {
    chunks: HashMap<Hash, Entry>,
    /// Those that are there, in the order of the hand.
    ring: Vec<Hash>,
    hand: usize,
    bytes: usize,
    stats: CacheStats,
}

#[derive(Debug)]
enum Entry {
    /// A thread reads it.
    Reading,
    There {
        content: Chunk,
        used: bool,
    },
}

/// What a cache did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Chunks that were there, or that another thread was reading.
    pub hits: u64,
    /// Chunks that were read from the store.
    pub misses: u64,
    /// Chunks that had to go.
    pub evicted: u64,
    /// Bytes that are there.
    pub bytes: u64,
}

impl Cache {
    /// A cache of at most so many bytes of content. 0: nothing stays.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), read: Condvar::new() }
    }

    /// What it did until now.
    pub fn stats(&self) -> CacheStats {
        let state = self.state.lock();
        CacheStats { bytes: state.bytes as u64, ..state.stats }
    }

    /// The chunk of this name, if it is here.
    pub(crate) fn look(&self, name: &Hash) -> Option<Chunk> {
        let mut state = self.state.lock();
        let Some(Entry::There { content, used }) = state.chunks.get_mut(name) else { return None };
        *used = true;
        let content = content.clone();
        state.stats.hits += 1;
        Some(content)
    }

    /// The chunk of this name: from here, or by `read`, which may sleep. Where it fails, each thread that waits tries for itself.
    pub(crate) fn get(
        &self,
        name: Hash,
        read: impl FnOnce() -> Result<Vec<u8>, StoreError>,
    ) -> Result<(Chunk, Source), StoreError> {
        let mut state = self.state.lock();
        loop {
            match state.chunks.get_mut(&name) {
                Some(Entry::There { content, used }) => {
                    *used = true;
                    let content = content.clone();
                    state.stats.hits += 1;
                    return Ok((content, Source::Cache));
                }
                Some(Entry::Reading) => self.read.wait(&mut state),
                None => break,
            }
        }
        state.chunks.insert(name, Entry::Reading);
        drop(state);
        // Also where it panics, others may try.
        let reading = Reading { cache: self, name };
        let content = Chunk::new(read()?);
        let mut state = self.state.lock();
        state.stats.misses += 1;
        if content.len() <= self.limit {
            state.make_room(self.limit - content.len());
            state.bytes += content.len();
            state.ring.push(name);
            state.chunks.insert(name, Entry::There { content: content.clone(), used: false });
        }
        drop(state);
        drop(reading);
        Ok((content, Source::Store))
    }
}

impl State {
    /// Evicts until there are at most so many bytes.
    fn make_room(&mut self, most: usize) {
        while self.bytes > most {
            self.hand %= self.ring.len();
            let name = self.ring[self.hand];
            match self.chunks.get_mut(&name) {
                Some(Entry::There { used, .. }) if *used => {
                    *used = false;
                    self.hand += 1;
                }
                _ => {
                    if let Some(Entry::There { content, .. }) = self.chunks.remove(&name) {
                        self.bytes -= content.len();
                    }
                    // The last one comes to the hand's place: cheaper than to move all that follow.
                    self.ring.swap_remove(self.hand);
                    self.stats.evicted += 1;
                }
            }
        }
    }
}

struct Reading<'a> {
    cache: &'a Cache,
    name: Hash,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        if matches!(state.chunks.get(&self.name), Some(Entry::Reading)) {
            state.chunks.remove(&self.name);
        }
        drop(state);
        self.cache.read.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn name(number: u32) -> Hash {
        Hash::of(&number.to_le_bytes())
    }

    #[test]
    fn the_limit_holds_and_what_is_used_stays() {
        let cache = Cache::new(10 * 4096);
        let get = |number| cache.get(name(number), || Ok(vec![number as u8; 4096])).unwrap();
        for number in 0..1000 {
            assert!(get(7).0.iter().all(|byte| *byte == 7));
            assert_eq!(get(100 + number).0[0], (100 + number) as u8);
            assert!(cache.stats().bytes <= 10 * 4096);
        }
        let stats = cache.stats();
        assert_eq!((stats.misses, stats.hits, stats.evicted), (1001, 999, 991));
        assert_eq!(stats.bytes, 10 * 4096);
    }

    #[test]
    fn without_room_nothing_stays() {
        let cache = Cache::new(100);
        for _ in 0..2 {
            assert_eq!(cache.get(name(1), || Ok(vec![1; 101])).unwrap().1, Source::Store);
        }
        assert_eq!(cache.stats().bytes, 0);
    }

    #[test]
    fn a_chunk_is_read_once_for_all_who_wait() {
        let (cache, reads) = (Cache::new(1 << 20), AtomicUsize::new(0));
        let get = || {
            cache.get(name(1), || {
                reads.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(20));
                Ok(vec![1; 4096])
            })
        };
        std::thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(|| get().unwrap())));
        assert_eq!(reads.into_inner(), 1);
    }

    #[test]
    fn a_read_that_fails_is_tried_again() {
        let cache = Cache::new(1 << 20);
        assert!(cache.get(name(1), || Err(StoreError::Missing("a".into()))).is_err());
        let panics = || cache.get(name(1), || panic!("on purpose"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(cache.get(name(1), || Ok(vec![1])).unwrap().1, Source::Store);
    }
}
