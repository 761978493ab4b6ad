//! Kills the daemon while guests run: no page is lost, and no guest stands still.

use crate::daemon::{Daemon, IMAGE, MIB, Twin, is_offered, library, with_template};
use crate::operations::{get, value};
use rustix::process::{Signal, kill_process};
use slat_pager::twin::Image;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
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
    // Counters after the last kill.
    assert!([daemon.stats(), daemon.stats()].iter().all(|stats| stats.filled > 0));
}

/// A daemon, and a guest that it serves until this is dropped.
fn with_guest(name: &str, flags: &str, environment: &[(&str, &str)]) -> Option<(Daemon, Twin)> {
    if !is_offered() {
        return None;
    }
    let folder = with_template(name);
    let store = folder.join("store").display().to_string();
    let flags = format!("{SLOW} --metrics {} {flags}", folder.join("metrics").display());
    let daemon = Daemon::of_store(folder, &store, &flags, environment);
    let guest = daemon.twin("--millis 120000 --patience-ms 120000 --seed 7");
    has_guests(&daemon, 1);
    Some((daemon, guest))
}

/// Waits until the worker serves, or has served, `guests` guests.
fn has_guests(daemon: &Daemon, count: u64) {
    let metrics = daemon.folder.join("metrics");
    // A worker that has just started does not answer yet.
    let has_them = || {
        let Ok(stream) = std::os::unix::net::UnixStream::connect(&metrics) else { return false };
        let text = get(stream, "/metrics");
        let names = ["slat_pager_guests{", "slat_pager_guests_ended_total{"];
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>() >= count
    };
    assert!((0..6000).any(|_| has_them() || {
        std::thread::sleep(Duration::from_millis(5));
        false
    }));
}

