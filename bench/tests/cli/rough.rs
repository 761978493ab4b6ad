//! Rough handling: a bench whose machine has too little of something says so, and ends.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Of address space, in bytes: less than these benches map.
const LITTLE: u64 = 300 << 20;

#[test]
fn without_memory_a_bench_says_so_and_ends() {
    let limit = Rlimit { current: Some(LITTLE), maximum: Some(LITTLE) };
    for args in [
        &["bench", "migrate", "-b", "16M", "--runs", "1", "-q"][..],
        &["bench", "demand-paging", "-v", "64", "-b", "16M", "--runs", "1"],
        &["sim", "zap", "-v", "416", "--no-sweep", "-q"],
    ] {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "--foreground", "120", env!("CARGO_BIN_EXE_slat-bench")]).args(args);
        // SAFETY: between fork and exec it makes one system call.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::As, limit)?)) };
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{args:?}: {err}");
        assert!(err.starts_with("slat: "), "{args:?}: {err}");
    }
}
