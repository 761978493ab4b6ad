//! The daemon is killed while guests run: nothing is lost, and none stands still.

use crate::daemon::{Daemon, IMAGE, MIB, Twin, library};
use slat_pager::twin::Image;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// Faults are under way at any instant.
const SLOW: &str = "--cache 0 --store-delay-ms 4";

fn kill(daemon: &mut Daemon, times: usize) {
    for _ in 0..times {
        std::thread::sleep(Duration::from_millis(120));
        daemon.kill();
    }
}

#[test]
fn five_kills_are_not_noticed_by_guests() {
    let Some(mut daemon) = Daemon::start("kills", SLOW) else { return };
    let twins =
        [1, 2].map(|seed| daemon.twin(&format!("--millis 1500 --balloon --seed {seed} --patience-ms 10000")));
    kill(&mut daemon, 5);
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
    // Those that served after the last kill.
    assert!([daemon.stats(), daemon.stats()].iter().all(|stats| stats.filled > 0));
}

#[test]
fn without_its_keeper_the_daemon_serves_on_and_ends_with_its_last_guest() {
    let Some(mut daemon) = Daemon::start("keeper", SLOW) else { return };
    let twin = daemon.twin("--millis 400 --balloon");
    std::thread::sleep(Duration::from_millis(150));
    daemon.kill_keeper();
    assert!(std::os::unix::net::UnixStream::connect(daemon.socket()).is_err(), "none listens");
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
    let process = format!("/proc/{}/cmdline", daemon.worker);
    // One that has ended and is waited for by none has no words.
    let is_there =
        || std::fs::read(&process).is_ok_and(|words| words.windows(6).any(|word| word == b"worker"));
    let ended = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        !is_there()
    });
    assert!(ended);
}

#[test]
fn shared_memory_survives_kills_too() {
    let Some(mut daemon) = Daemon::start("kills-shared", SLOW) else { return };
    let twin = daemon.twin("--millis 800 --balloon --shared --patience-ms 10000");
    kill(&mut daemon, 3);
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
}

/// While a guest runs, its template is replaced by another image, chunks are collected, and the daemon is killed.
fn is_replaced(name: &str, flags: &str) -> Option<slat_pager::twin::Report> {
    let mut daemon = Daemon::start(name, &format!("{SLOW} --window 2 {flags}"))?;
    let twin = daemon.twin("--millis 600 --balloon --patience-ms 10000");
    std::thread::sleep(Duration::from_millis(100));
    let other = Image { seed: 77, ..IMAGE };
    let library = library(&daemon.folder);
    library.snapshot("twin", other.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    assert_eq!(library.gc(slat_pager::PATIENCE).unwrap().removed, 0, "it is being served");
    kill(&mut daemon, 2);
    Some(twin.report())
}

#[test]
fn a_guest_whose_template_is_replaced_goes_on_with_its_own() {
    let Some(report) = is_replaced("replaced", "") else { return };
    assert!(report.is_right(), "{report:?}");
}

#[test]
fn a_daemon_that_serves_the_new_template_to_an_old_guest_is_found() {
    let Some(report) = is_replaced("replaced-wrong", "--sabotage version") else { return };
    assert!(report.wrong > 0);
}

#[test]
fn an_empty_journal_after_a_kill_is_found() {
    let Some(mut daemon) = Daemon::start("journal", &format!("{SLOW} --sabotage journal")) else { return };
    let twin = daemon.twin("--millis 600 --balloon --patience-ms 10000");
    kill(&mut daemon, 2);
    assert!(twin.report().wrong > 0);
}

#[test]
fn guests_that_are_not_woken_after_a_kill_stand_still() {
    let flags = "--cache 0 --store-delay-ms 40 --window 1 --sabotage wake";
    let Some(mut daemon) = Daemon::start("wake", flags) else { return };
    let twin = daemon.twin("--millis 3000 --patience-ms 1000");
    kill(&mut daemon, 3);
    assert!(twin.report().frozen);
}

/// While a guest runs, the store loses the manifest of its template, and the daemon is killed. The next one cannot serve the guest.
fn is_lost(name: &str, flags: &str) -> Option<(Daemon, Twin)> {
    let mut daemon = Daemon::start(name, &format!("{SLOW} --window 2 {flags}"))?;
    let twin = daemon.twin("--millis 1000 --patience-ms 1000");
    std::thread::sleep(Duration::from_millis(100));
    let library = library(&daemon.folder);
    let lost = library.open("twin").unwrap().version().to_owned();
    library.snapshot("twin", Image { seed: 77, ..IMAGE }.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    std::fs::remove_file(daemon.folder.join("store/manifests").join(lost)).unwrap();
    daemon.kill();
    Some((daemon, twin))
}

#[test]
fn a_guest_that_cannot_be_served_any_more_is_killed_where_that_is_the_policy() {
    let Some((daemon, twin)) = is_lost("lost-kill", "--on-failure kill") else { return };
    assert_eq!(twin.end().0.signal(), Some(libc::SIGKILL));
    daemon.find(|line| line.contains("its VMM is killed").then_some(()));
    // A process that connects and is no guest yet is not.
    drop(std::os::unix::net::UnixStream::connect(daemon.socket()).unwrap());
    assert!(daemon.find(|line| line.contains("refused").then(|| !line.contains("killed"))));
}

#[test]
fn a_guest_that_cannot_be_served_any_more_stands_still_where_that_is_the_policy() {
    let Some((daemon, twin)) = is_lost("lost-wait", "") else { return };
    let said = daemon.find(|line| line.contains("refused").then(|| line.to_owned()));
    assert!(said.contains("manifests/") && twin.report().frozen, "{said}");
}
