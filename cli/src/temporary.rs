//! Files that go with the process: removed when their owner is dropped, or when the process is ended without that.

use parking_lot::Mutex;
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Those that are there.
static ALL: Mutex<Vec<(PathBuf, Identity)>> = Mutex::new(Vec::new());

/// Device and inode. A path under which another process has put something else since is left alone.
type Identity = (u64, u64);

/// A file, or a socket, that is removed when this is dropped.
#[derive(Debug)]
#[must_use = "it is removed when this is dropped"]
pub struct Temporary(PathBuf);

impl Temporary {
    /// What lies at `path` now.
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

/// Removes all of them: the process ends.
pub fn remove_all() {
    // A thread that is just removing one is not waited for.
    if let Some(mut all) = ALL.try_lock() {
        all.drain(..).for_each(|one| remove(&one));
    }
}

/// Whether [`write_whole`] can write there, as far as can be said before. Nothing stays.
pub fn writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // A pipe would wait for its reader.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => fs::OpenOptions::new().write(true).open(path).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => part(path).map(drop),
        Err(error) => Err(error),
    }
}

/// What becomes the file at `path`.
fn part(path: &Path) -> io::Result<(PathBuf, fs::File, Temporary)> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let file = fs::File::create(&part)?;
    let temporary = Temporary::at(&part)?;
    Ok((part, file, temporary))
}

/// Writes a file that holds all of `bytes` or what it held before, also where the process is ended meanwhile.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // What is no file, such as a pipe or /dev/stdout, is written to.
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
        // It may be gone in this moment.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_its_owner_and_what_took_its_place_stays() {
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
    fn whether_a_file_can_be_written_is_known_before() {
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
