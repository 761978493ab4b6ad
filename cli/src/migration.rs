//! What `slat run` and `slat bench` both need beside `slat-migrate`: timeouts, errors, and pages that arrive.

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

/// The socket, whose reads and writes fail after a minute without a byte.
pub fn patient<S: AsFd>(socket: S) -> io::Result<S> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(PATIENCE))?;
    }
    Ok(socket)
}

/// The same over TCP, which holds no bytes back.
pub fn patient_tcp(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    patient(socket)
}

/// Why a migration failed: the guest's error, or what `side` could not send or receive.
pub fn failed(side: &str, error: MigrateError<Error>) -> Error {
    match error {
        MigrateError::Guest(error) => error,
        error => Error::Machine(format!("{side}{error}")),
    }
}

/// Stores pages that have arrived, which are zero without `contents`. This is a write of the host, not of the guest:
/// where a memslot logs, they are in its log from then on.
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
