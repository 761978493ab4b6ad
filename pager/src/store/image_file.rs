//! An image of guest memory in a file or on a block device.

use super::StoreError;
use crate::cache::Chunk;
use crate::uffd::PAGE;
use rustix::io::{ReadWriteFlags, preadv2};
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, IoSliceMut, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// An open image of guest memory.
#[derive(Debug)]
pub struct ImageFile {
    name: String,
    file: File,
    size: u64,
    identity: String,
    /// Its file system keeps all content in memory, so that no read waits for a device.
    is_in_memory: bool,
    /// End of the stretch that was looked at last, and whether it is a hole.
    stretch: (u64, bool),
}

impl ImageFile {
    /// Opens an image. Does not wait for another process, also if the path is a pipe.
    ///
    /// # Errors
    /// [`StoreError::Size`]: it is neither a file nor a block device. Or the system's.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        let failed = |error| StoreError::Io { key: name.clone(), error };
        let open = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let mut file = open.map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let kind = about.file_type();
        let size = if kind.is_file() {
            about.len()
        } else if kind.is_block_device() {
            file.seek(SeekFrom::End(0)).map_err(failed)?
        } else {
            let what = format!("{name} is {}: an image is a file or a block device", named(kind));
            return Err(StoreError::Size(what));
        };
        // Another file, or a later content of this file, has another identity.
        let time = format!("{}.{}", about.mtime(), about.mtime_nsec());
        let identity = format!("{}:{}:{time}", about.dev(), about.ino());
        let is_in_memory = rustix::fs::fstatfs(&file).is_ok_and(|about| about.f_type == libc::TMPFS_MAGIC);
        Ok(Self { name, file, size, identity, is_in_memory, stretch: (0, false) })
    }

    /// Returns the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the identity of its content, as far as the file's time tells.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Returns pages of the image. May wait for a device. The file is read, not mapped: an access to a mapping of a file
    /// that became shorter would end this process.
    pub(crate) fn pages(&self, pages: &Range<usize>) -> Result<Chunk, StoreError> {
        let mut bytes = vec![0; pages.len() * PAGE];
        match self.read_at(&mut bytes, (pages.start * PAGE) as u64) {
            Ok(()) => Ok(Chunk::new(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let what = format!("it had {} bytes when it was opened, and is shorter now", self.size);
                Err(StoreError::Damaged { key: self.name.clone(), what })
            }
            Err(error) => Err(StoreError::Io { key: self.name.clone(), error }),
        }
    }

    /// Returns pages of the image if they are in memory; does not wait for a device. `None` also if this file system
    /// cannot tell, or after an error, which [`ImageFile::pages`] returns.
    pub(crate) fn pages_now(&self, pages: &Range<usize>) -> Option<Chunk> {
        let mut bytes = vec![0; pages.len() * PAGE];
        let flags = if self.is_in_memory { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
        let offset = (pages.start * PAGE) as u64;
        let read = preadv2(&self.file, &mut [IoSliceMut::new(&mut bytes)], offset, flags);
        (read == Ok(pages.len() * PAGE)).then(|| Chunk::new(bytes))
    }

    /// Returns `length` bytes from an offset. `None`: a hole of the file, which has zeros. Calls with growing offsets look
    /// for the holes once.
    pub(super) fn part(&mut self, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        let end = offset + length as u64;
        if self.stretch.0 <= offset {
            self.stretch = self.stretch_at(offset);
        }
        let (until, is_hole) = self.stretch;
        if is_hole && end <= until {
            return Ok(None);
        }
        let mut bytes = vec![0; length];
        self.read_at(&mut bytes, offset)?;
        Ok(Some(bytes))
    }

    /// Returns the end of the data, or of the hole, that begins at an offset or before it.
    fn stretch_at(&self, offset: u64) -> (u64, bool) {
        let seek = |whence| {
            // SAFETY: the call takes numbers.
            let found = unsafe { libc::lseek(self.file.as_raw_fd(), offset as i64, whence) };
            u64::try_from(found).map_err(|_| io::Error::last_os_error())
        };
        match seek(libc::SEEK_DATA) {
            Ok(data) if data > offset => (data, true),
            Ok(_) => (seek(libc::SEEK_HOLE).unwrap_or(self.size), false),
            // A hole to the end.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => (self.size, true),
            // The file system knows of no holes.
            Err(_) => (self.size, false),
        }
    }
}

fn named(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_char_device() => "a character device",
        () if kind.is_socket() => "a socket",
        () => "no file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Folder, Library, Template};

    #[test]
    fn only_files_and_block_devices_are_images_and_holes_are_not_read() {
        let folder = std::env::temp_dir().join(format!("slat-pager-image-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let error = |path: &Path| ImageFile::open(path).unwrap_err().to_string();
        assert!(error(&folder).contains("is a folder: an image is"));
        let pipe = folder.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(error(&pipe).contains("is a pipe"));
        assert!(error(Path::new("/dev/zero")).contains("is a character device"));
        assert!(matches!(ImageFile::open(&folder.join("none")), Err(StoreError::Io { .. })));
        assert!(matches!(Template::of_image(&folder), Err(StoreError::Size(_))));
        // Data, a hole of 1 TiB, data, a hole.
        let (path, hole) = (folder.join("image"), 1 << 40);
        let file = File::create(&path).unwrap();
        let size = hole + (64 << 20);
        if file.set_len(size).is_ok() {
            file.write_all_at(&[1; 8192], 0).unwrap();
            file.write_all_at(&[2; 4096], hole).unwrap();
            let mut image = ImageFile::open(&path).unwrap();
            let chunk = 1 << 20;
            assert!(image.part(0, chunk).unwrap().is_some_and(|bytes| bytes[..8192] == [1; 8192]));
            assert!(image.part(1 << 20, chunk).unwrap().is_none());
            assert!(
                image.part(hole - 4096, chunk).unwrap().is_some_and(|bytes| bytes[4096..8192] == [2; 4096])
            );
            assert!(image.part(size - 4096, 4096).unwrap().is_none());
        }
        // A snapshot has the same content as that of all bytes.
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[3; 4096], 48 << 20).unwrap();
        let library = Library::new(Folder::open(folder.join("store")).unwrap());
        let image = ImageFile::open(&path).unwrap();
        assert_eq!(library.snapshot_file("sparse", image, 64 << 10).unwrap().chunks, 2);
        library.snapshot("whole", File::open(&path).unwrap(), 64 << 20, 64 << 10).unwrap();
        let [sparse, whole] = ["sparse", "whole"].map(|name| library.open(name).unwrap());
        assert_eq!(sparse.chunks(), whole.chunks());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_image_that_becomes_shorter_is_an_error_and_no_zeros() {
        let path = std::env::temp_dir().join(format!("slat-pager-shorter-{}", std::process::id()));
        std::fs::write(&path, [5; 4 * PAGE]).unwrap();
        let image = ImageFile::open(&path).unwrap();
        assert_eq!(*image.pages(&(1..4)).unwrap(), [5; 3 * PAGE]);
        if let Some(bytes) = image.pages_now(&(1..4)) {
            assert_eq!(*bytes, [5; 3 * PAGE]);
        }
        // In the middle of page 2: the rest of that page would be zeros in a mapping.
        File::options().write(true).open(&path).unwrap().set_len(2 * PAGE as u64 + 100).unwrap();
        for pages in [2..3, 1..4, 3..4] {
            assert!(image.pages_now(&pages).is_none(), "{pages:?}");
            let error = image.pages(&pages).unwrap_err();
            assert!(!error.may_pass() && error.to_string().contains("is shorter now"), "{error}");
        }
        assert_eq!(*image.pages(&(1..2)).unwrap(), [5; PAGE], "what is left is served");
        std::fs::remove_file(path).unwrap();
    }
}
