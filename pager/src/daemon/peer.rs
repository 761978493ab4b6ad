//! The process at the other end of a connection.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Reads an option of a socket.
///
/// # Safety
/// Any bytes that the kernel writes for this option are a `T`.
unsafe fn option<T>(socket: &impl AsFd, name: libc::c_int) -> io::Result<T> {
    let (mut value, mut size) = (MaybeUninit::<T>::zeroed(), size_of::<T>() as libc::socklen_t);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `size` bytes there.
    let answer =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut size) };
    match answer {
        // SAFETY: it was zeroed, and the caller says that what was written over it is a value.
        0 => Ok(unsafe { value.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the id of the process that made the connection. `None`: it is in another pid namespace.
pub fn pid(connection: &impl AsFd) -> Option<Pid> {
    // SAFETY: three numbers.
    let peer = unsafe { option::<libc::ucred>(connection, libc::SO_PEERCRED) }.ok()?;
    Pid::from_raw(peer.pid)
}

/// Returns the process that made the connection, and its id. The id may belong to another process if the first one has
/// ended; since Linux 6.5 the kernel itself keeps the process of a connection.
pub fn process(connection: &impl AsFd) -> io::Result<(Pid, OwnedFd)> {
    /// Of the kernel's `socket.h`.
    const SO_PEERPIDFD: libc::c_int = 77;
    let unknown = || io::Error::new(io::ErrorKind::NotFound, "the process at the other end is not known");
    let pid = pid(connection).ok_or_else(unknown)?;
    // SAFETY: a number.
    match unsafe { option::<libc::c_int>(connection, SO_PEERPIDFD) } {
        // SAFETY: the kernel made the descriptor for this call.
        Ok(process) => Ok((pid, unsafe { OwnedFd::from_raw_fd(process) })),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let process = pidfd_open(pid, PidfdFlags::empty())?;
            if has_hung_up(connection)? { Err(unknown()) } else { Ok((pid, process)) }
        }
        Err(error) => Err(error),
    }
}

/// Kills the process that made the connection, if it lives and has not closed it.
pub fn kill(connection: &impl AsFd) -> io::Result<()> {
    let (_, process) = process(connection)?;
    if has_hung_up(connection)? {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(pidfd_send_signal(process, Signal::KILL)?)
}

/// Returns whether the process that made the connection is known and has not closed it.
pub fn is_there(connection: &impl AsFd) -> bool {
    process(connection).is_ok() && has_hung_up(connection).is_ok_and(|gone| !gone)
}

/// Returns whether every process has closed the other end.
fn has_hung_up(connection: &impl AsFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(connection, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(!fds[0].revents().is_empty())
}
