//! Messages with descriptors over Unix sockets.

use super::foreign::Foreign;
use super::{MOST_FDS, MOST_HANDSHAKE, WireError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Room for the descriptors of a message: more than a handshake may have, so that an excess is noticed.
const FDS: usize = 16;
const ROOM: usize = rustix::cmsg_space!(ScmRights(FDS));

/// Peeks at the received bytes until `is_whole` finds a message in them, and leaves them in the socket.
pub(crate) fn receive<T>(
    connection: &UnixStream,
    until: Instant,
    wait: Duration,
    is_whole: impl Fn(&[u8]) -> Result<Option<T>, WireError>,
) -> Result<(T, Vec<OwnedFd>), WireError> {
    peek_from_the_start(connection)?;
    let (mut bytes, mut fds) = (Vec::new(), Foreign::default());
    let mut part = vec![0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // poll does not know whether there are bytes behind the peeked ones, so the peeked length counts.
        match look(connection, &mut part, &mut fds.0) {
            Ok(0) => return Err(WireError::Closed(bytes.len())),
            Ok(got) => bytes.extend_from_slice(&part[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) if left == Timespec::default() => return Err(WireError::Late(wait, bytes.len())),
            Err(_) if bytes.is_empty() => {
                // If it is interrupted, the next peek decides.
                _ = poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&left));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
        if bytes.len() > MOST_HANDSHAKE {
            return Err(WireError::Long);
        }
        // Each piece may bring descriptors, which now belong to this process. An excess would be missing elsewhere.
        if fds.0.len() > MOST_FDS {
            return Err(WireError::Descriptors(fds.0.len()));
        }
        if let Some(found) = is_whole(&bytes)? {
            return Ok((found, fds.take()));
        }
        // A VMM that sends byte by byte does not extend the limit.
        if left == Timespec::default() {
            return Err(WireError::Late(wait, bytes.len()));
        }
    }
}

/// Makes peeks begin at the first unread byte, and continue where the last peek ended.
fn peek_from_the_start(connection: &UnixStream) -> io::Result<()> {
    let zero: i32 = 0;
    let (fd, level, name) = (connection.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF);
    // SAFETY: the option is an `int`, which the kernel reads.
    let answer =
        unsafe { libc::setsockopt(fd, level, name, (&raw const zero).cast(), size_of::<i32>() as u32) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn look(connection: &UnixStream, part: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let before = fds.len();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let (got, flags) = take_with_flags(connection.as_fd(), part, fds, flags)?;
    // The kernel leaves out descriptors if the buffer is full, or if this process may have no more.
    if flags.contains(ReturnFlags::CTRUNC) && fds.len() - before < FDS {
        let what =
            "this process has too many open files for the descriptors that came: raise its limit (ulimit -n)";
        return Err(io::Error::other(what));
    }
    Ok(got)
}

/// Receives a message and its descriptors.
pub(crate) fn take(
    socket: BorrowedFd,
    part: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<usize> {
    take_with_flags(socket, part, fds, flags).map(|(got, _)| got)
}

fn take_with_flags(
    socket: BorrowedFd,
    part: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<(usize, ReturnFlags)> {
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let got = recvmsg(socket, &mut [IoSliceMut::new(part)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((got.bytes, got.flags))
}

/// Sends a message with descriptors.
pub(crate) fn send(socket: BorrowedFd, bytes: &[u8], fds: &[BorrowedFd]) -> io::Result<()> {
    send_with(socket, bytes, fds, SendFlags::empty())
}

/// As [`send`], with these flags.
pub(crate) fn send_with(
    socket: BorrowedFd,
    bytes: &[u8],
    fds: &[BorrowedFd],
    flags: SendFlags,
) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for a message"));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::fs::File;

    /// The test runs in a process of its own, which may have few open files.
    #[test]
    fn a_process_with_too_many_open_files_says_so() {
        const CHILD: &str = "SLAT_PAGER_FEW_FILES";
        if std::env::var_os(CHILD).is_none() {
            let name = "wire::receive::tests::a_process_with_too_many_open_files_says_so";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            assert!(child.args([name, "--exact"]).env(CHILD, "1").status().unwrap().success());
            return;
        }
        let (vmm, pager) = UnixStream::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        let message = |count| {
            send(vmm.as_fd(), b"[", &vec![null.as_fd(); count]).unwrap();
            let found = |bytes: &[u8]| Ok((!bytes.is_empty()).then_some(()));
            let wait = Duration::from_secs(1);
            let result = receive(&pager, Instant::now() + wait, wait, found).map(|((), fds)| fds.len());
            _ = rustix::net::recv(&pager, &mut [0; 1][..], RecvFlags::empty());
            result
        };
        // The controls: descriptors arrive; an excess is something else.
        assert_eq!(message(2).unwrap(), 2);
        assert!(matches!(message(MOST_FDS + 1), Err(WireError::Descriptors(_))));
        let most = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: most }).unwrap();
        let open: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let error = message(1).unwrap_err().to_string();
        drop(open);
        assert!(error.contains("too many open files"), "{error}");
    }
}
