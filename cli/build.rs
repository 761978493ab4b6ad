//! Passes the current commit to release builds. A debug build would be rebuilt after each commit, so it gets none.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let mut version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    if env::var("PROFILE").is_ok_and(|profile| profile == "release")
        && let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"])
    {
        // A commit changes the log of HEAD.
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={log}");
        }
        version = format!("{version} ({commit})");
    }
    println!("cargo::rustc-env=SLAT_VERSION={version}");
}
