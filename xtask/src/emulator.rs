//! Emulators, and the bare-metal programs that run in them.
//!
//! What a chore needs may be missing: an emulator, or a Rust target that cannot be had. Then it is skipped in one line that
//! says what to install; where `SLAT_REQUIRE_EMULATORS=1` is set, as CI does, a skip is a failure.

use crate::Outcome;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set where no emulator may be missing.
pub const REQUIRED: &str = "SLAT_REQUIRE_EMULATORS";

/// What is missing, and how to get it.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    what: String,
    remedy: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}, {}", self.what, self.remedy)
    }
}

impl Error for Missing {}

impl Missing {
    /// A program that is in a Debian package.
    fn program(name: &str, package: &str) -> Self {
        Self { what: name.to_owned(), remedy: format!("install the Debian package {package}") }
    }
}

/// Where a program is, that the Debian package has.
pub fn find(program: &str, package: &str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&path).map(|folder| folder.join(program));
    candidates.into_iter().find(|file| file.is_file()).ok_or_else(|| Missing::program(program, package))
}

/// Says what is missing and goes on; or fails, where this variable is 1.
pub fn skip(missing: &Missing, required: &str) -> Outcome {
    println!("{missing}");
    if std::env::var_os(required).is_some_and(|value| value == "1") {
        return Err(format!("something is missing, and {required}=1").into());
    }
    Ok(())
}

/// A program of `walkers/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its package there.
    pub package: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The machine that it is for, as Rust calls it.
    pub target: &'static str,
}

impl Program {
    /// Builds it with these environment variables, and says where it is. [`Missing`] where the compiler cannot be had for
    /// the machine.
    pub fn build(&self, root: &Path, environment: &[(&str, String)]) -> Result<PathBuf, Box<dyn Error>> {
        self.have_target()?;
        let folder = root.join("target/walkers/build");
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--release",
                "--locked",
                "--package",
                self.package,
                "--bin",
                self.name,
            ])
            .args(["--target", self.target, "--target-dir"])
            .arg(&folder)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            // Each program has a linker script of its own; flags from outside would replace its own.
            .env_remove("RUSTFLAGS")
            // The linker scripts' folder has the configuration of the targets.
            .current_dir(root.join("walkers"))
            .status()?;
        if !status.success() {
            return Err(format!("{}: cargo build: {status}", self.package).into());
        }
        Ok(folder.join(self.target).join("release").join(self.name))
    }

    fn have_target(&self) -> Result<(), Missing> {
        let missing = || Missing {
            what: format!("the Rust target {}", self.target),
            remedy: format!("rustup target add {}", self.target),
        };
        let library = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", self.target])
            .stderr(Stdio::null())
            .output()
            .map_err(|_| missing())?;
        let folder = PathBuf::from(String::from_utf8_lossy(&library.stdout).trim());
        if library.status.success() && folder.is_dir() {
            return Ok(());
        }
        let added = Command::new("timeout")
            .args(["120", "rustup", "--quiet", "target", "add", self.target])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        added.is_ok_and(|status| status.success()).then_some(()).ok_or_else(missing)
    }
}

/// Runs an emulator for so many seconds at most, and hands back what it said, standard error last. An error where it had
/// to be ended. What its exit status means is up to the program in it: that has a last line to say so.
pub fn run(emulator: &Path, arguments: &[&str], seconds: u32) -> Result<String, Box<dyn Error>> {
    let output = Command::new("timeout")
        .args(["--kill-after=5", &seconds.to_string()])
        .arg(emulator)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        // What `timeout` says where it had to end something.
        Some(124 | 137) => Err(format!("{text}\nstill running after {seconds} seconds").into()),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_in_one_line() {
        assert!(find("sh", "dash").is_ok());
        let missing = find("no-such-emulator", "qemu-system-none").unwrap_err();
        let line = "skipped: no-such-emulator, install the Debian package qemu-system-none";
        assert_eq!(missing.to_string(), line);
    }

    #[test]
    fn an_emulator_that_does_not_end_is_ended() {
        let sh = find("sh", "dash").unwrap();
        assert_eq!(run(&sh, &["-c", "echo said; exit 3"], 10).unwrap(), "said\n");
        assert!(run(&sh, &["-c", "sleep 60"], 1).unwrap_err().to_string().contains("still running"));
    }
}
