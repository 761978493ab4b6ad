//! Temporary files and sockets. They are removed when their owner is dropped, and when a signal ends the process.

use parking_lot::Mutex;
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files that exist now.
static ALL: Mutex<Vec<(PathBuf, Identity)>> = Mutex::new(Vec::new());

/// Device and inode. If another process has replaced the file, it is not removed.
type Identity = (u64, u64);

/// A file or socket that is removed on drop.
#[derive(Debug)]
#[must_use = "it is removed when this is dropped"]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Takes ownership of the file at `path`.
    pub fn at(path: &Path) -> io::Result<Self> {
        ALL.lock().push((path.into(), identity(&fs::symlink_metadata(path)?)));
        Ok(Self(path.into()))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut all = ALL.lock();
        if let Some(place) = all.iter().position(|(path, _)| *path == self.0) {
            remove(&all.swap_remove(place));
        }
    }
}

/// Removes all temporary files, at the end of the process.
pub fn remove_all() {
    // Another thread may hold the lock while it removes its file; the process does not wait for it.
    if let Some(mut all) = ALL.try_lock() {
        all.drain(..).for_each(|one| remove(&one));
    }
}

/// Checks that [`write_whole`] can write to `path`. Leaves nothing behind.
pub fn writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // Opening a pipe would wait for a reader.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => fs::OpenOptions::new().write(true).open(path).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => part(path).map(drop),
        Err(error) => Err(error),
    }
}

/// Creates the file that [`write_whole`] renames to `path`.
fn part(path: &Path) -> io::Result<(PathBuf, fs::File, Temporary)> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let file = fs::File::create(&part)?;
    let temporary = Temporary::at(&part)?;
    Ok((part, file, temporary))
}

/// Replaces the file at `path` atomically: a process that dies here leaves the old content.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Pipes and devices such as /dev/stdout are written directly.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return fs::write(path, bytes);
    }
    let (part, mut file, temporary) = part(path)?;
    file.write_all(bytes)?;
    fs::rename(&part, path)?;
    drop(temporary);
    Ok(())
}

fn identity(found: &Metadata) -> Identity {
    (found.dev(), found.ino())
}

fn remove((path, is): &(PathBuf, Identity)) {
    if fs::symlink_metadata(path).is_ok_and(|found| identity(&found) == *is) {
        // The file may be removed by another process now.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_removes_the_file_but_not_its_replacement() {
        let path = std::env::temp_dir().join(format!("slat-temporary-{}", std::process::id()));
        for replaced in [false, true] {
            fs::write(&path, "mine").unwrap();
            let temporary = Temporary::at(&path).unwrap();
            if replaced {
                let other = path.with_extension("other");
                fs::write(&other, "another's").unwrap();
                fs::rename(other, &path).unwrap();
            }
            drop(temporary);
            assert_eq!(path.exists(), replaced);
        }
        write_whole(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::remove_file(&path).unwrap();
        assert!(write_whole(Path::new("/nowhere/at/all"), b"").is_err());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_detected_early() {
        let path = std::env::temp_dir().join(format!("slat-writable-{}", std::process::id()));
        writable(&path).unwrap();
        assert!(!path.exists(), "nothing stays");
        fs::write(&path, "kept").unwrap();
        writable(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        fs::remove_file(&path).unwrap();
        for bad in ["/", "/nowhere/at/all"] {
            assert!(writable(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
