//! Where templates lie: a place for named objects, the chunks in it, and what a template is.

mod chunk;
mod folder;
mod library;
mod manifest;
mod template;
mod trouble;
mod working_set;

pub use chunk::{Hash, MOST_CHUNK};
pub use folder::Folder;
pub use library::{Gc, Library, Verified};
pub use template::Template;
#[doc(hidden)]
pub use trouble::Trouble;
pub use working_set::WorkingSet;

use std::any::Any;
use std::io;
use std::sync::Arc;

/// A place for objects: small files with a name, whole or not there. Several hosts may share one.
///
/// A key has one or two parts, such as `chunks/3fc9` or `templates/debian`, each of letters, digits, `-`, `_` and `.`.
pub trait Store: Send + Sync {
    /// The object, if it has no more than `most` bytes.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Large`], or what the place says.
    fn get(&self, key: &str, most: usize) -> Result<Vec<u8>, StoreError>;
    /// Writes an object; one of that name is replaced. A reader sees the old one or the new one, whole.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError>;
    /// Whether there is such an object.
    fn has(&self, key: &str) -> Result<bool, StoreError>;
    /// The names of the objects of a kind (the key's first part), without that part, sorted.
    fn list(&self, kind: &str) -> Result<Vec<String>, StoreError>;
    /// Takes an object away. One that is not there is no error.
    fn delete(&self, key: &str) -> Result<(), StoreError>;
    /// Locks a name until the answer is dropped, or the process ends: shared, or `exclusive`. `None`: another one has it. It does
    /// not wait. The name needs no object.
    fn lock(&self, key: &str, exclusive: bool) -> Result<Option<Guard>, StoreError>;
}

/// A lock that [`Store::lock`] gave.
pub type Guard = Box<dyn Any + Send + Sync>;

/// Several users of one store.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn get(&self, key: &str, most: usize) -> Result<Vec<u8>, StoreError> {
        (**self).get(key, most)
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        (**self).put(key, bytes)
    }

    fn has(&self, key: &str) -> Result<bool, StoreError> {
        (**self).has(key)
    }

    fn list(&self, kind: &str) -> Result<Vec<String>, StoreError> {
        (**self).list(kind)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        (**self).delete(key)
    }

    fn lock(&self, key: &str, exclusive: bool) -> Result<Option<Guard>, StoreError> {
        (**self).lock(key, exclusive)
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
    /// Another process uses it in a way that excludes this.
    #[error("{0} is in use: try again when what uses it has ended")]
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
