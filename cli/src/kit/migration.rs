//! Helpers that `slat run` and `slat bench` share for migrations: socket timeouts, errors, and the store of a received
//! page.

use crate::error::Error;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use slat::{Format, Host, Hva, Idle, Span, Vm};
use slat_migrate::MigrateError;
use slat_mm::{AddressSpace, MmError};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

/// A connection without a byte for this long is closed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes reads and writes of the socket fail after a minute without a byte.
pub fn patient<S: AsFd>(socket: S) -> io::Result<S> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(PATIENCE))?;
    }
    Ok(socket)
}

/// Does the same for a TCP connection, and turns off Nagle's delay.
pub fn patient_tcp(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    patient(socket)
}

/// Converts the error of a migration: the guest's own error, or one line that begins with `side`.
pub fn failed(side: &str, error: MigrateError<Error>) -> Error {
    match error {
        MigrateError::Guest(error) => error,
        error => Error::Machine(format!("{side}{error}")),
    }
}

/// Stores received pages; without `contents` they are zero. The host writes them, not the guest, so they are added to
/// the dirty log of each memslot that has one.
pub fn store<F: Format, H: Host>(
    space: &AddressSpace,
    vm: &Vm<F, H>,
    idle: &mut Idle,
    hvas: Span<Hva>,
    contents: Option<&[u8]>,
) -> Result<(), MmError> {
    match contents {
        Some(contents) => space.write(idle, hvas.start, contents)?,
        None => space.dontneed(idle, hvas)?,
    }
    vm.mark_dirty(hvas);
    Ok(())
}
