//! Leases say what a host uses of a store, so that no other host collects it.
//!
//! A lease is an object that its host rewrites from time to time, with a number that counts the rewrites. A dead host
//! stops. Its lease ends when its age on the store's clock reaches the patience of a collection, and an earlier
//! collection, that long ago, saw the same number (see `seen.rs`). No host's clock decides alone, nor does a jump of the
//! store's.
//!
//! A host that was suspended for that long may come back while a collection is about to delete the lease. The
//! collection must see what the host pins from then on. So a host does not rewrite a lease that may have ended: it
//! takes another name. It measures that by a clock that counts while it is suspended, and with half of the patience of
//! collections to spare.

use super::chunk::Name;
use super::{Hash, Store, StoreError};
use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Default age at which a lease has ended, because its host has not renewed it. Hosts renew theirs every two minutes.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// Kind of these objects.
pub const LEASES: &str = "leases";
/// Period of renewals.
const RENEWAL: Duration = Duration::from_secs(120);
/// Time for which a lease certainly has not ended without a renewal.
const TRUST: Duration = Duration::from_secs(PATIENCE.as_secs() / 2);
const MOST: usize = 16 << 20;

/// The lease of one user of a store, normally a process. It exists while something is pinned.
#[derive(Clone)]
pub struct Lease(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    trust: Duration,
    pins: Mutex<Pins>,
    ended: Condvar,
}

#[derive(Default)]
struct Pins {
    /// Manifests, and keys of packs, with the number of users of each. The empty name stands for an upload.
    counts: BTreeMap<String, usize>,
    /// Number of writes of this lease.
    serial: u64,
    is_renewed: bool,
    /// Name of the lease.
    id: String,
    /// Start of the call that wrote it last.
    written: Option<Duration>,
}

/// Protects manifests or packs from collection until it is dropped.
pub struct Pin {
    lease: Lease,
    names: Vec<String>,
}

/// As JSON. Leases of earlier versions have neither packs nor a serial.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Text {
    version: u32,
    pub manifests: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packs: Vec<String>,
    #[serde(default)]
    serial: u64,
}

impl Lease {
    pub fn new(store: Arc<dyn Store>) -> Self {
        let mut bytes = [0; 16];
        // A non-random identity would need a service.
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .expect("Linux has /dev/urandom");
        Self::named(store, u128::from_ne_bytes(bytes))
    }

    /// Makes a lease with this number, which no other host may have.
    pub fn named(store: Arc<dyn Store>, number: u128) -> Self {
        Self::trusting(store, number, TRUST)
    }

    fn trusting(store: Arc<dyn Store>, number: u128, trust: Duration) -> Self {
        let pins = Mutex::new(Pins { id: format!("{number:032x}"), ..Pins::default() });
        Self(Arc::new(Inner { store, trust, pins, ended: Condvar::new() }))
    }

    pub fn id(&self) -> String {
        self.0.pins.lock().id.clone()
    }

    /// Pins a manifest, or only the lease itself (`""`). The lease is written when this returns.
    pub fn pin(&self, name: &str) -> Result<Pin, StoreError> {
        self.pin_all(vec![name.into()])
    }

    /// Pins several objects: manifests by their names, packs by their keys.
    pub fn pin_all(&self, names: Vec<String>) -> Result<Pin, StoreError> {
        let mut pins = self.0.pins.lock();
        for name in &names {
            *pins.counts.entry(name.clone()).or_default() += 1;
        }
        let pin = Pin { lease: self.clone(), names };
        let written = self.0.write(&mut pins);
        if written.is_ok() && !pins.is_renewed {
            let inner = Arc::downgrade(&self.0);
            // Without the thread the lease ends early, but a collection with the default patience does not see that for
            // an hour.
            pins.is_renewed =
                std::thread::Builder::new().name("lease".into()).spawn(move || renew(&inner)).is_ok();
        }
        drop(pins);
        written.map(|()| pin)
    }
}

/// Reads a clock that continues while the machine is suspended.
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Pins {
    fn key(&self) -> String {
        format!("{LEASES}/{}", self.id)
    }
}

impl Inner {
    fn write(&self, pins: &mut Pins) -> Result<(), StoreError> {
        let mut text = Text { version: 1, ..Text::default() };
        for name in pins.counts.keys().filter(|name| !name.is_empty()) {
            match name.strip_prefix("packs/") {
                Some(pack) => text.packs.push(pack.into()),
                None => text.manifests.push(name.clone()),
            }
        }
        loop {
            let may_have_ended =
                |pins: &Pins| pins.written.is_some_and(|at| now().saturating_sub(at) > self.trust);
            if may_have_ended(pins) {
                // The old lease ends by its age. An upload that began with it is given up, or becomes a template before
                // that.
                pins.id.replace_range(.., &Hash::of(pins.id.as_bytes()).to_string()[..32]);
                pins.written = None;
            }
            pins.serial += 1;
            text.serial = pins.serial;
            let bytes = serde_json::to_vec(&text).expect("strings are JSON");
            let began = now();
            self.store.put(&pins.key(), &bytes).map_err(not_lost)?;
            // If the host was suspended before the call, the call may have come too late.
            if !may_have_ended(pins) {
                pins.written = Some(began);
                return Ok(());
            }
        }
    }
}

