//! A local folder as the store.

use super::{Entry, Hash, Store, StoreError, Version, is_name};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects as files of a folder, with a subfolder for each kind. A file is written under another name and renamed, so
/// that a crash leaves an object whole or absent.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Opens the store in this folder, or makes the folder.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        Ok(Self { root })
    }

    /// Refers to the store in this folder, which need not be there: a file system may be mounted there later. Until then
    /// all calls fail, and may pass.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.root
    }

    fn file(&self, key: &str) -> Result<PathBuf, StoreError> {
        let parts: Vec<&str> = key.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            return Err(StoreError::Name(key.into()));
        }
        Ok(self.root.join(key))
    }

    fn said(&self, key: &str, error: io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::NotFound if self.root.is_dir() => StoreError::Missing(key.into()),
            io::ErrorKind::NotFound => {
                let what = format!("there is no folder {}", self.root.display());
                StoreError::Io { key: key.into(), error: io::Error::new(io::ErrorKind::NotFound, what) }
            }
            _ => StoreError::Io { key: key.into(), error },
        }
    }
}

impl Store for Folder {
    fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError> {
        let bytes = self.get(key, most)?;
        let version = Version(Hash::of(&bytes).to_string());
        Ok((bytes, version))
    }

    fn get(&self, key: &str, most: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        let file = File::open(self.file(key)?).map_err(|error| self.said(key, error))?;
        file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|error| self.said(key, error))?;
        if bytes.len() > most { Err(StoreError::Large { key: key.into(), most }) } else { Ok(bytes) }
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let file = self.file(key)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = file.with_file_name(format!(".{}.{number}", std::process::id()));
        let write = || {
            let folder = file.parent().unwrap_or(&self.root);
            if !folder.is_dir() {
                // Not the store itself.
                match fs::create_dir(folder) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => made?,
                }
                File::open(&self.root)?.sync_all()?;
            }
            let mut new = File::create(&beside)?;
            new.write_all(bytes)?;
            new.sync_all()?;
            fs::rename(&beside, &file)?;
            // The name, too, survives a crash of the machine.
            File::open(folder)?.sync_all()
        };
        write().map_err(|error| {
            _ = fs::remove_file(&beside);
            self.said(key, error)
        })
    }

    /// Holds a lock of the folder: one such write at a time.
    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
        self.file(key)?;
        let lock = || {
            let file =
                File::options().create(true).truncate(false).write(true).open(self.root.join(".lock"))?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        let _lock = lock().map_err(|error| self.said(key, error))?;
        let now = match self.read(key, usize::MAX - 1) {
            Err(StoreError::Missing(_)) => None,
            now => Some(now?.1),
        };
        if now.as_ref() != before {
            return Ok(false);
        }
        self.put(key, bytes)?;
        Ok(true)
    }

    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
        let found = match fs::read_dir(self.file(kind)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found.map_err(|error| self.said(kind, error))?,
        };
        let mut entries = Vec::new();
        for entry in found {
            let entry = entry.map_err(|error| self.said(kind, error))?;
            // Names of half-written files begin with a dot.
            let Some(name) = entry.file_name().into_string().ok().filter(|name| is_name(name)) else {
                continue;
            };
            match entry.metadata().and_then(|about| about.modified()) {
                Ok(modified) => entries.push(Entry { name, modified }),
                // Deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.said(kind, error)),
            }
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        match fs::remove_file(self.file(key)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.said(key, error)),
            _ => Ok(()),
        }
    }
}
