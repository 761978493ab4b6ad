//! Rough handling: a bench whose machine has too little of something says so, and ends.

use rustix::process::{Resource, Rlimit, Uid, setrlimit};
use rustix::thread::set_thread_res_uid;
use serde_json::Value;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Of address space, in bytes: less than these benches map.
const LITTLE: u64 = 300 << 20;
/// The same of those that map less.
const LEAST: u64 = 48 << 20;

#[test]
fn without_memory_a_bench_says_so_and_ends() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rough-memory");
    std::fs::create_dir_all(&folder).unwrap();
    let [costs, page] = ["costs", "page"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    for (args, most) in [
        (&["bench", "migrate", "-b", "16M", "--runs", "1", "-q"][..], LITTLE),
        (&["bench", "demand-paging", "-v", "64", "-b", "16M", "--runs", "1"], LITTLE),
        (&["sim", "zap", "-v", "416", "--no-sweep", "-q"], LITTLE),
        (&["bench", "zap", "--sizes", "1G", "--runs", "1"], LEAST),
        (&["bench", "memslot-perf", "-s", "1000000", "--tests", "setup"], LEAST),
        (&["calibrate", "-o", &costs], LEAST),
        (&["report", "--quick", "-q", "-o", &page], LEAST),
    ] {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        refuses(args, move || Ok(setrlimit(Resource::As, limit)?));
    }
    assert!(!std::path::Path::new(&costs).exists(), "half a file");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn without_threads_a_bench_says_so_and_ends() {
    let is_root = rustix::process::getuid().is_root();
    // The threads of root are not counted. A user who has processes already can start no thread.
    let user = Uid::from_raw(65_533);
    for (most, args) in [
        (1, &["bench", "fault-floor", "-b", "4M", "--runs", "1"][..]),
        (2, &["bench", "migrate", "-b", "16M", "--runs", "1", "-q"]),
        (2, &["bench", "memslot-perf", "-s", "10", "--seconds", "0"]),
        (3, &["bench", "invalidate", "-b", "8M", "--runs", "1"]),
        (5, &["bench", "demand-paging", "-v", "64", "-b", "16M", "--runs", "1"]),
        (
            5,
            &[
                "bench",
                "numa-balancing",
                "--passes",
                "2",
                "-a",
                "8000",
                "-e",
                "2000",
                "--runs",
                "1",
                "-v",
                "8",
            ],
        ),
    ] {
        let most = if is_root { most } else { 1 };
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        refuses(args, move || {
            if is_root {
                set_thread_res_uid(user, user, user)?;
            }
            Ok(setrlimit(Resource::Nproc, limit)?)
        });
    }
}

/// Under this limit it ends within two minutes, with one line and exit status 2.
fn refuses(args: &[&str], limit: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slat-bench"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec it makes two system calls at most.
    let mut child = match unsafe { command.pre_exec(limit) }.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return println!("skipped: another user may not run {}", env!("CARGO_BIN_EXE_slat-bench"));
        }
        child => child.unwrap(),
    };
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let err = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!((status.code(), err.lines().count()), (Some(2), 1), "{args:?}: {err}");
    assert!(err.starts_with("slat: "), "{args:?}: {err}");
}

/// The output of a run that succeeds, and writes nothing to standard error.
fn said(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_slat-bench")).args(args).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn benches_are_listed_and_a_reader_may_stop_early() {
    let list = |json: &[&str]| said(&[&["bench", "list"], json].concat());
    let value: Value = serde_json::from_str(&list(&["--json"])).unwrap();
    let benches = value["benches"].as_array().unwrap();
    assert_eq!(benches.len(), list(&[]).lines().count());
    for bench in benches {
        for key in ["name", "question", "time", "memory"] {
            assert!(bench[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {bench}");
        }
    }
    for args in [&["bench", "list"][..], &["bench", "zap", "--help"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat-bench"));
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn help_is_the_same_whichever_way_it_is_asked_for() {
    assert!(said(&["help", "bench", "zap"]).contains("Time: "));
    for words in [&["bench"][..], &["bench", "zap"], &["sim", "zap"], &["calibrate"], &["report"]] {
        assert_eq!(said(&[&["help"], words].concat()), said(&[words, &["--help"]].concat()), "{words:?}");
    }
}

#[test]
fn completions_and_manual_pages_tell_of_all_that_slat_does() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rough-man");
    std::fs::create_dir_all(&folder).unwrap();
    assert!(said(&["--version"]).starts_with(concat!("slat-bench ", env!("CARGO_PKG_VERSION"))));
    let script = said(&["completions", "bash"]);
    assert!(script.contains("--lru-gen") && script.contains("--fail-each-round"));
    said(&["man", folder.to_str().unwrap()]);
    for page in ["slat.1", "slat-run.1", "slat-bench-migrate.1", "slat-sim-zap.1"] {
        assert!(folder.join(page).exists(), "{page}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_flag_without_effect_is_one_line_and_exit_status_2() {
    for (args, says) in [
        (
            ["bench", "access-tracking-perf", "--pause", "5"],
            "--pause: only --performance has an ager that rests",
        ),
        (["sim", "zap", "--rest-ns", "5"], "--rest-ns: zap has no ager"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_slat-bench")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("slat: {says}\n"));
        assert!(output.stdout.is_empty());
    }
}

#[cfg(target_os = "linux")]
/// Whether the process hears SIGHUP, SIGINT and SIGTERM: bits 0, 1 and 14 of the signals that it catches.
fn hears(id: u32) -> bool {
    // A process that has ended catches none.
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(caught.trim(), 16).unwrap() & 0x4003 == 0x4003
}

/// A command that misses the first signal would wait for its second and a half; the next signal ends it at once.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_benches_and_simulations() {
    for (args, signal, status) in [
        (&["bench", "zap", "--sizes", "16M", "--runs", "100000"][..], "TERM", 143),
        (&["bench", "migrate", "-b", "1M", "--runs", "100000"], "HUP", 129),
        (&["sim", "demand-paging"], "INT", 130),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat-bench"));
        let mut child = command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        let ended = loop {
            assert!(began.elapsed() < Duration::from_secs(60), "{args:?}");
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            if hears(child.id()) {
                let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
                // It may have ended just now.
                let _ = kill.unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(ended.code(), Some(status), "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_leaves_no_half_a_cost_file() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rough-calibrate");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_slat-bench"));
    command.args(["calibrate", "-o"]).arg(folder.join("costs"));
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    while !hears(child.id()) {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}