/// Returns the error of a write. A store that answers a write with "not found", as a proxy or a bucket that is moved may
/// do, is out of reach: it has lost no object, and its guests can wait.
fn not_lost(error: StoreError) -> StoreError {
    match error {
        StoreError::Missing(key) => StoreError::Io { error: std::io::ErrorKind::NotFound.into(), key },
        error => error,
    }
}

/// Reads what a lease pins.
pub fn pinned(store: &dyn Store, id: &str) -> Result<Text, StoreError> {
    let key = format!("{LEASES}/{id}");
    match store.get(&key, MOST) {
        // The lease was given back meanwhile.
        Err(StoreError::Missing(_)) => Ok(Text::default()),
        bytes => parse(&key, &bytes?),
    }
}

/// Reads a hash of a lease, which differs after each renewal. `None`: the lease was given back.
pub fn mark(store: &dyn Store, id: &str) -> Result<Option<Hash>, StoreError> {
    match store.get(&format!("{LEASES}/{id}"), MOST) {
        Err(StoreError::Missing(_)) => Ok(None),
        bytes => Ok(Some(Hash::of(&bytes?))),
    }
}

pub fn parse(key: &str, bytes: &[u8]) -> Result<Text, StoreError> {
    let damaged = |what: String| StoreError::Damaged { key: key.into(), what };
    let text: Text = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if text.version != 1 {
        return Err(damaged("its version is unknown".into()));
    }
    match text.manifests.iter().chain(&text.packs).find(|name| Name::parse(name).is_none()) {
        Some(wrong) => Err(damaged(format!("{wrong:?} is no name of a manifest or a pack"))),
        None => Ok(text),
    }
}

/// Rewrites the lease periodically while something is pinned.
fn renew(lease: &Weak<Inner>) {
    while let Some(inner) = lease.upgrade() {
        let mut pins = inner.pins.lock();
        let is_due = inner.ended.wait_for(&mut pins, RENEWAL).timed_out();
        if pins.counts.is_empty() {
            pins.is_renewed = false;
            return;
        }
        // If it wakes early, a new pin came after the last one was dropped, and has written the lease.
        if is_due {
            // This fails if the store is out of reach, and is retried: the patience of collections is many renewals
            // long.
            _ = inner.write(&mut pins);
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let inner = &self.lease.0;
        let mut pins = inner.pins.lock();
        for name in &self.names {
            if let Some(count) = pins.counts.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    pins.counts.remove(name);
                }
            }
        }
        if pins.counts.is_empty() {
            inner.ended.notify_all();
            // If this fails, the lease ends by its age.
            _ = inner.store.delete(&pins.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Entry, Folder, Version};

    #[test]
    fn a_store_that_does_not_find_where_to_write_a_lease_is_out_of_reach() {
        struct Moved;
        impl Store for Moved {
            fn read(&self, key: &str, _: usize) -> Result<(Vec<u8>, Version), StoreError> {
                Err(StoreError::Missing(key.into()))
            }
            fn put(&self, key: &str, _: &[u8]) -> Result<(), StoreError> {
                Err(StoreError::Missing(key.into()))
            }
            fn put_if(&self, key: &str, _: &[u8], _: Option<&Version>) -> Result<bool, StoreError> {
                Err(StoreError::Missing(key.into()))
            }
            fn entries(&self, _: &str) -> Result<Vec<Entry>, StoreError> {
                Ok(Vec::new())
            }
            fn delete(&self, _: &str) -> Result<(), StoreError> {
                Ok(())
            }
        }
        let pinned = Lease::named(Arc::new(Moved), 7).pin("");
        assert!(pinned.is_err_and(|error| error.may_pass() && error.to_string().contains("leases/")));
    }

    #[test]
    fn a_lease_that_may_have_ended_is_not_written_again() {
        let folder = std::env::temp_dir().join(format!("slat-pager-lease-{}", std::process::id()));
        let store: Arc<dyn Store> = Arc::new(Folder::open(&folder).unwrap());
        for (trust, leases) in [(TRUST, 1), (Duration::ZERO, 2)] {
            let lease = Lease::trusting(store.clone(), 7, trust);
            let name = Name { hash: Hash::of(b"a"), epoch: 1 }.to_string();
            let first = (lease.pin("").unwrap(), lease.id());
            let second = lease.pin(&name).unwrap();
            assert_eq!(store.list(LEASES).unwrap().len(), leases);
            // The current lease pins everything.
            assert_eq!(pinned(&*store, &lease.id()).unwrap().manifests, [name]);
            assert_eq!(lease.id() == first.1, leases == 1);
            drop((first, second));
            assert_eq!(store.list(LEASES).unwrap().len(), leases - 1, "the older one ends by its age");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
