//! The host's cache of chunks: shared by all guests, with a limit.

use crate::hash::Hash;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The content of a chunk, or of a part of one. A clone of the value refers to the same bytes.
#[derive(Debug, Clone)]
pub struct Chunk {
    bytes: Arc<Vec<u8>>,
    part: Range<usize>,
}

impl Chunk {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { part: 0..bytes.len(), bytes: Arc::new(bytes) }
    }

    /// Returns this part of the content.
    pub fn part(&self, part: Range<usize>) -> Self {
        let part = self.part.start + part.start..self.part.start + part.end;
        debug_assert!(part.end <= self.part.end);
        Self { bytes: self.bytes.clone(), part }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.part.clone()]
    }
}

/// Where a page came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// The host's cache of chunks, or the kernel's cache of an image.
    Cache,
    /// The store, or an image that the kernel had to read.
    Store,
    /// No source: the page is zero.
    Zero,
    /// The memory that clones share, or the guest's own shared memory.
    Shared,
    /// The page was present when the pager handled the fault.
    Present,
    /// The page was present and write-protected; the pager notes the write.
    Written,
    /// The swap file.
    Swap,
}

impl Source {
    /// All sources, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Cache, Self::Store, Self::Zero, Self::Shared, Self::Present, Self::Written, Self::Swap];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        ["cache", "store", "zero", "shared", "present", "written", "swap"][self as usize]
    }
}

/// A cache with a limit and four generations, like Linux's multi-gen LRU. It reads a chunk from the store once, however
/// many guests wait for the chunk.
///
/// * A new chunk enters the oldest generation, from which chunks are evicted. It stays only if it is asked for again.
///   So a guest that reads all of its memory once, or a thread that fills all of it ahead, evicts only recently read
///   chunks.
/// * When a chunk is due for eviction and was asked for again, it moves to the youngest generation instead.
/// * Faults of one guest on the pages of one chunk come close together, and count as one. A chunk counts as asked for
///   again only if a sixteenth of the limit was read since it came.
/// * The oldest generation has an eighth of the limit. If it has less, the next generation joins it, and the chunks of
///   that generation stay only if they are asked for again.
/// * Every fourth chunk that is read again soon after its eviction enters the second generation. So a new working set
///   replaces an old one, and a part of a working set that exceeds the cache stays.
#[derive(Debug)]
pub struct Cache {
    limit: usize,
    state: Mutex<State>,
    read: Condvar,
}

/// Number of generations: the oldest, from which chunks are evicted, and the protected ones.
const GENERATIONS: usize = 4;

#[derive(Debug, Default)]
struct State {
    chunks: HashMap<Hash, Entry, BuildHasherDefault<FirstBytes>>,
    /// Cached chunks, the oldest generation first; in each the next one to evict first.
    generations: [VecDeque<Hash>; GENERATIONS],
    /// Bytes in the oldest generation, and in all of them.
    oldest: usize,
    bytes: usize,
    /// Total bytes read.
    read: u64,
    /// Number of chunks that were read again soon after their eviction.
    back: usize,
    /// Names of evicted chunks, with the total bytes read at their eviction; they cover as many bytes as the limit.
    gone: VecDeque<(Hash, u64)>,
    went: HashMap<Hash, u64>,
    stats: CacheStats,
}

/// Hashes a name, which is a hash already, by its first bytes.
#[derive(Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }
}

#[derive(Debug)]
enum Entry {
    /// A thread reads the chunk.
    Reading,
    There {
        content: Chunk,
        /// Total bytes read when the chunk came, or when it was last due for eviction.
        since: u64,
        /// The chunk was asked for again.
        is_used: bool,
    },
}

/// Counters of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests for chunks that were cached, or that another thread was reading.
    pub hits: u64,
    /// Chunks read from the store.
    pub misses: u64,
    /// Chunks evicted.
    pub evicted: u64,
    /// Bytes in the cache.
    pub bytes: u64,
}

