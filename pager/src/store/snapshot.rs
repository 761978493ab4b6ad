//! Makes templates of images.

use super::library::check_name;
use super::manifest::{Machine, Manifest};
use super::upload::Upload;
use super::{ImageFile, Library, StoreError, Verified};
use std::io::{self, Read};

impl Library {
    /// Makes a template of the `size` bytes that `image` reads, in chunks of `chunk` bytes. Chunks that a template of
    /// the store already has are not written again. The template appears when all of its chunks are written. It
    /// replaces one of the same name; guests of the old one keep it.
    ///
    /// # Errors
    /// [`StoreError::Size`], [`StoreError::Name`], an error of the store, or [`StoreError::Busy`] if a collection gave
    /// up this upload. A template of that name is unchanged then.
    pub fn snapshot(
        &self,
        name: &str,
        image: impl Read,
        size: u64,
        chunk: usize,
    ) -> Result<Verified, StoreError> {
        self.keep(name, image, size, chunk, None)
    }

    /// As [`Library::snapshot`], of a file or a block device. Holes of a file are not read.
    ///
    /// # Errors
    /// As of [`Library::snapshot`].
    pub fn snapshot_file(
        &self,
        name: &str,
        mut image: ImageFile,
        chunk: usize,
    ) -> Result<Verified, StoreError> {
        let (size, mut at) = (image.size(), 0);
        let next = |length: usize| {
            let part = image.part(at, length);
            at += length as u64;
            part
        };
        self.keep_parts(name, next, size, chunk, None)
    }

    /// As [`Library::snapshot`]. `machine` has the parts of an image that is a whole machine.
    pub(crate) fn keep(
        &self,
        name: &str,
        mut image: impl Read,
        size: u64,
        chunk: usize,
        machine: Option<Machine>,
    ) -> Result<Verified, StoreError> {
        let next = |length| {
            let mut content = vec![0; length];
            image.read_exact(&mut content).map(|()| Some(content))
        };
        self.keep_parts(name, next, size, chunk, machine)
    }

    /// Makes a template of the parts that `next` returns. `None`: zeros.
    fn keep_parts(
        &self,
        name: &str,
        next: impl FnMut(usize) -> io::Result<Option<Vec<u8>>>,
        size: u64,
        chunk: usize,
        machine: Option<Machine>,
    ) -> Result<Verified, StoreError> {
        Manifest::check(size, chunk)?;
        check_name(name)?;
        let upload = Upload::begin(self)?;
        let chunks = upload.image(next, size, chunk, self.writers)?;
        let written = upload.written();
        upload.publish(name, &Manifest { size, chunk, chunks, machine, overlay: None })?;
        Ok(Verified { chunks: written, damaged: Vec::new() })
    }
}
