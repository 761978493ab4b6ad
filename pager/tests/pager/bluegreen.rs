//! Two daemons at the same paths: they hand over or refuse, and neither takes what the other one has.

use crate::control::listed;
use crate::daemon::{Daemon, MIB, Twin, is_offered, with_template};
use crate::operations::try_get;
use rustix::process::{Pid, Signal, kill_process_group};
use slat_pager::{checkpoint, daemons, list};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const STAYS: &str = "--millis 120000 --patience-ms 120000";

fn flags(folder: &Path) -> String {
    format!("--control {0}/control --metrics {0}/metrics", folder.display())
}

/// Returns the line of the metrics that says how many guests a daemon serves.
fn of_twin(guests: usize) -> String {
    format!("slat_pager_guests{{template=\"twin\"}} {guests}\n")
}

/// Returns the metrics as soon as they contain this text.
fn metrics(folder: &Path, text: &str) -> String {
    let mut last = String::new();
    for _ in 0..3000 {
        let stream = UnixStream::connect(folder.join("metrics"));
        if let Ok(answer) = stream.and_then(|stream| try_get(stream, "/metrics")) {
            last = answer;
            if last.contains(text) {
                return last;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no {text} in {last}")
}

/// Runs a daemon that is to end. Ends it otherwise.
fn refused(mut daemon: Command) -> (Option<i32>, String) {
    let mut daemon = daemon.process_group(0).stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..3000 {
        if let Some(status) = daemon.try_wait().unwrap() {
            return (status.code(), std::io::read_to_string(daemon.stderr.take().unwrap()).unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    _ = kill_process_group(Pid::from_child(&daemon), Signal::KILL);
    _ = daemon.wait();
    (None, "it serves".into())
}

fn worker_of(folder: &Path) -> u32 {
    list(&folder.join("control")).map_or(0, |listed| listed.worker)
}

#[test]
fn a_second_daemon_is_refused_and_takes_over_when_it_is_asked_to() {
    if !is_offered() {
        return;
    }
    let folder = with_template("bluegreen");
    let mut blue = Daemon::in_folder(folder.clone(), &flags(&folder));
    let guest = blue.twin(STAYS);
    listed(&folder.join("control"), |listed| listed.sessions.iter().any(|session| session.state == "runs"));
    // Each of the three sockets is refused, and stays the first daemon's.
    let serve = |socket: &str, control: &str, metrics: &str| {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        serve.arg("serve").arg("--store").arg(folder.join("store"));
        serve.arg(format!("--guest={}=twin", folder.join(socket).display()));
        serve.arg("--control").arg(folder.join(control)).arg("--metrics").arg(folder.join(metrics));
        serve
    };
    for words in [["socket", "other", "none"], ["other", "control", "none"]] {
        let (code, said) = refused(serve(words[0], words[1], words[2]));
        assert!(code == Some(2) && said.contains("another daemon listens here"), "{said}");
        assert!(said.contains("--replace"), "{said}");
    }
    assert_eq!(worker_of(&folder), blue.worker as u32);
    assert!(blue.twin("--millis 100").report().is_right());

    let green = Daemon::in_folder(folder.clone(), &format!("{} --replace", flags(&folder)));
    assert_eq!(worker_of(&folder), green.worker as u32);
    assert_eq!(daemons(&folder.join("control")).len(), 2);
    // The metrics are the first daemon's until it drains: with the second one's guests.
    assert!(metrics(&folder, "slat_pager_other_guests{keeper=").contains(&of_twin(1)));
    blue.drain();
    blue.find(|line| line.contains("drains").then_some(()));
    let text = metrics(&folder, &of_twin(0));
    assert!(
        text.lines().any(|line| line.starts_with("slat_pager_other_guests{") && line.ends_with("} 1")),
        "{text}"
    );
    assert!(Twin::at(&folder.join("socket"), MIB, "--millis 100").report().is_right());
    drop(guest);
    assert_eq!(blue.end().code(), Some(0));
    assert!(
        folder.join("socket").exists() && folder.join("metrics").exists() && folder.join("control").exists()
    );
    assert!(Twin::at(&folder.join("socket"), MIB, "--millis 100").report().is_right());
    assert_eq!(daemons(&folder.join("control")).len(), 1);
}

#[test]
fn guests_of_a_worker_whose_keeper_was_killed_are_seen_by_the_next_daemon() {
    if !is_offered() {
        return;
    }
    let folder = with_template("orphans");
    let store = folder.join("store").display().to_string();
    let supervised = [("NOTIFY_SOCKET", "@slat-pager-none")];
    let first = Daemon::of_store(folder.clone(), &store, &flags(&folder), &supervised);
    let guest = first.twin(STAYS);
    let control = folder.join("control");
    listed(&control, |listed| listed.sessions.iter().any(|session| session.state == "runs"));
    first.kill_keeper();
    let keeper = first.next_keeper();
    // systemd starts the next one with the same words.
    let second = Daemon::of_store(folder.clone(), &store, &flags(&folder), &supervised);
    assert_eq!(worker_of(&folder), second.worker as u32);
    let orphan = folder.join(format!("control.{}", keeper.as_raw_nonzero()));
    // The keeper binds its own name after it has told that it began.
    listed(&control, |_| daemons(&control).contains(&orphan));
    let state = listed(&orphan, |_| true);
    assert!(state.drains && state.sessions.len() == 1, "{state:?}");
    let other = format!("slat_pager_other_guests{{keeper=\"{}\"}} 1", keeper.as_raw_nonzero());
    metrics(&folder, &other);
    let snapshot = |pid| checkpoint(&control, pid, "orphan", |_| {});
    snapshot(guest.0.id() as i32).unwrap();
    let error = snapshot(std::process::id() as i32).unwrap_err().to_string();
    assert!(error.contains("is no guest of this pager"), "{error}");
    drop(guest);
    first.rest();
    listed(&control, |_| daemons(&control).len() == 1);
}

#[test]
fn a_socket_that_is_named_twice_is_refused_and_leaves_no_file() {
    if !is_offered() {
        return;
    }
    let folder = with_template("twice");
    let serve = |more: &[&str]| {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        serve.arg("serve").arg("--store").arg(folder.join("store")).args(more);
        let guest = format!("--guest={}=twin", folder.join("socket").display());
        serve.args([&guest, &guest]);
        serve
    };
    for more in [&[][..], &["--replace"]] {
        let (code, said) = refused(serve(more));
        assert!(code == Some(2) && said.contains("socket: it is named twice"), "{said}");
        assert!(!folder.join("socket").exists());
    }
    _ = std::fs::remove_dir_all(folder);
}
