//! The control socket: sockets, sessions and versions of a daemon that runs.

use crate::daemon::{Daemon, IMAGE, MIB, Twin, is_offered, library, with_template};
use rustix::process::Signal;
use slat_pager::twin::Image;
use slat_pager::{Listed, Listen, Request, ask, list};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const GOES_ON: &str = "--millis 1500 --balloon --patience-ms 10000";
/// A guest until it is dropped.
const STAYS: &str = "--millis 120000 --patience-ms 120000";
const SLOW: &str = "--cache 0 --store-delay-ms 4";

fn control(folder: &Path) -> PathBuf {
    folder.join("control")
}

/// Starts a daemon with a control socket.
fn start(name: &str, flags: &str) -> Option<Daemon> {
    is_offered().then(|| {
        let folder = with_template(name);
        let flags = format!("--control {} {flags}", control(&folder).display());
        Daemon::in_folder(folder, &flags)
    })
}

/// Runs `ctl`. Returns its output, or its error.
pub fn ctl(daemon: &Daemon, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
    let output =
        command.args(["ctl", "--control"]).arg(control(&daemon.folder)).args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Returns the state of the daemon as soon as it is as expected.
pub fn listed(socket: &Path, is_it: impl Fn(&Listed) -> bool) -> Listed {
    let mut last = None;
    for _ in 0..6000 {
        last = Some(list(socket));
        if let Some(Ok(listed)) = &last
            && is_it(listed)
        {
            return listed.clone();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{last:?}")
}

fn runs(listed: &Listed, pid: u32) -> bool {
    listed.sessions.iter().any(|session| session.pid == pid as i32 && session.state != "connects")
}

fn replace(folder: &Path, seed: u64) -> String {
    let library = library(folder);
    library.snapshot("twin", Image { seed, ..IMAGE }.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    library.open("twin").unwrap().version().to_owned()
}

#[test]
fn sockets_are_added_and_removed_while_the_daemon_runs_over_every_kill() {
    let Some(mut daemon) = start("control-add", SLOW) else { return };
    let added = daemon.folder.join("added");
    let words = format!("{}=twin", added.display());
    let missing = format!("{}=none", added.display());
    let error = ctl(&daemon, &["add", &missing]).unwrap_err();
    assert!(error.contains("templates/none is not in the store") && !added.exists(), "{error}");
    ctl(&daemon, &["add", &words, "--mode", "660"]).unwrap();
    assert_eq!(std::fs::metadata(&added).unwrap().permissions().mode() & 0o777, 0o660);
    let error = ctl(&daemon, &["add", &words]).unwrap_err();
    assert!(error.contains("listens there already"), "{error}");
    let guest = Twin::at(&added, MIB, STAYS);
    listed(&control(&daemon.folder), |listed| runs(listed, guest.0.id()));
    daemon.kill();
    daemon.kill_keeper();
    daemon.next_keeper();
    daemon.kill();
    assert!(Twin::at(&added, MIB, "--millis 100").report().is_right());
    let state = listed(&control(&daemon.folder), |listed| runs(listed, guest.0.id()));
    assert_eq!(state.sockets.len(), 2);
    assert!(state.sockets.iter().all(|socket| socket.is_open && socket.template == "twin"), "{state:?}");
    ctl(&daemon, &["remove", added.to_str().unwrap()]).unwrap();
    assert!(!added.exists() && ctl(&daemon, &["remove", added.to_str().unwrap()]).is_err());
    // The guest goes on, and its socket is forgotten with it.
    daemon.kill();
    let state = listed(&control(&daemon.folder), |listed| runs(listed, guest.0.id()));
    assert!(!state.sockets.iter().find(|socket| socket.socket == added).unwrap().is_open);
    drop(guest);
    listed(&control(&daemon.folder), |listed| listed.sockets.len() == 1 && listed.sessions.is_empty());
    let said = ctl(&daemon, &["list"]).unwrap();
    assert!(said.contains("serves") && said.contains("open  twin"), "{said}");
    assert!(ctl(&daemon, &["drain"]).unwrap().contains("0 guests"));
    daemon.rest();
    assert!(!control(&daemon.folder).exists() && slat_pager::daemons(&control(&daemon.folder)).is_empty());
}

#[test]
fn a_guest_keeps_the_version_with_which_it_connected() {
    let Some(mut daemon) = start("control-version", SLOW) else { return };
    let socket = control(&daemon.folder);
    let old = library(&daemon.folder).open("twin").unwrap().version().to_owned();
    let guest = daemon.twin(GOES_ON);
    listed(&socket, |listed| runs(listed, guest.0.id()));
    let new = replace(&daemon.folder, 77);
    // A worker that is killed brings no other version.
    daemon.kill();
    assert!(daemon.twin("--millis 100").report().is_right());
    // A session of an exact version, which a reload does not change.
    let exact = daemon.folder.join("exact");
    let words = format!("{}=twin", exact.display());
    ctl(&daemon, &["add", &words, "--version", &old]).unwrap();
    assert!(ctl(&daemon, &["reload", "other"]).unwrap_err().contains("no socket serves other"));
    ctl(&daemon, &["reload", "twin"]).unwrap();
    assert!(daemon.twin("--millis 100 --image-seed 77").report().is_right());
    assert!(Twin::at(&exact, MIB, "--millis 100").report().is_right());
    daemon.kill();
    assert!(daemon.twin("--millis 100 --image-seed 77").report().is_right());
    assert!(Twin::at(&exact, MIB, "--millis 100").report().is_right());
    let state = listed(&socket, |_| true);
    let version = |path: &Path| {
        let socket = state.sockets.iter().find(|socket| socket.socket == path).unwrap();
        socket.version.clone().unwrap()
    };
    assert_eq!([version(&daemon.socket()), version(&exact)], [new, old]);
    let report = guest.report();
    assert!(report.is_right(), "{report:?}");
    // A version that is damaged is refused in words.
    let damaged = replace(&daemon.folder, 78);
    std::fs::write(daemon.folder.join("store/manifests").join(damaged), "other").unwrap();
    assert!(ctl(&daemon, &["reload"]).unwrap_err().contains("is damaged"));
    assert!(daemon.twin("--millis 100 --image-seed 77").report().is_right());
}

#[test]
fn a_session_serves_one_guest_and_a_limit_holds() {
    let Some(daemon) = start("control-session", "") else { return };
    let (once, most) = (daemon.folder.join("once"), daemon.folder.join("most"));
    ctl(&daemon, &["add", &format!("{}=twin", once.display()), "--once"]).unwrap();
    ctl(&daemon, &["add", &format!("{}=twin", most.display()), "--most", "1"]).unwrap();
    // A process that sends no handshake does not use the session up.
    drop(UnixStream::connect(&once).unwrap());
    let guest = Twin::at(&once, MIB, STAYS);
    listed(&control(&daemon.folder), |listed| runs(listed, guest.0.id()));
    assert!(!once.exists() && UnixStream::connect(&once).is_err());
    let first = Twin::at(&most, MIB, STAYS);
    listed(&control(&daemon.folder), |listed| runs(listed, first.0.id()));
    let mut second = UnixStream::connect(&most).unwrap();
    daemon.find(|line| line.contains("\"closes\"").then_some(()));
    assert!((0..1000).any(|_| second.write_all(b" ").is_err() || {
        std::thread::sleep(Duration::from_millis(5));
        false
    }));
    drop(first);
    listed(&control(&daemon.folder), |listed| listed.sessions.len() == 1);
    assert!(Twin::at(&most, MIB, "--millis 100").report().is_right());
}

#[test]
fn a_guest_that_waits_is_listed_with_the_reason() {
    let Some(daemon) = start("control-waits", "") else { return };
    for chunk in std::fs::read_dir(daemon.folder.join("store/chunks")).unwrap() {
        std::fs::write(chunk.unwrap().path(), "other").unwrap();
    }
    let guest = daemon.twin("--millis 100 --patience-ms 60000");
    let state =
        listed(&control(&daemon.folder), |listed| listed.sessions.iter().any(|one| one.state == "waits"));
    let session = &state.sessions[0];
    assert_eq!(session.pid, guest.0.id() as i32);
    assert!(session.waiting > 0 && session.reason.as_ref().unwrap().contains("is damaged"), "{session:?}");
}

#[test]
fn operators_that_send_rubbish_or_nothing_delay_no_other() {
    let Some(mut daemon) = start("control-rubbish", "") else { return };
    let socket = control(&daemon.folder);
    let silent: Vec<_> = (0..40).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let mut long = UnixStream::connect(&socket).unwrap();
    long.write_all(&vec![b' '; 8 << 10]).unwrap();
    let mut answers = BufReader::new(&long).lines();
    assert!(answers.next().unwrap().unwrap().contains("at most 4096 bytes"));
    // Several requests at once, and one in pieces.
    let mut pieces = UnixStream::connect(&socket).unwrap();
    pieces.write_all(b"{\"do\":\"list\"}\nno\n{\"do\":").unwrap();
    pieces.write_all(b"\"yield\"}\n").unwrap();
    let answers: Vec<_> = BufReader::new(&pieces).lines().take(3).map(Result::unwrap).collect();
    let found: Vec<_> = ["\"ok\":true", "not understood", "takes further guests"].into();
    assert!(answers.iter().zip(found).all(|(answer, found)| answer.contains(found)), "{answers:?}");
    let words = Request::Add(Listen::template("relative", "twin"));
    assert!(ask(&socket, &words, LIMIT).unwrap_err().to_string().contains("from the root"));
    drop(silent);
    assert!(daemon.twin("--millis 100").report().is_right());
    daemon.stats();
    // An operator who has sent all, and goes.
    let mut drain = UnixStream::connect(&socket).unwrap();
    drain.write_all(b"{\"do\":\"drain\"}\n").unwrap();
    drain.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = std::io::read_to_string(&drain).unwrap();
    assert!(answer.contains("\"ok\":true"), "{answer}");
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn a_refused_vmm_is_killed_under_the_policy_kill() {
    let Some(daemon) = start("control-refused", "--on-failure kill") else { return };
    // Its memory does not fit the template.
    let twin = Twin::at(&daemon.socket(), 2 * MIB, "--millis 1000 --patience-ms 20000");
    let pid = format!("\"pid\":{},", twin.0.id());
    let said = daemon.find(|line| (line.contains("refused") && line.contains(&pid)).then(|| line.to_owned()));
    assert!(said.contains("beyond the image") && said.contains("its VMM is killed"), "{said}");
    assert_eq!(twin.end().0.signal(), Some(Signal::KILL.as_raw()));
    // A process that sent no handshake is left alone: this one.
    drop(UnixStream::connect(daemon.socket()).unwrap());
    assert!(daemon.find(|line| line.contains("refused").then(|| !line.contains("killed"))));
}

#[test]
fn a_keeper_that_followed_a_killed_one_is_found_by_the_number_that_list_shows() {
    let Some(daemon) = start("control-next", "") else { return };
    let unknown = ctl(&daemon, &["--daemon", "1", "drain"]).unwrap_err();
    assert!(unknown.contains("control.1: "), "{unknown}");
    daemon.kill_keeper();
    let keeper = daemon.next_keeper().as_raw_nonzero().get();
    let shown = listed(&control(&daemon.folder), |listed| listed.keeper == keeper as u32);
    let number = shown.keeper.to_string();
    assert!(ctl(&daemon, &["--daemon", &number, "list"]).unwrap().starts_with(&format!("daemon {number}: ")));
    ctl(&daemon, &["--daemon", &number, "drain"]).unwrap();
    daemon.rest();
}

#[test]
fn a_relative_image_is_that_of_the_folder_of_ctl() {
    let Some(daemon) = start("control-relative", "") else { return };
    crate::daemon::image(&daemon.folder);
    let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
    command.current_dir(&daemon.folder).args(["ctl", "--control", "control"]);
    let added = command.args(["add", "--image", "other=image"]).output().unwrap();
    assert!(added.status.success(), "{added:?}");
    assert!(Twin::at(&daemon.folder.join("other"), MIB, "--millis 100").report().is_right());
}

#[test]
fn an_error_names_the_value_that_is_wrong_and_those_that_are_allowed() {
    let folder = with_template("wrong-values");
    let store = format!("--store={}", folder.join("store").display());
    let guest = format!("--guest={}=twin", folder.join("socket").display());
    std::fs::write(folder.join("empty"), "").unwrap();
    let long = "a".repeat(129);
    let patch = format!("--at=0={}", folder.join("empty").display());
    let cases: [(&[&str], &str); 8] = [
        (&["rm", &long, &store], "1 to 128"),
        (&["ls", "--store="], "a value is required for '--store"),
        (&["overlay", "twin", "other", &store, &patch], "the patch at 0x0 is empty"),
        (&["serve", &guest, &store, "--threads=0"], "threads is 0: 1 to 16"),
        (&["serve", &guest, &store, "--window=3"], "window is 3 pages: a power of two"),
        (&["serve", &guest, &store, "--per-process=0"], "invalid value '0' for '--per-process"),
        (&["serve", &guest, &store, "--metrics=127.0.0.1"], "127.0.0.1: write ADDRESS:PORT"),
        (&["ctl", "--control=x", "add", "a=b", "--mode=999"], "\"999\" is no octal number"),
    ];
    for (words, expected) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_slat-pager")).args(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{words:?}: {said}");
    }
    _ = std::fs::remove_dir_all(folder);
}
