//! A slow or failing store, for tests and demonstrations.

use super::{Entry, Store, StoreError, Version};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Called before a read, which fails if the function fails.
pub(super) type Before = dyn Fn(&str) -> io::Result<()> + Send + Sync;

/// A store that calls a function before each read of a chunk or a pack, and fails if the function fails.
pub struct Trouble<S> {
    store: S,
    before: Box<Before>,
}

impl<S: Store> Trouble<S> {
    /// Calls `before` with the key before each read of a chunk or a pack from `store`.
    pub fn calling(store: S, before: impl Fn(&str) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { store, before: Box::new(before) }
    }

    /// Delays each read from `store` by `delay`, and fails `percent` percent of the reads, the same ones in each run.
    pub fn new(store: S, delay: Duration, percent: u64) -> Self {
        let reads = AtomicU64::new(0);
        Self::calling(store, move |_| {
            std::thread::sleep(delay);
            // 61 and 100 are coprime, so the failures are spread.
            let fails = reads.fetch_add(1, Ordering::Relaxed) * 61 % 100 < percent;
            if fails { Err(io::Error::new(io::ErrorKind::ConnectionReset, "on purpose")) } else { Ok(()) }
        })
    }
}

impl<S: Store> Store for Trouble<S> {
    fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError> {
        if key.starts_with("chunks/") || key.starts_with("packs/") {
            (self.before)(key).map_err(|error| StoreError::Io { key: key.into(), error })?;
        }
        self.store.read(key, most)
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.store.put(key, bytes)
    }

    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
        self.store.put_if(key, bytes, before)
    }

    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
        self.store.entries(kind)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.store.delete(key)
    }
}
