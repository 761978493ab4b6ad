//! Signals, resource limits, and readers that close the pipe. Each ends a run soon, with at most one line, and leaves
//! no file behind.

use crate::common::{File, SocketPath, command, end, fed, limited, start, text};
use rustix::process::Resource;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_signal_ends_a_run_with_what_it_has_and_nothing_stays() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let (socket, swap) = (SocketPath::new("signal"), SocketPath::new("signal.swap"));
        let args = ["-t", "-", "--json", "--lru-gen", socket.path(), "--swap", swap.path()];
        let mut child = start(&args);
        // The run waits for more of its trace.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b" S 04000000,8\n L 04000000,8\n").unwrap();
        let began = std::time::Instant::now();
        while !(Path::new(socket.path()).exists() && Path::new(swap.path()).exists()) {
            assert!(began.elapsed() < crate::common::BOUND);
            std::thread::yield_now();
        }
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let output = end(child, "a run that was told to end");
        let err = text(&output.stderr);
        assert_eq!((output.status.code(), err), (Some(status), ""), "SIG{signal}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["interrupted"], &report["traces"]), (&true.into(), &"standard input".into()));
        assert!(!Path::new(socket.path()).exists() && !Path::new(swap.path()).exists());
    }
}

#[test]
fn without_memory_or_threads_the_run_ends_with_one_line() {
    let cases: [(&[&str], u64, &[&str]); 3] = [
        // The run reserves the guest's memory.
        (
            &["-t", "-"],
            1 << 30,
            &[
                "9280 MiB cannot be reserved: mmap: Cannot allocate memory (os error 12); -m (--memory) asks for less",
            ],
        ),
        (&["-t", "-", "--limit", "4G"], 1 << 30, &["--limit asks for less"]),
        // Each thread has a stack of 2 MiB and allocates more.
        (
            &["-t", "-", "-m", "64M", "-v", "1000"],
            1 << 30,
            &["no more threads can be started: 1000 vCPUs need 3000 MiB of address space"],
        ),
    ];
    for (args, most, what) in cases {
        let mut command = command(args);
        limited(&mut command, Resource::As, most);
        let output = fed(&mut command, b" S 04000000,8\n");
        let err = text(&output.stderr);
        assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{args:?}: {err}");
        assert!(what.iter().any(|what| err.contains(what)), "{args:?}: {err}");
    }
}

#[test]
fn version_completions_and_manual_pages_are_written() {
    let folder = std::env::temp_dir().join(format!("slat-{}-man", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // No slat-bench is installed beside the command.
    let slat = folder.join("slat");
    std::fs::copy(env!("CARGO_BIN_EXE_slat"), &slat).unwrap();
    let said = |args: &[&str]| {
        let output = Command::new(&slat).args(args).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
        text(&output.stdout).to_owned()
    };
    assert!(said(&["--version"]).starts_with(concat!("slat ", env!("CARGO_PKG_VERSION"))));
    for shell in ["bash", "zsh", "fish"] {
        assert!(said(&["completions", shell]).contains("dirty-log"), "{shell}");
    }
    said(&["man", folder.to_str().unwrap()]);
    for page in ["slat.1", "slat-run.1", "slat-top.1", "slat-bench.1"] {
        assert!(folder.join(page).exists(), "{page}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let file = File::new("enough.trace", b" S 04000000,8\n L 04000000,8\n");
    for args in [&["plan"][..], &["plan", "--json"], &["run", "-t", file.path()], &["run", "--help"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}
