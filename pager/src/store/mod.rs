//! Where templates lie: a place for named objects, the chunks in it, and what a template is.

pub(crate) mod catalog;
pub(crate) mod chunk;
mod derive;
mod faulty;
mod folder;
mod gc;
pub(crate) mod lease;
mod library;
pub(crate) mod manifest;
mod nbd;
#[cfg(feature = "s3")]
mod objects;
#[cfg(feature = "s3")]
mod s3;
mod steady;
mod template;
mod upload;
mod working_set;

pub(crate) use manifest::Machine;
pub(crate) use nbd::{Stream, converse, parse as nbd_address};

pub use chunk::{Hash, MOST_CHUNK};
#[doc(hidden)]
pub use faulty::Trouble;
pub use folder::Folder;
pub use gc::{Gc, PATIENCE};
pub use library::{Library, Verified};
pub use nbd::Nbd;
#[cfg(feature = "s3")]
pub use objects::Objects;
#[cfg(feature = "s3")]
pub use s3::s3;
#[doc(hidden)]
pub use steady::Clock;
pub use steady::{Steady, SteadyOptions, StoreStats};
pub(crate) use template::Found;
pub use template::Template;
pub use working_set::WorkingSet;

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// A place for objects: small files with a name, whole or not there. Any number of hosts may share one, and nothing else.
///
/// A key has one or two parts, such as `catalog` or `chunks/3fc9`, each of letters, digits, `-`, `_` and `.`. Once a call that
/// writes has returned, every later call on any host sees what it wrote.
pub trait Store: Send + Sync {
    /// The object, if it has no more than `most` bytes, and its version.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Large`], or what the place says.
    fn read(&self, key: &str, most: usize) -> Result<(Vec<u8>, Version), StoreError>;
    /// Writes an object; one of that name is replaced. A reader sees the old one or the new one, whole.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError>;
    /// Writes an object if the one of that name still has this version; `None`: if there is none. Whether it was written. After an
    /// error it may have been.
    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError>;
    /// The objects of a kind (the key's first part), sorted by their names, which lack that part.
    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError>;
    /// Takes an object away. One that is not there is no error.
    fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// As [`Store::read`], without the version.
    fn get(&self, key: &str, most: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.read(key, most)?.0)
    }
    /// The names of [`Store::entries`].
    fn list(&self, kind: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.entries(kind)?.into_iter().map(|entry| entry.name).collect())
    }
}

/// What an object was when it was read. Two contents of one object have two versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// An object, as a listing has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, without the kind.
    pub name: String,
    /// When it was written, by the clock of the place.
    pub modified: SystemTime,
}

/// Several users of one store.
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

/// Why an object or a template cannot be had.
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
    #[error("{0:?} is no name: letters, digits, `-`, `_` and `.` are, and it does not begin with `.`")]
    Name(String),
    /// What was read is not what was written.
    #[error("{key} is damaged: {what}")]
    Damaged {
        /// The object.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// A size that no image or chunk has.
    #[error("{0}")]
    Size(String),
    /// Others changed it again and again, or an upload was given up by a collection: the same call may succeed later.
    #[error("{0}: try again")]
    Busy(String),
    /// The place said no.
    #[error("{key}: {error}")]
    Io {
        /// The object.
        key: String,
        /// What it said.
        error: io::Error,
    },
}

impl StoreError {
    /// Whether trying again may help: not where the object is missing or damaged.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Busy(_))
    }
}

/// A name of a template, or a part of a key.
pub(crate) fn is_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(fine) && !name.starts_with('.')
}
