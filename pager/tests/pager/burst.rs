//! Many VMMs at once, honest and hostile: the honest ones are served, and the daemon ends when it drains.

use crate::daemon::{Daemon, Twin};
use crate::soak::number;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use slat_pager::{Features, Uffd};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest wait of an honest guest.
const LONGEST: Duration = Duration::from_secs(10);

/// Sends a handshake. The daemon may have closed the connection.
fn send(to: &UnixStream, text: &str, fds: &[BorrowedFd]) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    _ = sendmsg(to, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL);
}

/// A connection that is not a VMM's. Most stay open.
fn hostile(socket: &Path, kind: usize, uffd: &Uffd) -> Option<UnixStream> {
    let connection = UnixStream::connect(socket).ok()?;
    let region = r#"[{"base_host_virt_addr":4096,"size":4096,"offset":1099511627776}]"#;
    match kind % 6 {
        // It is closed at once.
        0 => return None,
        1 => _ = (&connection).write_all(b"GET / HTTP/1.1\r\n\r\n"),
        2 => send(&connection, &region[..20], &[uffd.as_fd()]),
        3 => send(&connection, region, &[uffd.as_fd()]),
        4 => send(&connection, region, &[connection.as_fd(); 9]),
        // It sends nothing.
        _ => {}
    }
    Some(connection)
}

#[test]
fn honest_guests_in_a_burst_of_hostile_connections_are_served_and_the_drain_ends() {
    let count = number("SLAT_PAGER_SOAK_BURST", 400) as usize;
    let Some(mut daemon) = Daemon::start("burst", "--per-process 512") else { return };
    let (socket, uffd) = (daemon.socket(), Uffd::new(Features::REMOVE).unwrap());
    let words = "--millis 300 --balloon --vcpus 1 --patience-ms 30000";
    let honest = (count / 20).clamp(4, 200);
    let mut longest = 0;
    let mut twins = Vec::new();
    std::thread::scope(|scope| {
        let burst = |from: usize| {
            let (socket, uffd) = (&socket, &uffd);
            scope.spawn(move || (from..count).step_by(4).filter_map(|at| hostile(socket, at, uffd)).collect())
        };
        let bursts: Vec<_> = (0..4).map(burst).collect();
        for seed in 0..honest {
            // A part of the template.
            twins.push(Twin::at(&socket, 2, &format!("{words} --seed {seed}")));
        }
        std::thread::sleep(Duration::from_millis(300));
        daemon.kill();
        for twin in twins.drain(..) {
            let report = twin.report();
            assert!(report.is_right(), "{report:?}");
            assert!(report.longest < LONGEST.as_nanos() as u64, "{report:?}");
            longest = longest.max(report.longest);
        }
        // The connections are open until the honest guests have ended.
        for burst in bursts {
            drop::<Vec<UnixStream>>(burst.join().unwrap());
        }
    });
    assert!(daemon.twin("--millis 100 --patience-ms 30000").report().is_right());
    daemon.drain();
    assert_eq!(daemon.end().code(), Some(0));
    let longest = Duration::from_nanos(longest);
    println!("{honest} honest guests among {count} others: the longest wait was {longest:.1?}");
}

/// Returns the number of VMMs that these lines of the log say were not served.
fn refused(lines: &[String]) -> u64 {
    let one = |line: &String| {
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { return 0 };
        let omitted = line["lines"].as_u64().filter(|_| line["of"] == "refused").unwrap_or(0);
        omitted + u64::from(line["refused"].is_string()) + line["connections"].as_u64().unwrap_or(0)
    };
    lines.iter().map(one).sum()
}

/// With most of one process, and with all that the limit of open files allows.
#[test]
fn each_vmm_of_a_burst_that_is_not_served_is_in_the_log() {
    let count = number("SLAT_PAGER_SOAK_BURST", 400) as usize;
    for most in ["32", "100000"] {
        let Some(mut daemon) = Daemon::start("told", &format!("--per-process {most}")) else { return };
        let (socket, uffd) = (&daemon.socket(), &Uffd::new(Features::REMOVE).unwrap());
        let burst = |from: usize| (from..count).step_by(4).map(|at| hostile(socket, at, uffd)).collect();
        let open: Vec<Vec<_>> = std::thread::scope(|scope| {
            let bursts: Vec<_> = (0..4).map(|from| scope.spawn(move || burst(from))).collect();
            bursts.into_iter().map(|burst| burst.join().unwrap()).collect()
        });
        // Connections without a handshake end when they are closed.
        drop::<Vec<Vec<Option<UnixStream>>>>(open);
        daemon.drain();
        assert_eq!(daemon.end().code(), Some(0));
        let lines = daemon.rest();
        assert_eq!(refused(&lines), count as u64, "{:?}", lines.iter().rev().take(5).collect::<Vec<_>>());
    }
}

/// A TCP socket that lingers makes its last close wait. The connection of a refused VMM holds it, and the daemon has the last
/// descriptor of that.
fn lingers(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // It does not read.
    let other = listener.accept().unwrap().0;
    sockopt::set_socket_send_buffer_size(&lingers, 4096).unwrap();
    sockopt::set_socket_recv_buffer_size(&other, 4096).unwrap();
    sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(20))).unwrap();
    lingers.set_nonblocking(true).unwrap();
    while lingers.write(&[0; 8 << 10]).is_ok() {}
    lingers.set_nonblocking(false).unwrap();
    (lingers, other)
}

/// Threads of a keeper that close descriptors.
const THREADS: usize = 256;

#[test]
fn descriptors_whose_close_waits_delay_no_other_guest() {
    let Some(daemon) = Daemon::start("linger", "--per-process 512") else { return };
    let socket = daemon.socket();
    let connect = move || {
        let uffd = Uffd::new(Features::REMOVE).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let vmms = (0..THREADS + 44).map(|_| {
            let (lingers, other) = lingers(&listener);
            let vmm = UnixStream::connect(&socket).unwrap();
            send(&vmm, "[1]", &[uffd.as_fd(), lingers.as_fd()]);
            (vmm, other)
        });
        (vmms.collect::<Vec<_>>(), uffd)
    };
    // A connect waits if the keeper accepts none.
    let (done, connected) = channel();
    std::thread::spawn(move || done.send(connect()));
    let (vmms, _uffd) = connected.recv_timeout(Duration::from_secs(30)).expect("the keeper accepts no VMM");
    // Until each thread that closes descriptors waits, and the keeper has further ones to close.
    let closed = || vmms.iter().filter(|(vmm, _)| (&mut &*vmm).write_all(b" ").is_err()).count();
    assert!((0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        closed() >= THREADS
    }));
    std::thread::sleep(Duration::from_millis(300));
    // The next guest needs keeper and worker.
    let report = daemon.twin("--millis 100 --patience-ms 10000").report();
    assert!(report.is_right(), "{report:?}");
    drop(vmms);
}
