//! An operator's day: a new program under the daemon, a terminal that closes, a log that is not read, few descriptors,
//! VMMs that attack, and uploads that are killed.

use crate::control::listed;
use crate::daemon::{Daemon, MIB, Twin, is_offered, with_template};
use crate::operations::get;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_slat-pager");
const SLOW: &str = "--cache 0 --store-delay-ms 4";
const GOES_ON: &str = "--millis 1500 --balloon --patience-ms 20000";

/// Puts a file at the path of a program in one step, as packages do.
fn replace(program: &Path, by: &Path) {
    let next = program.with_extension("next");
    // By another process: a descriptor of this one may live in a child, and keep the file from being run.
    assert!(Command::new("cp").arg(by).arg(&next).status().unwrap().success());
    std::fs::rename(next, program).unwrap();
}

#[test]
fn guests_go_on_while_the_program_is_replaced_and_while_it_is_broken() {
    if !is_offered() {
        return;
    }
    let folder = with_template("renamed");
    let (program, broken, control) = (folder.join("pager"), folder.join("broken"), folder.join("control"));
    let is_served = |twin: &Twin| {
        let is_it = |pid: i32, state: &str| pid == twin.0.id() as i32 && state != "connects";
        listed(&control, |listed| listed.sessions.iter().any(|one| is_it(one.pid, &one.state)));
    };
    std::fs::write(&broken, "#!/bin/sh\nexit 7\n").unwrap();
    std::fs::set_permissions(&broken, PermissionsExt::from_mode(0o755)).unwrap();
    // The keeper runs a file that has no name any more.
    replace(&program, Path::new(PROGRAM));
    let file = File::open(&program).unwrap();
    replace(&program, Path::new(PROGRAM));
    let before = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = format!("{SLOW} --control {}", control.display());
    let mut daemon = Daemon::of_program(Path::new(&before), folder, &flags);
    let first = daemon.twin(GOES_ON);
    // A guest that is there all the time.
    let stays = daemon.twin("--millis 120000 --patience-ms 120000 --seed 9");
    [&first, &stays].into_iter().for_each(is_served);
    replace(&program, Path::new(PROGRAM));
    daemon.kill();
    daemon.kill_keeper();
    daemon.next_keeper();
    let second = daemon.twin(GOES_ON);
    replace(&program, &broken);
    daemon.kill_worker();
    daemon.find(|line| line.contains("exit status: 7").then_some(()));
    replace(&program, Path::new(PROGRAM));
    daemon.next_worker();
    drop(stays);
    for twin in [first, second] {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
}

#[test]
fn a_terminal_that_closes_ends_neither_keeper_nor_worker() {
    let Some(daemon) = Daemon::start("hang-up", SLOW) else { return };
    let twin = daemon.twin(GOES_ON);
    daemon.signal_all(Signal::HUP);
    // The keeper takes it for a request to reload.
    daemon.find(|line| line.contains("\"opened\"").then_some(()));
    assert!(twin.report().is_right() && daemon.twin("--millis 100").report().is_right());
    // The same worker still serves.
    daemon.drain();
    let rest = daemon.rest();
    assert!(rest.iter().all(|line| !line.contains("\"worker\"")), "{rest:?}");
}

/// Processes that are killed when this is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        _ = self.0.wait();
    }
}

/// Returns a pipe that is full.
fn full() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, b"an earlier line\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_reader_of_the_log_that_stands_still_stops_neither_guests_nor_the_next_worker() {
    if !is_offered() {
        return;
    }
    let folder = with_template("log-full");
    let (control, socket) = (folder.join("control"), folder.join("socket"));
    let (reader, writer) = full();
    let mut serve = Command::new(PROGRAM);
    serve.arg("serve").arg("--store").arg(folder.join("store")).arg("--control").arg(&control);
    serve.arg(format!("--guest={}=twin", socket.display())).stderr(writer).process_group(0);
    let keeper = Group(serve.spawn().unwrap());
    drop(serve);
    let worker = |other| listed(&control, |listed| ![0, other].contains(&listed.worker)).worker;
    let first = worker(0);
    let twin = Twin::at(&socket, MIB, GOES_ON);
    for _ in 0..100 {
        _ = UnixStream::connect(&socket).unwrap().write_all(b"[]");
    }
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::KILL).unwrap();
    let second = worker(first);
    assert!(Twin::at(&socket, MIB, "--millis 100 --patience-ms 20000").report().is_right());
    assert!(twin.report().is_right());
    let mut text = String::new();
    let reading = std::thread::spawn(move || File::from(reader).read_to_string(&mut text).map(|_| text));
    drop(keeper);
    let text = reading.join().unwrap().unwrap();
    assert!(second != first && text.starts_with("an earlier line\n"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn few_descriptors_close_some_connections_in_a_line_and_serve_the_others() {
    if !is_offered() {
        return;
    }
    let folder = with_template("descriptors");
    let shell = folder.join("limited");
    std::fs::write(&shell, format!("#!/bin/sh\nulimit -n 100\nexec {PROGRAM} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&shell, PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.join("pager");
    replace(&program, &shell);
    let mut daemon = Daemon::of_program(&program, folder, "");
    let three = [1, 2, 3].map(|seed| daemon.twin(&format!("{GOES_ON} --seed {seed}")));
    std::thread::sleep(Duration::from_millis(200));
    let more: Vec<_> = (0..9).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    daemon.find(|line| line.contains("\"closes\"").then_some(()));
    daemon.kill();
    for twin in three {
        let report = twin.report();
        assert!(report.is_right(), "{report:?}");
    }
    drop(more);
    assert!(daemon.twin("--millis 100 --patience-ms 20000").report().is_right());
}

#[test]
fn a_silent_reader_of_the_metrics_is_waited_for_a_bounded_time() {
    if !is_offered() {
        return;
    }
    let folder = with_template("metrics-silent");
    let socket = folder.join("metrics");
    let daemon = Daemon::in_folder(folder, &format!("--metrics {}", socket.display()));
    let silent = UnixStream::connect(&socket).unwrap();
    // This client asks and does not read.
    let mut deaf = UnixStream::connect(&socket).unwrap();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let other = UnixStream::connect(&socket).unwrap();
    other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(get(other, "/metrics").contains("slat_pager_guests{template=\"twin\"} 0"));
    assert!(daemon.twin("--millis 100").report().is_right());
    drop((silent, deaf));
}

#[test]
fn a_swap_folder_that_is_not_there_is_refused_at_the_start() {
    let folder = with_template("no-swap");
    let mut serve = Command::new(PROGRAM);
    serve.arg("serve").arg("--store").arg(folder.join("store")).arg("--swap").arg(folder.join("none"));
    serve.arg(format!("--guest={}=twin", folder.join("socket").display())).process_group(0);
    let mut daemon = Group(serve.stderr(std::process::Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    let ended = (0..4000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        daemon.0.try_wait().unwrap().is_some_and(|status| status.code() == Some(2))
    });
    assert!(ended, "it serves");
    daemon.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("none: there is no such folder"), "{said}");
    std::fs::remove_dir_all(folder).unwrap();
}
