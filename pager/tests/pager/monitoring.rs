//! The view of operators: metrics, health, the log, and the files in `monitoring`.

use crate::control::{ctl, listed};
use crate::daemon::{Daemon, MIB, Twin, is_offered, with_template};
use crate::exposition::{Family, parse};
use crate::operations::{get, value};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use slat_pager::{Cache, Monitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(60);

/// Families that are in no panel and in no alert.
const NOT_SHOWN: [&str; 0] = [];

/// Starts a daemon that answers at `metrics` and `control` in its folder.
fn daemon(name: &str, flags: &str) -> Option<Daemon> {
    is_offered().then(|| {
        let folder = with_template(name);
        let flags = format!("--metrics {0}/metrics --control {0}/control {flags}", folder.display());
        Daemon::in_folder(folder, &flags)
    })
}

fn body(daemon: &Daemon, path: &str) -> (String, String) {
    let answer = get(UnixStream::connect(daemon.folder.join("metrics")).unwrap(), path);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn metrics(daemon: &Daemon) -> (String, BTreeMap<String, Family>) {
    let text = body(daemon, "/metrics").1;
    let families = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (text, families)
}

/// Waits until a check answers this status. Returns its line.
fn until(daemon: &Daemon, path: &str, status: &str) -> String {
    let began = Instant::now();
    loop {
        let (head, body) = body(daemon, path);
        assert!(body.ends_with('\n') && body.lines().count() == 1, "{body}");
        if head == format!("HTTP/1.1 {status}") {
            return body;
        }
        assert!(began.elapsed() < BOUND, "{head}: {body}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_metrics_are_prometheus_text_and_their_number_does_not_grow_with_guests() {
    let Some(daemon) = daemon("exposition", "--record 1") else { return };
    let number = || metrics(&daemon).1.values().map(|family| family.series.len()).sum::<usize>();
    let before = number();
    let guests: Vec<_> = (0..3).map(|seed| daemon.twin(&format!("--millis 1500 --seed {seed}"))).collect();
    for guest in guests {
        assert!(guest.report().is_right());
    }
    let began = Instant::now();
    let ended = "slat_pager_guests_ended_total{template=\"twin\"}";
    while value(&metrics(&daemon).0, ended) < 3 {
        assert!(began.elapsed() < BOUND);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(number(), before);
    // The working set that was recorded is filled ahead for the next guest.
    assert!(daemon.twin("--millis 500").report().is_right());
    while value(&metrics(&daemon).0, ended) < 4 {
        assert!(began.elapsed() < BOUND);
        std::thread::sleep(Duration::from_millis(20));
    }
    let (text, families) = metrics(&daemon);
    assert_eq!(value(&text, "slat_pager_prefetch_duration_seconds_count"), 1);
    assert!(value(&text, "slat_pager_pages_prefetched_total{template=\"twin\"}") > 0);
    assert!(value(&text, "slat_pager_lease_renewals_total") >= 1);
    assert_eq!(value(&text, "slat_pager_ready"), 1);
    // The daemon and an idle monitor have the same families.
    let idle = Monitor::new(Arc::new(Cache::new(0)), None).families();
    assert_eq!(families.len(), idle.len());
    for family in idle {
        assert_eq!(families[&family.name].kind, family.kind.name(), "{}", family.name);
    }
}

#[test]
fn refusals_and_restarts_are_counted_by_reason() {
    let Some(mut daemon) = daemon("counted", "--per-process 3") else { return };
    let refused =
        |text: &str, reason: &str| value(text, &format!("slat_pager_refusals_total{{reason=\"{reason}\"}}"));
    let connect = || UnixStream::connect(daemon.socket()).unwrap();
    connect().write_all(b"[1]").unwrap();
    drop(connect());
    // Connections beyond the third one are closed.
    let many: Vec<_> = (0..6).map(|_| connect()).collect();
    let began = Instant::now();
    let (mut text, mut found) = (String::new(), [0; 3]);
    while found.iter().any(|count| *count < 1) {
        assert!(began.elapsed() < BOUND, "{found:?} {text}");
        std::thread::sleep(Duration::from_millis(20));
        text = metrics(&daemon).0;
        found = ["handshake", "no_handshake", "connections"].map(|reason| refused(&text, reason));
    }
    drop(many);
    assert_eq!(value(&text, "slat_pager_worker_restarts_total"), 0);
    daemon.kill();
    let text = metrics(&daemon).0;
    assert_eq!(value(&text, "slat_pager_worker_restarts_total"), 1);
    // The keeper counts them, and tells the worker once a second.
    assert!(refused(&text, "connections") >= found[2], "{text}");
}

#[test]
fn a_daemon_is_ready_while_its_store_answers_and_until_it_drains() {
    if !is_offered() {
        return;
    }
    let folder = with_template("ready");
    let [store, away, down] = ["store", "away", "down"].map(|name| folder.join(name));
    let flags =
        format!("--metrics {0}/metrics --control {0}/control --store-down {0}/down", folder.display());
    let daemon = Daemon::in_folder(folder, &flags);
    let check = |what: &str| ctl(&daemon, &[what]);
    let up = || value(&metrics(&daemon).0, "slat_pager_store_up");
    assert_eq!(until(&daemon, "/ready", "200 OK"), "ready\n");
    assert_eq!((check("ready"), check("health")), (Ok("ready\n".into()), Ok("healthy\n".into())));
    // Its folder is not mounted any more.
    std::fs::rename(&store, &away).unwrap();
    std::fs::create_dir(&store).unwrap();
    let why = until(&daemon, "/ready", "503 Service Unavailable");
    assert_eq!(why, "not ready: the store has no catalog: is it the right one?\n");
    assert_eq!(up(), 0);
    assert!(check("ready").unwrap_err().contains("not ready: the store has no catalog"));
    assert_eq!(until(&daemon, "/health", "200 OK"), "healthy\n", "a restart does not help");
    std::fs::remove_dir(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    until(&daemon, "/ready", "200 OK");
    assert_eq!(up(), 1);
    // Chunks cannot be read, and the catalog can.
    std::fs::write(&down, "").unwrap();
    let _guest = daemon.twin("--millis 60000 --patience-ms 60000");
    let said = daemon.find(|line| line.contains("\"store down\"").then(|| line.to_owned()));
    assert!(said.contains("down on purpose"), "{said}");
    let why = until(&daemon, "/ready", "503 Service Unavailable");
    assert!(why.starts_with("not ready: calls of the store fail: chunks/"), "{why}");
    assert_eq!(up(), 0);
    std::fs::remove_file(&down).unwrap();
    until(&daemon, "/ready", "200 OK");
    daemon.find(|line| line.contains("\"store up\"").then_some(()));
    daemon.drain();
    let why = until(&daemon, "/ready", "503 Service Unavailable");
    assert!(why.contains("the daemon drains"), "{why}");
    assert_eq!(value(&metrics(&daemon).0, "slat_pager_draining"), 1);
}

#[test]
fn a_daemon_whose_worker_stands_still_is_not_healthy() {
    let Some(daemon) = daemon("still", "") else { return };
    let worker = Pid::from_raw(daemon.worker).unwrap();
    kill_process(worker, Signal::STOP).unwrap();
    let said = ctl(&daemon, &["health"]).unwrap_err();
    assert!(said.contains("not healthy: no worker answers within 5s"), "{said}");
    kill_process(worker, Signal::CONT).unwrap();
    assert_eq!(ctl(&daemon, &["health"]), Ok("healthy\n".into()));
    std::fs::remove_file(daemon.folder.join("control")).unwrap();
    let none = ctl(&daemon, &["health"]).unwrap_err();
    assert!(none.contains("not healthy: ") && none.contains("/control: No such file"), "{none}");
}

#[test]
fn a_fault_whose_read_does_not_return_is_seen() {
    let Some(daemon) = daemon("hangs", "--store-delay-ms 20000") else { return };
    let _guest = daemon.twin("--millis 60000 --patience-ms 60000");
    let said = daemon.find(|line| line.contains("\"waits\"").then(|| line.to_owned()));
    assert!(said.contains("the store has not answered yet"), "{said}");
    let text = metrics(&daemon).0;
    let of_twin = |name: &str| value(&text, &format!("slat_pager_{name}{{template=\"twin\"}}"));
    assert!(of_twin("faults_waiting") >= 1 && of_twin("fault_oldest_wait_seconds") >= 1, "{text}");
    let waits = |listed: &slat_pager::Listed| listed.sessions.iter().any(|session| session.state == "waits");
    listed(&daemon.folder.join("control"), waits);
}

/// A daemon whose log is a pipe that nothing reads.
struct Unread {
    folder: std::path::PathBuf,
    keeper: std::process::Child,
    log: std::fs::File,
}

impl Unread {
    fn start(name: &str) -> Self {
        let folder = with_template(name);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // The least that there is.
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        let mut serve = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        serve.arg("serve").arg("--store").arg(folder.join("store")).arg("--guest");
        serve.arg(format!("{}=twin", folder.join("socket").display()));
        serve.arg("--metrics").arg(folder.join("metrics"));
        let keeper = serve.process_group(0).stderr(writer).stdin(Stdio::null()).spawn().unwrap();
        Self { folder, keeper, log: reader.into() }
    }

    fn signal(&self, signal: Signal) {
        _ = kill_process_group(Pid::from_child(&self.keeper), signal);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        _ = self.keeper.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A reader of the log that stands still stops neither the daemon nor its guests, nor the end of the daemon.
#[test]
fn a_log_that_is_not_read_stops_nothing_and_lines_of_one_event_have_a_limit() {
    if !is_offered() {
        return;
    }
    let mut daemon = Unread::start("unread");
    let [socket, metrics] = ["socket", "metrics"].map(|name| daemon.folder.join(name));
    let began = Instant::now();
    let is_in_time = || assert!(began.elapsed() < BOUND);
    while UnixStream::connect(&metrics).is_err() || !socket.exists() {
        is_in_time();
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused = || {
        let text = get(UnixStream::connect(&metrics).unwrap(), "/metrics");
        value(&text, "slat_pager_refusals_total{reason=\"handshake\"}")
    };
    // More lines than the pipe has room for.
    while refused() < 500 {
        is_in_time();
        for _ in 0..20 {
            if let Ok(mut vmm) = UnixStream::connect(&socket) {
                _ = vmm.write_all(b"[\"no mapping\"]");
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = Twin::at(&socket, MIB, "--millis 200").report();
    assert!(report.is_right(), "{report:?}");
    daemon.signal(Signal::TERM);
    while daemon.keeper.try_wait().unwrap().is_none() {
        is_in_time();
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut log = String::new();
    daemon.log.read_to_string(&mut log).unwrap();
    assert!(log.lines().filter(|line| line.contains("\"refused\"")).count() < 400, "{log}");
}

/// Returns a file of this package or of the repository. `None`: the package is alone.
pub fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

/// Compares a file with its generated content. With `SLAT_WRITE=1` it writes the file.
fn is_generated(path: &str, right: &str) {
    if std::env::var_os("SLAT_WRITE").is_some() {
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(path), right).unwrap();
    }
    let found = text(path).unwrap_or_default();
    assert!(found == right, "{path} is old: run this test with SLAT_WRITE=1. It should be\n{right}");
}

#[test]
fn the_tables_of_metrics_and_events_are_those_of_the_program() {
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for family in Monitor::new(Arc::new(Cache::new(0)), None).families() {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (&family.name, family.kind.name(), labels.join(", "));
        _ = writeln!(table, "| `{name}` | {kind} | {labels} | {} |", family.help);
    }
    is_generated("monitoring/metrics.md", &table);
    let help = Command::new(env!("CARGO_BIN_EXE_slat-pager")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, events) = help.split_once("Its field `event` is one of:\n").unwrap();
    let mut table = String::from("| event | meaning |\n|---|---|\n");
    for line in events.lines().filter(|line| !line.is_empty()) {
        let (event, meaning) = line.trim_start().split_at(16);
        _ = writeln!(table, "| `{}` | {} |", event.trim_end(), meaning.trim());
    }
    is_generated("monitoring/events.md", &table);
}

/// Returns the expressions of the dashboard and of the alert rules.
fn expressions() -> Vec<String> {
    fn collect(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map {
                    match value.as_str().filter(|_| key == "expr" || key == "query") {
                        Some(text) => found.push(text.into()),
                        None => collect(value, found),
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let dashboard = text("monitoring/dashboard.json").unwrap();
    let mut found = Vec::new();
    collect(&serde_json::from_str(&dashboard).unwrap(), &mut found);
    let alerts = text("monitoring/alerts.yml").unwrap();
    let mut lines = alerts.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(first) = line.trim_start().strip_prefix("expr: ") else { continue };
        let mut expression = first.to_owned();
        while expression.starts_with(">-") && lines.peek().is_some_and(|line| line.starts_with("         ")) {
            expression = format!("{expression} {}", lines.next().unwrap().trim());
        }
        found.push(expression);
    }
    found
}

/// Returns the words of a text that fit into names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
        .filter(|word| !word.is_empty())
}

/// Returns the errors of an expression, and notes the metrics that it names.
fn check(
    expression: &str,
    labels: &BTreeMap<String, Vec<&str>>,
    named: &mut BTreeSet<String>,
) -> Vec<String> {
    let (mut errors, mut known) = (Vec::new(), vec!["le", "instance", "job"]);
    for word in words(expression).filter(|word| word.starts_with("slat_pager_")) {
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| word.strip_suffix(part));
        let is_part = |name: &&str| labels.contains_key(*name) && name.ends_with("_seconds");
        let name = parts.filter(is_part).unwrap_or(word);
        match labels.get(name) {
            Some(more) => known.extend(more),
            None => errors.push(format!("{name} is not exported: {expression}")),
        }
        named.insert(name.into());
    }
    let lists = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    let grouped = lists.flat_map(|(list, _)| words(list).collect::<Vec<_>>());
    let selectors = expression.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let selected = selectors.filter_map(|(selector, _)| words(selector).next());
    for label in grouped.chain(selected) {
        if !known.contains(&label) {
            errors.push(format!("no metric here has the label {label}: {expression}"));
        }
    }
    errors
}

#[test]
fn dashboard_and_alerts_name_each_metric_that_is_exported_and_no_other() {
    let families = Monitor::new(Arc::new(Cache::new(0)), None).families();
    let labels: BTreeMap<String, Vec<&str>> =
        families.iter().map(|family| (family.name.clone(), family.labels.to_vec())).collect();
    let (mut named, expressions) = (BTreeSet::new(), expressions());
    assert!(expressions.len() > 40, "{expressions:?}");
    let errors: Vec<_> =
        expressions.iter().flat_map(|expression| check(expression, &labels, &mut named)).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let missing = labels.keys().filter(|name| !named.contains(*name) && !NOT_SHOWN.contains(&&***name));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
    let wrong = |expression: &str| check(expression, &labels, &mut BTreeSet::new()).len();
    assert_eq!(wrong("rate(slat_pager_fault_duration_seconds_bucket{source=\"cache\"}[5m])"), 0);
    assert_eq!(wrong("slat_pager_fault_seconds"), 1);
    assert_eq!(wrong("slat_pager_guests_count"), 1);
    assert_eq!(wrong("sum by (guest) (slat_pager_guests)"), 1);
    assert_eq!(wrong("slat_pager_guests{guest=\"1\"}"), 1);
}
