//! The keeper and a worker in one process, with little room in their channel.

use super::*;
use crate::cache::Cache;
use crate::daemon::limits::MOST_OF_PROCESS;
use crate::daemon::{Monitor, Worker};
use crate::guest::Options;
use crate::wire::{Handshake, Wire, WireError};
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Time limit of what may never come.
const BOUND: Duration = Duration::from_secs(10);

/// Refuses every VMM, so that the worker has two messages for each.
struct Refuses;

impl Wire for Refuses {
    fn handshake(&self, _: &UnixStream, _: Duration) -> Result<Handshake, WireError> {
        Err(WireError::Closed(0))
    }
}

fn listen(path: &Path) -> Listen {
    Listen::image(path, "none")
}

/// A source of templates for a worker that opens none.
fn none() -> crate::daemon::FindTemplate {
    Box::new(|listen| crate::store::TemplateSource::of_image(listen.name().as_ref()))
}

fn socket(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("slat-pager-{name}-{}", std::process::id()))
}

/// Connects often, and then asks the keeper to drain. It ends.
#[test]
fn keeper_and_worker_do_not_wait_for_each_other_when_many_vmms_connect_at_once() {
    let path = socket("burst");
    let (ours, theirs) = Channel::pair().unwrap();
    for end in [ours.as_fd(), theirs.as_fd()] {
        // The least that there is: a few messages.
        set_socket_send_buffer_size(end, 1).unwrap();
    }
    let (mut signal, drain) = UnixStream::pair().unwrap();
    let mut keeper = Keeper::listen([listen(&path)], false).unwrap().drain_on(drain.into());
    (keeper.adopted, keeper.was_ready) = (Some((ours, None)), true);
    // More than the channel has room for, in the socket before the keeper looks.
    let _first: Vec<_> = (0..30).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let (ended, end) = channel();
    std::thread::spawn(move || {
        let cache = Arc::new(Cache::new(0));
        let monitor = Monitor::new(cache.clone(), None);
        let (source, options) = (none(), Options::default());
        let worker = Worker { wire: Refuses, source, cache, options, monitor };
        worker.run(theirs, |_, _, end| assert!(end.is_err())).unwrap();
    });
    std::thread::spawn(move || {
        keeper.run(|| Command::new("false"), |_| {}).unwrap();
        _ = ended.send(());
    });
    let (connected, connections) = channel();
    for _ in 0..8 {
        let (path, connected) = (path.clone(), connected.clone());
        std::thread::spawn(move || {
            for _ in 0..50 {
                _ = UnixStream::connect(&path);
            }
            _ = connected.send(());
        });
    }
    let are_through = (0..8).all(|_| connections.recv_timeout(BOUND).is_ok());
    signal.write_all(&[0]).unwrap();
    assert!(are_through && end.recv_timeout(BOUND).is_ok());
}

#[test]
fn pauses_before_a_worker_that_fails_again_and_again_grow_and_are_told() {
    let (mut signal, drain) = UnixStream::pair().unwrap();
    let mut keeper = Keeper::listen([], false).unwrap().drain_on(drain.into());
    keeper.was_ready = true;
    let (mut pauses, mut drained) = (Vec::new(), 0);
    let told = |event| match event {
        Event::Restarts(Some(status), pause) => {
            assert_eq!(status.code(), Some(1));
            pauses.push(pause.as_millis());
            if pauses.len() == 4 {
                signal.write_all(&[0]).unwrap();
            }
        }
        Event::Drains(guests) => drained += 1 + guests,
        event => panic!("{event:?}"),
    };
    keeper.run(|| Command::new("false"), told).unwrap();
    assert_eq!((pauses, drained), (vec![2, 4, 8, 16], 1));
}

#[test]
fn a_worker_that_cannot_be_started_is_tried_again_once_one_has_served() {
    let keeper = || Keeper::listen([], false).unwrap();
    let none = || Command::new("/nonexistent/slat-pager");
    assert_eq!(keeper().run(none, |_| {}).unwrap_err().kind(), io::ErrorKind::NotFound);
    let (mut signal, leave) = UnixStream::pair().unwrap();
    let mut keeper = keeper().leave_on(leave.into());
    keeper.was_ready = true;
    let told = |event| {
        assert!(matches!(event, Event::Restarts(None, _)), "{event:?}");
        signal.write_all(&[0]).unwrap();
    };
    assert_eq!(keeper.run(none, told).unwrap_err().kind(), io::ErrorKind::Interrupted);
}

#[test]
fn one_process_gets_a_part_of_the_connections_and_one_socket_leaves_some_to_others() {
    let mut keeper =
        Keeper::listen([socket("room-a"), socket("room-b")].iter().map(|path| listen(path)), false).unwrap();
    let kept = |socket, process| {
        let connection = UnixStream::pair().unwrap().0.into();
        let process = Pid::from_raw(process);
        let (files, version, since, waiting, reason) = (Vec::new(), None, 0, 0, None);
        Kept { socket, connection, process, files, version, since, waiting, reason }
    };
    for number in 0..MOST_OF_PROCESS {
        assert!(keeper.has_room(0, Pid::from_raw(7)));
        keeper.kept.insert(number as u64, kept(0, 7));
    }
    assert!(!keeper.has_room(0, Pid::from_raw(7)) && !keeper.has_room(1, Pid::from_raw(7)));
    assert!(keeper.has_room(0, Pid::from_raw(8)) && keeper.has_room(0, None));
    // Other processes take all that the socket may have.
    let mut number = MOST_OF_PROCESS;
    while keeper.has_room(0, None) {
        keeper.kept.insert(number as u64, kept(0, 1000 + number as i32));
        number += 1;
        if number > 400 {
            // The limit of descriptors is high here.
            break;
        }
    }
    assert!(keeper.has_room(1, Pid::from_raw(8)));
    keeper.begin_to_drain(&mut |_| {});
}

#[test]
fn a_keeper_refuses_live_sockets_and_removes_its_own_alone() {
    let (path, other) = (socket("replaced"), socket("replaced-other"));
    let mut first = Keeper::listen([listen(&path)], false).unwrap();
    let error = Keeper::listen([listen(&other), listen(&path)], false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(!other.exists(), "it takes all or nothing");
    let mut second = Keeper::listen([listen(&path)], true).unwrap();
    assert_eq!((first.taken_over, second.taken_over), (0, 1));
    first.begin_to_drain(&mut |_| {});
    assert!(UnixStream::connect(&path).is_ok(), "it belongs to the second one");
    second.begin_to_drain(&mut |_| {});
    assert!(!path.exists());
    // No process listens on a socket that was left behind.
    drop(Keeper::listen([listen(&path)], false).unwrap());
    assert_eq!(Keeper::listen([listen(&path)], false).unwrap().taken_over, 0);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn two_keepers_share_a_control_path_and_each_has_its_own_name() {
    let path = socket("control");
    let keeper = || Keeper::listen([], false).unwrap();
    let first = keeper().control_at(&path, false).unwrap();
    let own = super::own_name(&path, u64::from(std::process::id()));
    assert_eq!(crate::daemon::daemons(&path), std::slice::from_ref(&own));
    let error = keeper().control_at(&path, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    drop(first);
    assert!(!path.exists() && !own.exists());
}
