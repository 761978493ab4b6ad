//! Pages that are in no cache: each thread goes round a pool that is larger than caches are.
//!
//! A pool is brought in when a page of it is first asked for, and kept for the next run: benches do not count the first.

use parking_lot::Mutex;
use std::cell::RefCell;
use std::hint::black_box;

const POOL: usize = 64 << 20;
const PAGE: usize = 4096;

/// Pools that no thread has.
static SPARE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

struct Pool {
    bytes: Box<[u8]>,
    next: usize,
}

impl Pool {
    fn next(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            // Not all zeroes: those would be one page of the system's until they are written.
            self.bytes = vec![1; POOL].into();
        }
        let at = self.next;
        self.next = (at + PAGE) % POOL;
        &mut self.bytes[at..at + PAGE]
    }
}

/// This thread has a pool for as long as this lives.
pub struct Lent(());

impl Lent {
    pub fn take() -> Self {
        MINE.set(Some(Pool { bytes: SPARE.lock().pop().unwrap_or_default(), next: 0 }));
        Self(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(pool) = MINE.take().filter(|pool| !pool.bytes.is_empty()) {
            SPARE.lock().push(pool.bytes);
        }
    }
}

/// The next page of this thread's pool, if it is in a run.
fn next<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
    MINE.with_borrow_mut(|pool| pool.as_mut().map(|pool| use_it(pool.next())))
}

/// The host zeroes a page of 4 KiB that is in no cache.
pub fn zero_page() {
    next(|page| black_box(page).fill(0));
}

/// The host reads a page of 4 KiB that is in no cache: a checksum, or a comparison.
pub fn read_page() {
    let sum =
        |page: &mut [u8]| page.as_chunks().0.iter().fold(0, |sum: u64, word| sum ^ u64::from_ne_bytes(*word));
    black_box(next(sum));
}
