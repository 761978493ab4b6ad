//! Notifies systemd (`Type=notify`) by a datagram to the socket that it names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `what` if systemd waits for it.
pub fn notify(what: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let path = path.as_encoded_bytes();
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::ffi::OsStr::new(&*String::from_utf8_lossy(path))),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        _ = socket.send_to_addr(what.as_bytes(), &address);
    }
}
