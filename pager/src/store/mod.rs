//! Stores of templates: named objects, their chunks, and the parts of a template.

pub(crate) mod catalog;
pub(crate) mod chunk;
mod derive;
mod disk;
mod faulty;
mod folder;
mod fsck;
mod gc;
mod image_file;
pub(crate) mod lease;
mod library;
mod losses;
pub(crate) mod manifest;
mod names;
mod nbd;
#[cfg(feature = "s3")]
mod objects;
mod open;
mod overlay;
pub(crate) mod pack;
mod packing;
#[cfg(feature = "s3")]
mod s3;
mod seen;
mod snapshot;
mod source;
mod steady;
mod template;
mod upload;
mod working_set;

pub(crate) use manifest::Machine;
pub(crate) use nbd::{Stream, converse, parse as nbd_address};
pub(crate) use pack::{MOST_PACK, Pack};

pub use crate::hash::Hash;
pub use chunk::MOST_CHUNK;
pub use disk::{Disk, DiskStats};
#[doc(hidden)]
pub use faulty::Trouble;
pub use folder::Folder;
pub use fsck::Fsck;
pub use gc::Gc;
pub use image_file::ImageFile;
pub use lease::{LeaseStats, PATIENCE};
pub use library::{Library, Verified};
pub use losses::TemplateLoss;
pub use manifest::{MOST_CONFIG, MOST_STATE};
pub use nbd::Nbd;
#[cfg(feature = "s3")]
pub use objects::Objects;
#[cfg(feature = "s3")]
pub use s3::s3;
pub use source::TemplateSource;
#[doc(hidden)]
pub use steady::Clock;
pub use steady::{Steady, SteadyOptions, StoreStats};
pub(crate) use template::Found;
pub use template::Template;
pub use working_set::WorkingSet;

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// A store of named objects. An object is present as a whole or absent. Any number of hosts may share a store, and
/// nothing else.
///
/// A key has one or two parts, such as `catalog` or `chunks/3fc9`, each of letters, digits, `-`, `_` and `.`. Once a
/// writing call has returned, every later call on any host sees the write.
pub trait Store: Send + Sync {
    /// Reads an object of at most `most` bytes, and its version.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Large`], or an error of the store.
    fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError>;
    /// Writes or replaces an object. A reader sees the old object or the new one as a whole.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError>;
    /// Writes an object if the one of that name still has this version; `None`: if there is none. Returns whether it
    /// was written. After an error it may have been written.
    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError>;
    /// Lists the objects of a kind (the key's first part), sorted by their names, which lack that part.
    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError>;
    /// Deletes an object. A missing one is no error.
    fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// As [`Store::read`], without the version.
    fn get(&self, key: &str, most: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.read(key, most)?.0)
    }
    /// Returns the names of [`Store::entries`].
    fn list(&self, kind: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.entries(kind)?.into_iter().map(|entry| entry.name).collect())
    }
}

/// Version of an object. Different contents of one object have different versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name, without the kind.
    pub name: String,
    /// Time of its last write, by the store's clock.
    pub modified: SystemTime,
}

/// Lets several users share a store.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError> {
        (**self).read(key, most)
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        (**self).put(key, bytes)
    }

    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
        (**self).put_if(key, bytes, before)
    }

    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
        (**self).entries(kind)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        (**self).delete(key)
    }
}

/// Error of an object or a template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such object.
    #[error("{0} is not in the store")]
    Missing(String),
    /// An object is larger than it can be.
    #[error("{key} has more than {most} bytes")]
    Large {
        /// The object.
        key: String,
        /// The most that it may have.
        most: usize,
    },
    /// A name that no object can have.
    #[error(
        "{0:?} is no name: a name has 1 to 128 letters of ASCII, digits, `-`, `_` and `.`, and does not begin with `.`"
    )]
    Name(String),
    /// The object differs from what was written.
    #[error("{key} is damaged: {what}")]
    Damaged {
        /// The object.
        key: String,
        /// The difference.
        what: String,
    },
    /// A size that no image or chunk has.
    #[error("{0}")]
    Size(String),
    /// Other hosts changed the object again and again, or a collection gave up the upload: the same call may succeed
    /// later.
    #[error("{0}: try again")]
    Busy(String),
    /// The store refused.
    #[error("{key}: {error}")]
    Io {
        /// The object.
        key: String,
        /// The store's error.
        error: io::Error,
    },
}

impl StoreError {
    /// Returns whether a retry may help: not if the object is missing or damaged.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Busy(_))
    }
}

/// Returns whether a text is a name of a template, or a part of a key.
pub(crate) fn is_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(fine) && !name.starts_with('.')
}
