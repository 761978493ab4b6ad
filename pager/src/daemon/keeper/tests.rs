//! The keeper and a worker in one process, with little room in their channel.

use super::*;
use crate::cache::Cache;
use crate::daemon::limits::MOST_OF_PROCESS;
use crate::daemon::outbox::{Letter, Outbox, Process, Running};
use crate::daemon::{Monitor, Worker};
use crate::guest::Options;
use crate::wire::{Handshake, Wire, WireError};
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

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
        Kept { process: Pid::from_raw(process), ..Kept::new(socket, connection, None, 0) }
    };
    for number in 0..MOST_OF_PROCESS {
        assert_eq!(keeper.limit(0, Pid::from_raw(7)), None);
        keeper.kept.insert(number as u64, kept(0, 7));
    }
    let seven = [0, 1].map(|socket| keeper.limit(socket, Pid::from_raw(7)));
    assert_eq!(seven, [Some(Limit::Process); 2]);
    assert_eq!([Pid::from_raw(8), None].map(|process| keeper.limit(0, process)), [None; 2]);
    // Other processes take all that the socket may have.
    let mut number = MOST_OF_PROCESS;
    while keeper.limit(0, None).is_none() {
        keeper.kept.insert(number as u64, kept(0, 1000 + number as i32));
        number += 1;
        if number > 400 {
            // The limit of descriptors is high here.
            break;
        }
    }
    assert_eq!(keeper.limit(1, Pid::from_raw(8)), None);
    keeper.shut_all(&mut |_| {});
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
    first.shut_all(&mut |_| {});
    assert!(UnixStream::connect(&path).is_ok(), "it belongs to the second one");
    second.shut_all(&mut |_| {});
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

/// Runs a worker of this process, which refuses every VMM. Returns the numbers of the guests that it refuses, and why.
fn refusing(theirs: OwnedFd) -> Receiver<(u64, String)> {
    let (refused, refusals) = channel();
    std::thread::spawn(move || {
        let cache = Arc::new(Cache::new(0));
        let monitor = Monitor::new(cache.clone(), None);
        let worker = Worker { wire: Refuses, source: none(), cache, options: Options::default(), monitor };
        let refused = std::sync::Mutex::new(refused);
        let ended = |number, _, end: Result<_, crate::daemon::WorkerError>| {
            _ = refused.lock().unwrap().send((number, end.unwrap_err().to_string()));
        };
        worker.run(theirs, ended).unwrap();
    });
    refusals
}

#[test]
fn vmms_in_the_queue_of_a_socket_that_closes_are_accepted() {
    let path = socket("queue");
    let (ours, theirs) = Channel::pair().unwrap();
    let (mut signal, drain) = UnixStream::pair().unwrap();
    let mut keeper = Keeper::listen([listen(&path)], false).unwrap().drain_on(drain.into());
    (keeper.adopted, keeper.was_ready) = (Some((ours, None)), true);
    let vmms: Vec<_> = (0..3).map(|_| UnixStream::connect(&path).unwrap()).collect();
    keeper.shut(0);
    signal.write_all(&[0]).unwrap();
    let refusals = refusing(theirs);
    let (ended, end) = channel();
    std::thread::spawn(move || _ = ended.send(keeper.run(|| Command::new("false"), |_| {})));
    let mut refused: Vec<_> = (0..3).map(|_| refusals.recv_timeout(BOUND).unwrap().0).collect();
    refused.sort_unstable();
    assert_eq!(refused, [0, 1, 2]);
    end.recv_timeout(BOUND).unwrap().unwrap();
    assert!(!path.exists());
    drop(vmms);
}

#[test]
fn the_vmms_that_a_daemon_leaves_in_its_sockets_are_told() {
    let path = socket("left");
    let mut keeper = Keeper::listen([listen(&path)], false).unwrap();
    let _vmms = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
    let mut told = Vec::new();
    keeper.shut_all(&mut |event| told.push(event));
    keeper.refuse_queues(&mut |event| told.push(event));
    // The first one is told at once, and the others later.
    let refused = told.iter().filter_map(|event| match event {
        Event::Closes(count, process, Limit::Ends) => Some((*count, *process)),
        _ => None,
    });
    assert_eq!(refused.collect::<Vec<_>>(), [(1, std::process::id() as i32); 2]);
}

