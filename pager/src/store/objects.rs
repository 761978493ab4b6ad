//! Any backend of the crate `object_store`, as a store.

use super::{Entry, Store, StoreError, Version, is_name};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::io;
use std::sync::Arc;

/// Objects of a backend, below a prefix. The backend must have conditional writes, as S3 has since 2024.
///
/// The calling thread itself makes each call. The backend retries nothing; [`Steady`](crate::Steady) does.
#[derive(Debug)]
pub struct Objects {
    place: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Objects {
    /// Uses the objects below this prefix; an empty prefix is the whole backend.
    pub fn new(place: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self { place, prefix: Path::from(prefix) }
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        let parts: Vec<&str> = key.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            return Err(StoreError::Name(key.into()));
        }
        Ok(parts.into_iter().fold(self.prefix.clone(), Path::join))
    }
}

/// Runs a future on this thread. Its waits block the thread, except those for time.
fn run<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    Ok(runtime.block_on(future))
}

fn call<T>(key: &str, future: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    match run(future) {
        Ok(result) => result.map_err(|error| said(key, error)),
        Err(error) => Err(StoreError::Io { key: key.into(), error }),
    }
}

fn said(key: &str, error: Error) -> StoreError {
    let kind = match &error {
        Error::NotFound { .. } => return StoreError::Missing(key.into()),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        Error::NotImplemented { .. } | Error::NotSupported { .. } => io::ErrorKind::Unsupported,
        Error::InvalidPath { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    StoreError::Io { key: key.into(), error: io::Error::new(kind, error) }
}

impl Store for Objects {
    fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError> {
        let path = self.path(key)?;
        call(key, async {
            let found = self.place.get_opts(&path, GetOptions::default()).await?;
            if found.meta.size > most as u64 {
                return Ok(Err(StoreError::Large { key: key.into(), most }));
            }
            let version = Version(found.meta.e_tag.clone().unwrap_or_default());
            Ok(Ok((found.bytes().await?.to_vec(), version)))
        })?
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path(key)?;
        call(key, self.place.put(&path, PutPayload::from(bytes.to_vec()))).map(|_| ())
    }

    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
        let path = self.path(key)?;
        let mode = match before {
            None => PutMode::Create,
            Some(Version(tag)) if tag.is_empty() => {
                let error = io::Error::new(io::ErrorKind::Unsupported, "objects have no ETag");
                return Err(StoreError::Io { key: key.into(), error });
            }
            Some(Version(tag)) => PutMode::Update(UpdateVersion { e_tag: Some(tag.clone()), version: None }),
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        call(key, async {
            match self.place.put_opts(&path, PutPayload::from(bytes.to_vec()), options).await {
                Ok(_) => Ok(true),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
        let path = self.path(kind)?;
        let all: Vec<_> = call(kind, self.place.list(Some(&path)).try_collect())?;
        let entry = |about: object_store::ObjectMeta| {
            let name = about.location.filename().filter(|name| is_name(name))?;
            Some(Entry { name: name.into(), modified: about.last_modified.into() })
        };
        let mut entries: Vec<_> = all.into_iter().filter_map(entry).collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path(key)?;
        match call(key, self.place.delete(&path)) {
            Err(StoreError::Missing(_)) => Ok(()),
            result => result,
        }
    }
}
