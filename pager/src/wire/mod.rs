//! Protocols by which a VMM describes its memory to the pager.

mod firecracker;
mod foreign;
mod migration;
mod receive;

pub use firecracker::Firecracker;
pub(crate) use firecracker::mappings;
pub(crate) use foreign::Foreign;
pub(crate) use migration::{HEADER, MigrationRequest, ROLE_FAULT, Slots, answer, is_ok, range};
pub use migration::{MOST_FAULT, MigrationError};
pub(crate) use receive::{receive, send, send_with, take};

use crate::layout::{Layout, LayoutError, Region};
use crate::uffd::{HUGE_PAGE, PAGE, Uffd};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Most bytes of a handshake: less than a socket's buffer, because it stays there.
pub const MOST_HANDSHAKE: usize = 64 << 10;
/// Most descriptors of a handshake: the userfaultfd, shared memory, and the userfault bitmap of guests without secrets.
pub const MOST_FDS: usize = 3;

/// A protocol by which VMMs hand over their memory.
///
/// An implementation reads a handshake and leaves it in the socket, so that another daemon finds it if this one is
/// killed.
pub trait Wire: Send + Sync {
    /// Waits for the handshake on a connection, at most for `wait`.
    fn handshake(&self, connection: &UnixStream, wait: Duration) -> Result<Handshake, WireError>;
}

/// A VMM's handshake.
#[derive(Debug)]
#[non_exhaustive]
pub struct Handshake {
    /// Regions of its memory, unchecked: [`Layout::new`](crate::Layout::new) checks them.
    pub regions: Vec<Region>,
    /// Bytes of a page of its memory: [`PAGE`](crate::PAGE), or [`HUGE_PAGE`](crate::HUGE_PAGE).
    pub page_size: usize,
    /// Its userfaultfd.
    pub uffd: Uffd,
    /// Further descriptors: shared memory, and those of newer VMMs.
    pub more: Vec<OwnedFd>,
}

impl Handshake {
    /// Returns the layout of its memory in an image of `image` bytes.
    pub(crate) fn layout(&self, image: u64) -> Result<Layout, LayoutError> {
        layout(self.regions.clone(), self.page_size, image)
    }
}

pub(crate) fn layout(regions: Vec<Region>, page_size: usize, image: u64) -> Result<Layout, LayoutError> {
    if page_size == HUGE_PAGE { Layout::of_huge_pages(regions, image) } else { Layout::new(regions, image) }
}

/// Reason for refusing a handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The handshake, or a part of it, did not come in time.
    #[error("no whole handshake after {0:?}: {1} bytes came")]
    Late(Duration, usize),
    /// The VMM closed the connection before the handshake was complete.
    #[error("the connection was closed after {0} bytes of a handshake")]
    Closed(usize),
    /// The handshake is too long.
    #[error("the handshake has more than {MOST_HANDSHAKE} bytes")]
    Long,
    /// The handshake is no JSON array of mappings.
    #[error("the handshake is not understood: {0}")]
    Syntax(String),
    /// No descriptor, or too many.
    #[error("{0} descriptors came with the handshake: there must be 1 to {MOST_FDS}")]
    Descriptors(usize),
    /// The first descriptor is something else.
    #[error("the first descriptor: {0}")]
    NoUffd(io::Error),
    /// The page size is not supported.
    #[error("pages of {0} bytes are not served: only {PAGE} and {HUGE_PAGE}")]
    PageSize(u64),
    /// Regions in pages of different sizes.
    #[error("regions in pages of {PAGE} and of {HUGE_PAGE} bytes are not served in one guest")]
    PageSizes,
    /// The regions are invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An error of the socket.
    #[error("the connection: {0}")]
    Io(#[from] io::Error),
}