#[test]
fn a_guest_whose_journal_does_not_arrive_is_refused() {
    let (ours, theirs) = Channel::pair().unwrap();
    let refusals = refusing(theirs);
    let listen = Some(Request::Add(listen(&socket("journal"))));
    let socket = Take { what: TakeKind::Socket, request: listen, ..Take::default() };
    ours.send(&socket, &[]).unwrap();
    let connection = || UnixStream::pair().unwrap().0;
    for has_files in [false, true] {
        let take = Take { connection: u64::from(has_files), has_files, ..Take::default() };
        ours.send(&take, &[connection().as_fd()]).unwrap();
    }
    let mut said: Vec<_> = (0..2).map(|_| refusals.recv_timeout(BOUND).unwrap()).collect();
    said.sort();
    // The control has none.
    assert!(said[0].1.contains("was closed") && said[1].1.contains("descriptors came"), "{said:?}");
}

#[test]
fn the_next_keeper_has_the_sockets_whose_paths_lead_to_it_and_removes_no_other() {
    let [kept, replaced, session] = ["next-kept", "next-replaced", "next-session"].map(socket);
    let (worker, theirs) = Channel::pair().unwrap();
    let send = |number, path: &Path, is_open: bool| {
        let (listener, place) = bind(path, false).unwrap();
        let request = Some(Request::Add(listen(path)));
        let place = place.identity();
        let take = Take { what: TakeKind::Socket, socket: number, request, place, ..Take::default() };
        let fds: Vec<_> = is_open.then_some(listener.as_fd()).into_iter().collect();
        worker.send(&take, &fds).unwrap();
    };
    send(0, &kept, true);
    send(1, &replaced, true);
    send(2, &session, false);
    worker.send(&Take { what: TakeKind::All, ..Take::default() }, &[]).unwrap();
    let (_other, place) = bind(&replaced, true).unwrap();
    let mut keeper = Keeper::of_worker(theirs).unwrap();
    let open: Vec<_> =
        keeper.sockets.values().map(|socket| (socket.is_open(), socket.stage == Stage::Closes)).collect();
    assert_eq!(open, [(true, false), (false, true), (false, false)]);
    assert!(!session.exists(), "no process listens there");
    keeper.shut_all(&mut |_| {});
    assert!(!kept.exists() && UnixStream::connect(&replaced).is_ok(), "it belongs to another process");
    place.remove();
}

#[test]
fn the_next_worker_learns_that_the_daemon_drains() {
    let mut keeper = Keeper::listen([], false).unwrap();
    let has = |keeper: &mut Keeper| {
        let mut worker = keeper.next_worker(&|| Command::new("true")).unwrap();
        worker.process.end(None).unwrap();
        worker.outbox.has(Letter::Drains)
    };
    assert!(!has(&mut keeper));
    keeper.shut_all(&mut |_| {});
    assert!(has(&mut keeper));
}

/// A keeper and its end of a channel with little room, which nothing reads.
fn without_reader(path: &Path) -> (Keeper, Running, Channel) {
    let (channel, theirs) = Channel::pair().unwrap();
    set_socket_send_buffer_size(&channel, 1).unwrap();
    let keeper = Keeper::listen([listen(path)], false).unwrap();
    let running =
        Running { channel, process: Process::Other(None), outbox: Outbox::default(), is_ready: true };
    (keeper, running, Channel::new(theirs))
}

#[test]
fn a_keeper_holds_one_connection_that_it_has_not_sent() {
    let path = socket("ahead");
    let (mut keeper, mut running, theirs) = without_reader(&path);
    let _vmms: Vec<_> = (0..60).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert!(!keeper.accept(0, &mut running, &mut |_| {}), "some are left");
    let sent = std::iter::from_fn(|| theirs.receive::<Take>(false).ok()).count();
    assert_eq!(keeper.kept.len(), sent + 1);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_operator_is_answered_when_the_worker_was_sent_the_change() {
    let (path, control) = (socket("answer"), socket("answer-control"));
    let (keeper, running, theirs) = without_reader(&path);
    let (_signal, leave) = UnixStream::pair().unwrap();
    let mut keeper = keeper.control_at(&control, false).unwrap().leave_on(leave.into());
    (keeper.adopted, keeper.was_ready) = (Some((running.channel, None)), true);
    let _vmms: Vec<_> = (0..60).map(|_| UnixStream::connect(&path).unwrap()).collect();
    std::thread::spawn(move || keeper.run(|| Command::new("false"), |_| {}));
    let ask = |patience| crate::daemon::ask(&control, &Request::Drain, Some(patience));
    let error = ask(Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    let reading = std::thread::spawn(move || {
        while theirs.receive::<Take>(true).unwrap().is_some_and(|(take, _)| take.what != TakeKind::Drains) {}
        theirs
    });
    ask(BOUND).unwrap();
    reading.join().unwrap();
}
