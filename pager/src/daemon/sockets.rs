//! Sockets at paths. A daemon takes no socket of a process that lives, unless it is asked to, and removes only its own.

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::umask;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The device and the inode of a file. The inode is not used again while a process listens on the socket.
pub type Identity = (u64, u64);

/// The path of a socket, and the identity of its file.
#[derive(Debug)]
pub struct Place(PathBuf, Option<Identity>);

impl Place {
    /// Returns the place of the socket that is at this path now.
    pub fn of(path: &Path) -> Self {
        Self(path.into(), identity(path))
    }

    /// Returns the place of the same socket at another path.
    pub fn named(&self, path: &Path) -> Self {
        Self(path.into(), self.1)
    }

    /// Returns the place of the socket of this identity, which may be at the path no longer.
    pub fn with(path: &Path, identity: Option<Identity>) -> Self {
        Self(path.into(), identity)
    }

    pub fn identity(&self) -> Option<Identity> {
        self.1
    }

    /// Returns whether the socket is at its path.
    pub fn is_there(&self) -> bool {
        self.1.is_some() && identity(&self.0) == self.1
    }

    /// Removes the socket, unless another process has put one of its own there. Call it while this process listens.
    pub fn remove(&self) {
        // Between the look and the removal, another daemon does not replace the socket.
        let _lock = lock(&self.0);
        if self.is_there() {
            _ = std::fs::remove_file(&self.0);
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
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
    let (socket, place) = bind(path, false)?;
    socket.set_nonblocking(false)?;
    let (connection, _) = socket.accept()?;
    place.remove();
    Ok(connection)
}

fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    let path = path.to_owned();
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Binds a socket to which only this user may connect. A socket that no process listens on is replaced; another one only
/// if this daemon `replaces` it: in one step, so that a VMM always finds one. Changes the umask for a moment.
///
/// # Errors
/// `AddrInUse`: another process listens there.
pub fn bind(path: &Path, replaces: bool) -> io::Result<(UnixListener, Place)> {
    bind_in(path, replaces).map_err(named(path))
}

fn bind_in(path: &Path, replaces: bool) -> io::Result<(UnixListener, Place)> {
    // Two daemons that start at the same time do not both find a socket abandoned.
    let _lock = lock(path)?;
    let beside = path.with_file_name(format!(".slat-{}", std::process::id()));
    let is_live = is_in_use(path);
    if is_live && !replaces {
        let what = "another daemon listens here; drain it first, or start with --replace";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    }
    let at = if is_live { &beside } else { path };
    remove_socket(at)?;
    let before = umask(Mode::from_raw_mode(0o177));
    let socket = UnixListener::bind(at);
    umask(before);
    let socket = socket?;
    socket.set_nonblocking(true)?;
    let place = Place::of(at).named(path);
    if is_live {
        std::fs::rename(&beside, path)?;
    }
    Ok((socket, place))
}

/// Locks the folder of a socket against other daemons. A process that holds the lock for long is not waited for.
fn lock(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let (folder, until) = (File::open(folder)?, Instant::now() + Duration::from_secs(1));
    while flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(folder)
}

/// Gives the file of a socket an owner and permissions, for VMMs of another user.
pub fn give(path: &Path, uid: Option<u32>, gid: Option<u32>, mode: Option<u32>) -> io::Result<()> {
    if uid.is_some() || gid.is_some() {
        std::os::unix::fs::chown(path, uid, gid).map_err(named(path))?;
    }
    match mode {
        Some(mode) => std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(named(path)),
        None => Ok(()),
    }
}

/// Removes a socket that an earlier process left behind, and nothing else.
fn remove_socket(path: &Path) -> io::Result<()> {
    if identity(path).is_some() { std::fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_refused_or_replaced_and_each_daemon_removes_its_own() {
        let path = std::env::temp_dir().join(format!("slat-pager-place-{}", std::process::id()));
        let (first, place) = bind(&path, false).unwrap();
        let error = bind(&path, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("--replace") && is_in_use(&path), "{error}");
        let (second, other) = bind(&path, true).unwrap();
        place.remove();
        drop(first);
        assert!(is_in_use(&path), "it belongs to the second one");
        // No process listens on a socket that was left behind.
        drop(second);
        let (_third, last) = bind(&path, false).unwrap();
        other.remove();
        assert!(is_in_use(&path));
        last.remove();
        assert!(!path.exists());
        // Another file is left alone.
        std::fs::write(&path, "mine").unwrap();
        assert!(bind(&path, true).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        std::fs::remove_file(&path).unwrap();
    }
}
