//! A store that is slow, or that fails: for tests and demonstrations.

use super::{Guard, Store, StoreError};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A store that waits before each object it reads, and fails in some share of the reads.
pub struct Trouble<S> {
    store: S,
    delay: Duration,
    percent: u64,
    reads: AtomicU64,
}

impl<S: Store> Trouble<S> {
    /// `store`, each read later by `delay`; so many percent of the reads fail, the same ones in each run.
    pub fn new(store: S, delay: Duration, percent: u64) -> Self {
        Self { store, delay, percent, reads: AtomicU64::new(0) }
    }
}

impl<S: Store> Store for Trouble<S> {
    fn get(&self, key: &str, most: usize) -> Result<Vec<u8>, StoreError> {
        if key.starts_with("chunks/") {
            std::thread::sleep(self.delay);
            // 61 has no factor in common with 100: the failures are spread.
            if self.reads.fetch_add(1, Ordering::Relaxed) * 61 % 100 < self.percent {
                let error = io::Error::new(io::ErrorKind::ConnectionReset, "on purpose");
                return Err(StoreError::Io { key: key.into(), error });
            }
        }
        self.store.get(key, most)
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.store.put(key, bytes)
    }

    fn has(&self, key: &str) -> Result<bool, StoreError> {
        self.store.has(key)
    }

    fn list(&self, kind: &str) -> Result<Vec<String>, StoreError> {
        self.store.list(kind)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.store.delete(key)
    }

    fn lock(&self, key: &str, exclusive: bool) -> Result<Option<Guard>, StoreError> {
        self.store.lock(key, exclusive)
    }
}