#[test]
fn keeper_and_worker_are_killed_in_turn_and_guests_do_not_notice() {
    let Some((mut daemon, guest)) = with_guest("keeper-turns", "", &[]) else { return };
    let words = "--millis 1500 --balloon --patience-ms 10000";
    let first = daemon.twin(words);
    has_guests(&daemon, 2);
    daemon.kill_keeper();
    let keeper = daemon.next_keeper();
    // A guest that the next keeper accepts.
    let second = daemon.twin(&format!("{words} --shared --seed 2"));
    has_guests(&daemon, 3);
    kill(&mut daemon, 2);
    kill_process(keeper, Signal::KILL).unwrap();
    let keeper = daemon.next_keeper();
    kill(&mut daemon, 2);
    for twin in [first, second] {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
    // It drains as the first one does.
    kill_process(keeper, Signal::TERM).unwrap();
    daemon.find(|line| line.contains("drains").then_some(()));
    assert!(!daemon.socket().exists());
    drop(guest);
    daemon.rest();
}

#[test]
fn a_daemon_without_guests_survives_a_kill_of_its_keeper() {
    let Some(mut daemon) = Daemon::start("keeper-idle", "") else { return };
    daemon.kill_keeper();
    let keeper = daemon.next_keeper();
    assert!(daemon.twin("--millis 100 --patience-ms 10000").report().is_right());
    daemon.kill();
    assert!(daemon.twin("--millis 100 --patience-ms 10000").report().is_right());
    // It drains, and then no process is left.
    kill_process(keeper, Signal::TERM).unwrap();
    daemon.rest();
}

#[test]
fn a_second_request_to_end_starts_no_other_keeper_and_leaves_no_guest_unserved() {
    let Some((mut daemon, guest)) = with_guest("keeper-twice", "", &[]) else { return };
    let twin = daemon.twin("--millis 600 --balloon --patience-ms 10000");
    has_guests(&daemon, 2);
    daemon.drain();
    daemon.find(|line| line.contains("drains").then_some(()));
    daemon.drain();
    assert_eq!(daemon.end().code(), Some(2));
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
    drop(guest);
    let rest = daemon.rest();
    assert!(rest.iter().all(|line| !line.contains("\"keeper\"")), "{rest:?}");
}

#[test]
fn guests_have_their_own_keeper_where_systemd_starts_the_next_one() {
    let supervised = [("NOTIFY_SOCKET", "@slat-pager-none")];
    let Some((mut daemon, guest)) = with_guest("keeper-supervised", "", &supervised) else { return };
    let twin = daemon.twin("--millis 600 --balloon --patience-ms 10000");
    has_guests(&daemon, 2);
    daemon.kill_keeper();
    daemon.next_keeper();
    // The keeper that systemd starts gets the sockets.
    assert!(std::os::unix::net::UnixStream::connect(daemon.socket()).is_err(), "none listens");
    daemon.kill();
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
    // Keeper and worker end with the last guest.
    drop(guest);
    daemon.rest();
}

#[test]
fn a_worker_without_guests_ends_where_systemd_starts_the_next_keeper() {
    if !is_offered() {
        return;
    }
    let folder = with_template("keeper-idle-supervised");
    let (store, control) = (folder.join("store").display().to_string(), folder.join("control"));
    let flags = format!("--control {}", control.display());
    let supervised = [("NOTIFY_SOCKET", "@slat-pager-none")];
    let daemon = Daemon::of_store(folder, &store, &flags, &supervised);
    daemon.kill_keeper();
    assert!(daemon.rest().iter().all(|line| !line.contains("\"keeper\"")));
}

#[test]
fn shared_memory_survives_kills_too() {
    let Some(mut daemon) = Daemon::start("kills-shared", SLOW) else { return };
    let twin = daemon.twin("--millis 800 --balloon --shared --patience-ms 10000");
    kill(&mut daemon, 3);
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
}

/// The template is replaced by another image, chunks are collected, and the daemon is killed.
#[test]
fn a_guest_whose_template_is_replaced_goes_on_with_its_own() {
    let Some(mut daemon) = Daemon::start("replaced", &format!("{SLOW} --window 2")) else { return };
    let twin = daemon.twin("--millis 600 --balloon --patience-ms 10000");
    std::thread::sleep(Duration::from_millis(100));
    let other = Image { seed: 77, ..IMAGE };
    let library = library(&daemon.folder);
    library.snapshot("twin", other.read(), (MIB << 20) as u64, 64 << 10).unwrap();
    assert_eq!(library.gc(slat_pager::PATIENCE).unwrap().removed, 0, "it is being served");
    kill(&mut daemon, 2);
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
}

/// Deletes the manifest of a running guest's template, and kills the daemon. The next one cannot serve the guest.
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
fn a_guest_that_cannot_be_served_is_killed_under_the_policy_kill() {
    let Some((daemon, twin)) = is_lost("lost-kill", "--on-failure kill") else { return };
    assert_eq!(twin.end().0.signal(), Some(libc::SIGKILL));
    daemon.find(|line| line.contains("its VMM is killed").then_some(()));
    // A process that has connected and is no guest yet is not killed.
    drop(std::os::unix::net::UnixStream::connect(daemon.socket()).unwrap());
    assert!(daemon.find(|line| line.contains("refused").then(|| !line.contains("killed"))));
}

#[test]
fn a_guest_that_cannot_be_served_waits_under_the_policy_wait() {
    let Some((daemon, twin)) = is_lost("lost-wait", "") else { return };
    let said = daemon.find(|line| line.contains("refused").then(|| line.to_owned()));
    assert!(said.contains("manifests/") && twin.report().frozen, "{said}");
}

/// A daemon of the templates `twin` and `other`, with a guest of each, after something happened to the store of `other`
/// and the worker was killed.
struct Two {
    daemon: Daemon,
    socket: std::path::PathBuf,
    twins: [Twin; 2],
}

/// A guest that runs during the kill.
const GOES_ON: &str = "--millis 1500 --balloon --patience-ms 10000";

impl Two {
    fn after(name: &str, spoil: impl FnOnce(&Path)) -> Option<Self> {
        if !is_offered() {
            return None;
        }
        let folder = with_template(name);
        // A manifest of its own.
        library(&folder).snapshot("other", IMAGE.read(), (MIB << 20) as u64, 128 << 10).unwrap();
        let (socket, metrics) = (folder.join("other.socket"), folder.join("metrics"));
        let flags = format!("{SLOW} --guest {}=other --metrics {}", socket.display(), metrics.display());
        let mut daemon = Daemon::in_folder(folder, &flags);
        let twins = [&daemon.socket(), &socket].map(|socket| Twin::at(socket, MIB, GOES_ON));
        has_guests(&daemon, 2);
        spoil(&daemon.folder);
        daemon.kill();
        Some(Self { daemon, socket, twins })
    }

    /// Starts a guest of `other`.
    fn other(&self, flags: &str) -> Twin {
        Twin::at(&self.socket, MIB, &format!("--millis 100 {flags}"))
    }

    /// Guests of both go on, and new guests of both are served with the versions of before the kill.
    fn all_go_on(self) {
        for twin in [self.daemon.twin("--millis 100"), self.other("")].into_iter().chain(self.twins) {
            let report = twin.report();
            assert!(report.is_right(), "{report:?}");
        }
    }
}

fn replace_other(folder: &Path) -> String {
    let (library, size) = (library(folder), (MIB << 20) as u64);
    library.snapshot("other", Image { seed: 9, ..IMAGE }.read(), size, 64 << 10).unwrap();
    library.open("other").unwrap().version().to_owned()
}

#[test]
fn guests_go_on_after_a_kill_when_another_template_was_removed() {
    let Some(two) = Two::after("removed", |folder| library(folder).remove("other").unwrap()) else { return };
    two.all_go_on();
}

#[test]
fn guests_go_on_after_a_kill_beside_a_damaged_manifest() {
    let damage = |folder: &Path| {
        let version = replace_other(folder);
        std::fs::write(folder.join("store/manifests").join(version), "other").unwrap();
    };
    let Some(two) = Two::after("damaged-manifest", damage) else { return };
    two.all_go_on();
}

#[test]
fn guests_go_on_after_a_kill_beside_a_damaged_catalog() {
    let damage = |folder: &Path| std::fs::write(folder.join("store/catalog"), "no").unwrap();
    let Some(two) = Two::after("damaged-catalog", damage) else { return };
    two.all_go_on();
}

#[test]
fn guests_go_on_when_their_store_is_back_after_a_kill() {
    if !is_offered() {
        return;
    }
    let folder = with_template("unmounted");
    let (store, away) = (folder.join("store"), folder.join("away"));
    let flags = format!("{SLOW} --metrics {}", folder.join("metrics").display());
    let mut daemon = Daemon::in_folder(folder, &flags);
    let twin = daemon.twin(GOES_ON);
    has_guests(&daemon, 1);
    std::fs::rename(&store, &away).unwrap();
    daemon.kill();
    daemon.find(|line| line.contains("there is no folder").then_some(()));
    assert!(!store.exists(), "no other store is made in its place");
    // The first such line may be of another call of the store.
    let metrics = daemon.folder.join("metrics");
    let counts = || {
        let text = get(std::os::unix::net::UnixStream::connect(&metrics).unwrap(), "/metrics");
        let of_twin = |name: &str| value(&text, &format!("slat_pager_{name}{{template=\"twin\"}}"));
        (of_twin("guests"), of_twin("guests_without_template"))
    };
    assert!((0..6000).any(|_| counts() == (0, 1) || {
        std::thread::sleep(Duration::from_millis(5));
        false
    }));
    std::fs::rename(&away, &store).unwrap();
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
}

#[test]
fn a_daemon_drains_although_a_guest_ended_while_its_template_was_out_of_reach() {
    if !is_offered() {
        return;
    }
    let folder = with_template("unmounted-end");
    let (store, away) = (folder.join("store"), folder.join("away"));
    let flags = format!("{SLOW} --metrics {}", folder.join("metrics").display());
    let mut daemon = Daemon::in_folder(folder, &flags);
    let twin = daemon.twin("--millis 120000 --patience-ms 120000");
    has_guests(&daemon, 1);
    std::fs::rename(&store, &away).unwrap();
    daemon.kill();
    daemon.find(|line| line.contains("there is no folder").then_some(()));
    drop(twin);
    daemon.drain();
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn a_template_that_is_lost_concerns_its_own_guests_alone() {
    let lose = |folder: &Path| {
        let library = library(folder);
        let version = library.open("other").unwrap().version().to_owned();
        library.remove("other").unwrap();
        std::fs::remove_file(folder.join("store/manifests").join(version)).unwrap();
    };
    let Some(two) = Two::after("lost-other", lose) else { return };
    let said = two.daemon.find(|line| line.contains("not opened").then(|| line.to_owned()));
    assert!(said.contains("manifests/") && said.contains("\"template\":\"other\""), "{said}");
    let refused = two.other("--patience-ms 300");
    let pid = format!("\"pid\":{},", refused.0.id());
    let said =
        two.daemon.find(|line| (line.contains("refused") && line.contains(&pid)).then(|| line.to_owned()));
    assert!(said.contains("manifests/"), "{said}");
    let [twin, _other] = two.twins;
    assert!(twin.report().is_right() && two.daemon.twin("--millis 100").report().is_right());
    drop(refused);
}

#[test]
fn new_guests_get_a_new_version_when_the_daemon_is_told_and_not_before() {
    let Some(mut two) = Two::after("reload", |folder| _ = replace_other(folder)) else { return };
    // The worker was killed, and no guest gets other memory for that.
    assert!(two.other("").report().is_right());
    let reload = |daemon: &Daemon, found: &str| {
        daemon.signal(Signal::HUP);
        daemon.find(|line| {
            (line.contains("opened\"") && line.contains("\"other\"")).then(|| line.contains(found))
        })
    };
    assert!(reload(&two.daemon, "\"version\""));
    assert!(two.other("--image-seed 9").report().is_right());
    two.daemon.kill();
    assert!(two.other("--image-seed 9").report().is_right());
    // A version that is damaged is not taken.
    let version = replace_other(&two.daemon.folder);
    std::fs::write(two.daemon.folder.join("store/manifests").join(version), "other").unwrap();
    assert!(reload(&two.daemon, "is damaged"));
    assert!(two.other("--image-seed 9").report().is_right());
    // A template that was removed is not served any more.
    library(&two.daemon.folder).remove("other").unwrap();
    assert!(reload(&two.daemon, "is not in the store"));
    let refused = two.other("--patience-ms 300");
    assert!(two.daemon.find(|line| line.contains("refused").then(|| line.contains("templates/other"))));
    drop(refused);
    two.twins.into_iter().for_each(|twin| assert!(twin.report().is_right()));
}

/// Replaces an object of a store by a pipe, whose opening waits for ever.
fn wedge(object: &Path) {
    _ = std::fs::remove_file(object);
    rustix::fs::mkfifoat(rustix::fs::CWD, object, rustix::fs::Mode::RUSR).unwrap();
}

#[test]
fn a_daemon_whose_store_does_not_answer_at_its_start_ends_when_it_is_told() {
    if !is_offered() {
        return;
    }
    let folder = with_template("wedged");
    wedge(&folder.join("store/catalog"));
    let mut daemon = Daemon::unready(folder);
    daemon.started();
    daemon.drain();
    assert_eq!(daemon.end().code(), Some(0));
    assert!(!daemon.socket().exists());
    daemon.rest();
}

#[test]
fn a_daemon_whose_store_does_not_answer_ends_when_it_is_told_twice() {
    if !is_offered() {
        return;
    }
    let folder = with_template("wedged-twice");
    wedge(&folder.join("store/catalog"));
    let mut daemon = Daemon::unready(folder);
    daemon.started();
    // It has not been served, so it counts as a guest.
    let guest = daemon.twin("--millis 100 --patience-ms 60000");
    let is_kept =
        |daemon: &Daemon| daemon.find(|line| line.contains("drains").then(|| line.contains("\"guests\":1")));
    std::thread::sleep(Duration::from_millis(200));
    daemon.drain();
    assert!(is_kept(&daemon));
    daemon.drain();
    assert_eq!(daemon.end().code(), Some(2));
    daemon.rest();
    drop(guest);
}
