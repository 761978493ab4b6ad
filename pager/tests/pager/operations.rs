//! Operation of a daemon: configuration, readiness, metrics, draining.

use crate::daemon::{Daemon, folder, is_offered, with_template};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::time::Duration;

pub fn get(stream: UnixStream, path: &str) -> String {
    try_get(stream, path).unwrap()
}

/// As `get`, of a daemon that may end, or give its address to another one.
pub fn try_get(mut stream: UnixStream, path: &str) -> std::io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

/// Returns the value of a series.
pub fn float(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

/// Returns the value of a series that is a whole number.
pub fn value(text: &str, name: &str) -> u64 {
    float(text, name) as u64
}

#[test]
fn only_this_user_reads_the_metrics_of_guests_cache_and_store() {
    if !is_offered() {
        return;
    }
    let folder = with_template("metrics");
    let socket = folder.join("metrics.socket");
    let daemon = Daemon::in_folder(folder, &format!("--metrics {}", socket.display()));
    for path in [&socket, &daemon.socket()] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o177, 0, "{}", path.display());
    }
    let connect = || UnixStream::connect(&socket).unwrap();
    let twin = daemon.twin("--millis 700 --balloon");
    std::thread::sleep(Duration::from_millis(400));
    let during = get(connect(), "/metrics");
    assert_eq!(value(&during, "slat_pager_guests{template=\"twin\"}"), 1);
    assert!(twin.report().is_right());
    let stats = daemon.stats();
    let after = get(connect(), "/metrics");
    let faults = "slat_pager_fault_duration_seconds_count{source=\"store\"}";
    assert_eq!(value(&after, faults), stats.faults(slat_pager::Source::Store));
    let of_twin = |name: &str| value(&after, &format!("slat_pager_{name}{{template=\"twin\"}}"));
    assert_eq!((of_twin("guests"), of_twin("guests_ended_total")), (0, 1));
    assert_eq!(value(&after, "slat_pager_store_up"), 1);
    assert!(value(&after, "slat_pager_store_read_bytes_total") > 0);
    assert_eq!(of_twin("pages_filled_total"), stats.filled);
    assert!(get(connect(), "/other").starts_with("HTTP/1.1 404"));
    let top = Command::new(env!("CARGO_BIN_EXE_slat-pager"))
        .arg("top")
        .arg(&socket)
        .args(["--samples", "2", "--interval-ms", "10"])
        .output()
        .unwrap();
    let text = String::from_utf8(top.stdout).unwrap();
    assert!(top.status.success() && text.contains("1 ended") && text.contains("store up"), "{text}");
}

