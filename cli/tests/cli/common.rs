//! Helpers of the tests of `slat run`: runs with a time limit, and files that are removed with the test.

use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A run that takes this long has hung. No run of these tests takes a tenth of it.
pub const BOUND: Duration = Duration::from_secs(120);

/// A file that is removed with the test.
pub struct File(PathBuf);

impl File {
    pub fn new(name: &str, contents: &[u8]) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, contents).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A short path for a socket, which is removed with the test.
pub struct SocketPath(PathBuf);

impl SocketPath {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slat-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slat"));
    command.arg("run").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn start(args: &[&str]) -> Child {
    command(args).spawn().unwrap()
}

/// Limits a resource of a process.
pub fn limited(command: &mut Command, what: Resource, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(move || Ok(setrlimit(what, limit)?)) };
}

/// Waits for the end of a run, up to the limit.
pub fn end(child: Child, what: &str) -> Output {
    let id = child.id();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output().unwrap()));
    receive.recv_timeout(BOUND).unwrap_or_else(|_| {
        drop(Command::new("kill").arg(id.to_string()).status());
        panic!("{what} hangs");
    })
}

/// Runs `slat run` to its end, with `input` on its standard input.
pub fn slat_with(args: &[&str], input: &[u8]) -> Output {
    fed(&mut command(args), input)
}

/// Runs a prepared command to its end.
pub fn fed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // The run may end without reading all of it.
        scope.spawn(move || drop(stdin.write_all(input)));
        end(child, &format!("{command:?}"))
    })
}

pub fn slat(args: &[&str]) -> Output {
    slat_with(args, b"")
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The JSON of a run that must succeed.
pub fn report(args: &[&str], input: &[u8]) -> Value {
    let mut all = vec!["--json"];
    all.extend(args);
    let output = slat_with(&all, input);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{args:?}: a bar is for terminals");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["corrupt_reads"], 0, "{args:?}");
    assert!(report["verified_reads"].as_u64().unwrap() > 0, "{args:?}");
    report
}

/// Checks bad input: exit status 2, one line that contains `what`, and nothing on standard output.
pub fn refused(args: &[&str], input: &[u8], what: &str) {
    let output = slat_with(args, input);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
    assert!(out.is_empty(), "{args:?} printed {out}");
    assert!(err.contains(what) && !err.contains("panicked"), "{args:?}: expected `{what}` in: {err}");
    // clap adds a usage hint to its own errors; an error of this program is one line.
    assert!(err.lines().count() == 1 || err.starts_with("error: "), "{args:?}: {err}");
}
