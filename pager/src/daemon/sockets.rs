//! Sockets at paths.

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::umask;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The path of a socket, and the identity of its file: device and inode.
#[derive(Debug)]
pub struct Place(PathBuf, Option<(u64, u64)>);

impl Place {
    /// Returns the place of the socket that is at this path now.
    pub fn of(path: &Path) -> Self {
        Self(path.into(), identity(path))
    }

    /// Removes the socket, unless another process has put one of its own there.
    pub fn remove(&self) {
        if self.1.is_some() && identity(&self.0) == self.1 {
            _ = std::fs::remove_file(&self.0);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let about = std::fs::symlink_metadata(path).ok()?;
    about.file_type().is_socket().then(|| (about.dev(), about.ino()))
}

/// Returns whether a process listens on the socket at this path. It sees a connection that is closed at once.
pub fn is_in_use(path: &Path) -> bool {
    if identity(path).is_none() {
        return false;
    }
    let (Ok(address), Ok(socket)) = (
        SocketAddrUnix::new(path),
        // A process that accepts none must not delay this one.
        socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        ),
    ) else {
        return false;
    };
    matches!(connect(&socket, &address), Ok(()) | Err(rustix::io::Errno::AGAIN))
}

/// Returns the first connection to this socket, and removes the socket. Only this user may connect to it. This sleeps.
///
/// It changes the process's umask for a moment: call it before threads make files.
pub fn accept_one(path: &Path) -> io::Result<UnixStream> {
    let socket = bind(path)?;
    socket.set_nonblocking(false)?;
    let (connection, _) = socket.accept()?;
    remove_socket(path)?;
    Ok(connection)
}

/// Binds a socket to which only this user may connect. Changes the umask for a moment.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    remove_socket(path).map_err(named)?;
    let before = umask(Mode::from_raw_mode(0o177));
    let socket = UnixListener::bind(path).map_err(named);
    umask(before);
    let socket = socket?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Removes a socket that an earlier process left behind, and nothing else.
pub fn remove_socket(path: &Path) -> io::Result<()> {
    if identity(path).is_some() { std::fs::remove_file(path) } else { Ok(()) }
}
