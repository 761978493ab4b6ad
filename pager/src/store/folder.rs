//! A local folder as the store.

use super::{Guard, Store, StoreError, is_name};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a lock is waited for: a process that has just been forked holds the locks of its parent until it is another program.
const PATIENCE: Duration = Duration::from_millis(500);

/// Objects as files of a folder, one folder for each kind. Files are written beside their place and renamed, so that a crash
/// leaves an object whole or absent.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The store in this folder, which is made if it is missing.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        Ok(Self { root })
    }

    /// Where it is.
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
}

impl Store for Folder {
    fn get(&self, key: &str, most: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        let file = File::open(self.file(key)?).map_err(|error| said(key, error))?;
        file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|error| said(key, error))?;
        if bytes.len() > most { Err(StoreError::Large { key: key.into(), most }) } else { Ok(bytes) }
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let file = self.file(key)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = file.with_file_name(format!(".{}.{number}", std::process::id()));
        let write = || {
            fs::create_dir_all(file.parent().unwrap_or(&self.root))?;
            let mut new = File::create(&beside)?;
            new.write_all(bytes)?;
            new.sync_all()?;
            fs::rename(&beside, &file)
        };
        write().map_err(|error| {
            _ = fs::remove_file(&beside);
            said(key, error)
        })
    }

    fn has(&self, key: &str) -> Result<bool, StoreError> {
        self.file(key)?.try_exists().map_err(|error| said(key, error))
    }

    fn list(&self, kind: &str) -> Result<Vec<String>, StoreError> {
        let entries = match fs::read_dir(self.file(kind)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| said(kind, error))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| said(kind, error))?;
            // Half-written files begin with a dot.
            names.extend(entry.file_name().into_string().ok().filter(|name| is_name(name)));
        }
        names.sort();
        Ok(names)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        match fs::remove_file(self.file(key)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(said(key, error)),
            _ => Ok(()),
        }
    }

    fn lock(&self, key: &str, exclusive: bool) -> Result<Option<Guard>, StoreError> {
        self.file(key)?;
        let file = self.root.join(format!(".lock-{}", key.replace('/', "-")));
        let open = || File::options().create(true).truncate(false).read(true).write(true).open(file);
        let file = open().map_err(|error| said(key, error))?;
        let operation = if exclusive {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        let begun = Instant::now();
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(Some(Box::new(file))),
                Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => sleep(PATIENCE / 100),
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(said(key, error.into())),
            }
        }
    }
}

fn said(key: &str, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing(key.into()),
        _ => StoreError::Io { key: key.into(), error },
    }
}
