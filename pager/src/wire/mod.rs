//! How a VMM tells the pager of its memory.

mod firecracker;
mod migration;
mod receive;

pub(crate) use firecracker::mappings;
pub use firecracker::{Firecracker, MOST_FDS, MOST_HANDSHAKE};
pub(crate) use migration::{HEADER, MigrationRequest, ROLE_FAULT, Slots, answer, is_ok, range};
pub use migration::{MOST_CONFIG, MOST_FAULT, MOST_STATE, MigrationError};
pub(crate) use receive::{receive, send, take};

use crate::layout::{Layout, LayoutError, Region};
use crate::uffd::{HUGE_PAGE, PAGE, Uffd};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A way in which VMMs hand over their memory.
///
/// A handshake is looked at and left in the socket. So it is still there for another daemon, if this one is killed.
pub trait Wire: Send + Sync {
    /// Waits for the handshake on a connection, at most so long.
    fn handshake(&self, connection: &UnixStream, wait: Duration) -> Result<Handshake, WireError>;
}

/// What a VMM sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Handshake {
    /// Where its memory is, as it said: to be checked by [`Layout::new`](crate::Layout::new).
    pub regions: Vec<Region>,
    /// Bytes of a page of its memory: [`PAGE`](crate::PAGE), or [`HUGE_PAGE`](crate::HUGE_PAGE).
    pub page_size: usize,
    /// Its userfaultfd.
    pub uffd: Uffd,
    /// Descriptors that came along: shared memory, and what newer VMMs send.
    pub more: Vec<OwnedFd>,
}

impl Handshake {
    /// Where its memory is in an image of so many bytes.
    pub(crate) fn layout(&self, image: u64) -> Result<Layout, LayoutError> {
        layout(self.regions.clone(), self.page_size, image)
    }
}

pub(crate) fn layout(regions: Vec<Region>, page_size: usize, image: u64) -> Result<Layout, LayoutError> {
    if page_size == HUGE_PAGE { Layout::of_huge_pages(regions, image) } else { Layout::new(regions, image) }
}

/// Why a handshake was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// It did not come in time, or not all of it.
    #[error("no whole handshake after {0:?}: {1} bytes came")]
    Late(Duration, usize),
    /// The VMM closed the connection before it was whole.
    #[error("the connection was closed after {0} bytes of a handshake")]
    Closed(usize),
    /// It has too many bytes.
    #[error("the handshake has more than {MOST_HANDSHAKE} bytes")]
    Long,
    /// It is no JSON array of mappings.
    #[error("the handshake is not understood: {0}")]
    Syntax(String),
    /// None, or too many descriptors.
    #[error("{0} descriptors came with the handshake: there must be 1 to {MOST_FDS}")]
    Descriptors(usize),
    /// The first descriptor is something else.
    #[error("the first descriptor: {0}")]
    NoUffd(io::Error),
    /// Pages of a size that is not served.
    #[error("pages of {0} bytes are not served: only {PAGE} and {HUGE_PAGE}")]
    PageSize(u64),
    /// Regions in pages of different sizes.
    #[error("regions in pages of {PAGE} and of {HUGE_PAGE} bytes are not served in one guest")]
    PageSizes,
    /// The regions make no sense.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The socket said no.
    #[error("the connection: {0}")]
    Io(#[from] io::Error),
}