#[test]
fn a_daemon_that_drains_serves_its_guests_to_their_end_and_takes_no_other() {
    let Some(mut daemon) = Daemon::start("drain", "--cache 0 --store-delay-ms 2") else { return };
    let twin = daemon.twin("--millis 900 --balloon --patience-ms 10000");
    std::thread::sleep(Duration::from_millis(200));
    daemon.drain();
    daemon.find(|line| line.contains("drains").then_some(()));
    assert!(UnixStream::connect(daemon.socket()).is_err() && !daemon.socket().exists());
    // Also across a kill.
    daemon.kill();
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn a_daemon_without_guests_ends_when_it_drains() {
    let Some(mut daemon) = Daemon::start("drain-idle", "") else { return };
    daemon.drain();
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn systemd_is_notified_of_readiness_and_of_the_end() {
    if !is_offered() {
        return;
    }
    let folder = with_template("notify");
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let hear = || {
        let mut text = [0; 256];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let store = folder.join("store").display().to_string();
    let environment = [("NOTIFY_SOCKET", path.to_str().unwrap())];
    let mut daemon = Daemon::of_store(folder.clone(), &store, "", &environment);
    assert!(hear().starts_with("READY=1"));
    daemon.drain();
    assert!(hear().starts_with("STOPPING=1"));
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn a_configuration_has_the_flags_and_the_command_line_goes_before() {
    let folder = folder("config");
    let file = folder.join("pager.toml");
    let serve = |text: &str, words: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        command.args(["serve", "--config"]).arg(&file).args(words);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = serve("cahce = \"1M\"", &[]);
    assert!(code == Some(2) && text.contains("pager.toml: cahce") && text.lines().count() == 1, "{text}");
    // Each fails because of the key that the other one lacks.
    let socket = folder.join("socket");
    let config = format!("guest = [\"{}=none\"]\nstore = \"{}\"", socket.display(), folder.display());
    let (code, text) = serve(&config, &[]);
    assert!(code == Some(2) && text.contains("templates/none is not in the store"), "{text}");
    let (code, text) = serve(&config, &["--store", "ftp://a"]);
    assert!(code == Some(2) && text.contains("ftp:// is unknown"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_guest_that_waits_for_its_store_is_logged_with_the_reason() {
    if !is_offered() {
        return;
    }
    let folder = with_template("waits");
    let paths = std::fs::read_dir(folder.join("store/chunks")).unwrap().map(|chunk| chunk.unwrap().path());
    let chunks: Vec<_> = paths.map(|path| (std::fs::read(&path).unwrap(), path)).collect();
    for (_, path) in &chunks {
        std::fs::write(path, "other").unwrap();
    }
    let metrics = folder.join("metrics");
    let daemon = Daemon::in_folder(folder, &format!("--metrics {}", metrics.display()));
    let twin = daemon.twin("--millis 100 --patience-ms 60000");
    let said = daemon.find(|line| line.contains("\"lost\"").then(|| line.to_owned()));
    assert!(said.contains("\"twin\"") && said.contains("is damaged"), "{said}");
    let said = daemon.find(|line| line.contains("\"waits\"").then(|| line.to_owned()));
    let line: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(line["pid"], twin.0.id());
    assert!(
        line["faults"].as_u64() > Some(0) && said.contains("chunks/") && said.contains("is damaged"),
        "{said}"
    );
    let text = get(UnixStream::connect(&metrics).unwrap(), "/metrics");
    let of_twin = |name: &str| float(&text, &format!("slat_pager_{name}{{template=\"twin\"}}"));
    assert!(of_twin("faults_waiting") > 0.0 && of_twin("fault_oldest_wait_seconds") >= 1.0, "{text}");
    // The store answers, and has lost chunks.
    assert!(of_twin("chunks_lost") > 0.0 && value(&text, "slat_pager_store_up") == 1, "{text}");
    let damaged = "slat_pager_chunk_read_errors_total{template=\"twin\",reason=\"damaged\"}";
    assert!(value(&text, damaged) > 0);
    // An operator copies them back.
    for (content, path) in &chunks {
        std::fs::write(path, content).unwrap();
    }
    daemon.find(|line| line.contains("\"goes on\"").then_some(()));
    assert!(twin.report().is_right());
    let text = get(UnixStream::connect(&metrics).unwrap(), "/metrics");
    let of_twin = |name: &str| value(&text, &format!("slat_pager_{name}{{template=\"twin\"}}"));
    assert_eq!((of_twin("chunks_lost"), of_twin("faults_waiting")), (0, 0), "{text}");
}

#[test]
fn a_daemon_whose_metrics_address_is_in_use_serves_and_takes_it_when_it_is_free() {
    if !is_offered() {
        return;
    }
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let daemon = Daemon::in_folder(with_template("address"), &format!("--metrics {address}"));
    assert!(daemon.twin("--millis 100").report().is_right());
    drop(other);
    daemon.find(|line| line.contains("\"metrics\"").then_some(()));
    assert!(TcpStream::connect(address).is_ok());
}

#[test]
fn a_store_that_is_not_there_is_made_by_snapshot_alone() {
    let folder = folder("mistyped");
    let (store, image) = (folder.join("store"), folder.join("image"));
    std::fs::write(&image, [7; 4096]).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        let output = command.args(words).arg("--store").arg(&store).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let socket = format!("--guest={}=a", folder.join("socket").display());
    for words in [&["ls"][..], &["verify", "a"], &["rm", "a"], &["gc"], &["serve", &socket]] {
        let (status, said) = run(words);
        assert!(status == Some(2) && said.contains("store") && !store.exists(), "{words:?}: {said}");
    }
    let (status, said) = run(&["snapshot", image.to_str().unwrap(), "a"]);
    assert_eq!((status, run(&["ls"]).0), (Some(0), Some(0)), "{said}");
    std::fs::remove_dir_all(folder).unwrap();
}