impl Cache {
    /// Makes a cache of at most `limit` bytes of content. 0 keeps nothing.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), read: Condvar::new() }
    }

    /// Returns the most bytes of content that it keeps.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the counters.
    pub fn stats(&self) -> CacheStats {
        let state = self.state.lock();
        CacheStats { bytes: state.bytes as u64, ..state.stats }
    }

    /// Returns the chunk of this name if it is cached.
    pub(crate) fn look(&self, name: &Hash) -> Option<Chunk> {
        self.state.lock().hit(name, self.limit)
    }

    /// Returns the chunk of this name, from the cache or by `read`, which may sleep. If `read` fails, each waiting
    /// thread tries for itself.
    pub(crate) fn get<E>(
        &self,
        name: Hash,
        read: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(Chunk, Source), E> {
        let mut state = self.state.lock();
        loop {
            if let Some(content) = state.hit(&name, self.limit) {
                return Ok((content, Source::Cache));
            }
            match state.chunks.get(&name) {
                Some(_) => self.read.wait(&mut state),
                None => break,
            }
        }
        state.chunks.insert(name, Entry::Reading);
        drop(state);
        // If `read` panics, other threads may try.
        let reading = Reading { cache: self, name };
        let content = Chunk::new(read()?);
        let mut state = self.state.lock();
        state.stats.misses += 1;
        if content.len() <= self.limit {
            state.put(name, content.clone(), self.limit);
        }
        drop(state);
        drop(reading);
        Ok((content, Source::Store))
    }
}

impl State {
    fn hit(&mut self, name: &Hash, limit: usize) -> Option<Chunk> {
        let Some(Entry::There { content, since, is_used }) = self.chunks.get_mut(name) else { return None };
        *is_used |= self.read - *since >= limit as u64 / 16;
        self.stats.hits += 1;
        Some(content.clone())
    }

    fn put(&mut self, name: Hash, content: Chunk, limit: usize) {
        let size = content.len();
        self.make_room(limit - size, limit);
        self.read += size as u64;
        self.bytes += size;
        let is_back = self.went.remove(&name).is_some();
        self.back += usize::from(is_back);
        if is_back && self.back.is_multiple_of(4) {
            self.generations[1].push_back(name);
        } else {
            self.generations[0].push_back(name);
            self.oldest += size;
        }
        self.chunks.insert(name, Entry::There { content, since: self.read, is_used: false });
    }

    /// Evicts chunks until at most `most` bytes are left.
    fn make_room(&mut self, most: usize, limit: usize) {
        while self.bytes > most {
            while self.oldest < limit / 8 && self.oldest < self.bytes {
                self.age();
            }
            let Some(name) = self.generations[0].pop_front() else { return };
            let Some(Entry::There { content, since, is_used }) = self.chunks.get_mut(&name) else { continue };
            let size = content.len();
            self.oldest -= size;
            if std::mem::take(is_used) {
                *since = self.read;
                self.generations[GENERATIONS - 1].push_back(name);
                continue;
            }
            self.chunks.remove(&name);
            self.bytes -= size;
            self.stats.evicted += 1;
            self.went.insert(name, self.read);
            self.gone.push_back((name, self.read));
            while self.gone.front().is_some_and(|(_, went)| self.read - went > limit as u64) {
                let Some((name, went)) = self.gone.pop_front() else { break };
                // Unless the chunk was evicted once more.
                if self.went.get(&name) == Some(&went) {
                    self.went.remove(&name);
                }
            }
        }
    }

    /// Moves each generation to the next older one. The chunks that join the oldest are queued before those already in
    /// it.
    fn age(&mut self) {
        let last = std::mem::take(&mut self.generations[0]);
        self.generations.rotate_left(1);
        let size = |name| match self.chunks.get(name) {
            Some(Entry::There { content, .. }) => content.len(),
            _ => 0,
        };
        self.oldest += self.generations[0].iter().map(size).sum::<usize>();
        self.generations[0].extend(last);
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
mod tests;
