//! The daemon is killed while guests run: nothing is lost, and none stands still.

use crate::daemon::Daemon;
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
