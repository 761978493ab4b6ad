//! Runs programs for chores: their output, their exit status, and time limits.
//!
//! The limit is coreutils' `timeout`, which ends the whole process group.

use crate::outcome::Outcome;
use anyhow::{Result, anyhow, ensure};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{fmt, fs, io, thread};

/// Output and exit status of a program.
pub struct Said {
    pub out: String,
    pub err: String,
    pub status: ExitStatus,
}

impl Said {
    /// Fails if the program failed, with its whole output.
    pub fn succeeded(self) -> Result<Self> {
        ensure!(self.status.success(), "{self}{}", self.status);
        Ok(self)
    }
}

/// Both streams, standard error last.
impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.out, self.err)
    }
}

/// Returns cargo's command, with arguments without spaces.
pub fn cargo(words: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(words.split_whitespace());
    cargo
}

/// The folder of compilers that cargo may use for the workspace's crates.
pub const COMPILERS: &str = "xtask/compilers";

/// Makes cargo use one of [`COMPILERS`].
pub fn with_compiler<'a>(cargo: &'a mut Command, name: &str) -> io::Result<&'a mut Command> {
    Ok(cargo.env("RUSTC_WORKSPACE_WRAPPER", std::path::absolute(Path::new(COMPILERS).join(name))?))
}

/// Returns a program's command with a time limit in seconds. coreutils' `timeout` ends the program and its children; it is
/// told to if the chore ends first. An interrupt from the keyboard reaches the chore alone.
pub fn bounded(seconds: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "timeout", "--kill-after=10", &seconds.to_string()]);
    command.arg(program).stdin(Stdio::null());
    command
}

/// Returns whether `timeout` had to end a program.
pub fn was_ended(status: ExitStatus) -> bool {
    matches!(status.code(), Some(124 | 137))
}

/// Returns whether `timeout` could not start a program.
pub fn never_began(status: ExitStatus) -> bool {
    matches!(status.code(), Some(125..=127))
}

/// Runs a program and captures its output.
pub fn said(command: &mut Command) -> Result<Said> {
    let Output { stdout, stderr, status } = command.output().map_err(|error| named(command, error))?;
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Said { out, err, status })
}

/// Returns the trimmed output of a program that must succeed. Its arguments have no spaces.
pub fn answer(program: &str, words: &str) -> Result<String> {
    Ok(said(Command::new(program).args(words.split(' ')))?.succeeded()?.out.trim().to_owned())
}

/// Runs a program with our own output streams. Fails if the program fails.
pub fn succeed(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| named(command, error))?;
    if status.success() { Ok(()) } else { Err(named(command, status)) }
}

fn named(command: &Command, why: impl fmt::Display) -> anyhow::Error {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    anyhow!("{}: {why}", words.join(" "))
}

/// Makes an empty folder.
pub fn emptied(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)
}

/// Returns at most the last `most` lines of a text.
pub fn tail(text: &str, most: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}

/// Returns the programs that cargo has built, from its output with `--message-format=json`.
pub fn executables(messages: &str) -> Vec<String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    messages.filter_map(|message| message["executable"].as_str().map(str::to_owned)).collect()
}

/// Returns those of them that are tests; a package's programs are built with its integration tests.
pub fn test_programs(messages: &str) -> Vec<String> {
    let is_test = |line: &&str| {
        let message = serde_json::from_str::<serde_json::Value>(line).unwrap_or_default();
        message["profile"]["test"] == true
    };
    messages.lines().filter(is_test).flat_map(executables).collect()
}

/// Runs `work` for each of `items`, one on each processor at a time. The error has the reason of each failure.
pub fn on_every_processor<T: Sync>(items: &[T], work: impl Fn(&T) -> Outcome + Sync) -> Outcome {
    let next = AtomicUsize::new(0);
    let some = || {
        let mine = std::iter::from_fn(|| items.get(next.fetch_add(1, Relaxed)));
        mine.filter_map(|item| work(item).err()).map(|failure| format!("{failure:#}")).collect::<Vec<_>>()
    };
    let failures = thread::scope(|scope| {
        let most = thread::available_parallelism().map_or(1, usize::from).min(items.len());
        let workers: Vec<_> = (0..most).map(|_| scope.spawn(some)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics")).collect::<Vec<_>>()
    });
    ensure!(failures.is_empty(), failures.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let sh = |script, seconds| said(bounded(seconds, "sh").args(["-c", script])).unwrap();
        let ended = sh("echo said; echo more >&2; exit 3", 10);
        assert_eq!((ended.to_string(), was_ended(ended.status)), ("said\nmore\n".to_owned(), false));
        assert!(ended.succeeded().is_err_and(|error| error.to_string().contains("exit status: 3")));
        assert!(was_ended(sh("sleep 60", 1).status));
    }

    #[test]
    fn a_program_that_cannot_start_has_not_failed() {
        assert!(never_began(said(&mut bounded(10, "/no/such/program")).unwrap().status));
        assert!(!never_began(said(bounded(10, "sh").args(["-c", "exit 101"])).unwrap().status));
    }

    #[test]
    fn a_program_ends_with_the_chore_that_runs_it() {
        let mut program = bounded(600, "sh");
        // Not at once: `timeout` leaves a program alone of whose start it has not heard.
        program.args(["-c", "sleep 1; echo $$; exec sleep 500"]);
        // A chore that runs it, and is killed as soon as it has begun.
        let chore = "\"$@\" 2>&1 | { read pid; echo $pid; kill -9 $$; }";
        let mut killed = Command::new("sh");
        killed.args(["-c", chore, "sh"]).arg(program.get_program()).args(program.get_args());
        let said = said(&mut killed).unwrap();
        let process = Path::new("/proc").join(said.out.trim());
        assert!(!said.status.success() && !said.out.trim().is_empty(), "{said}");
        let is_gone = || {
            let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
            !state.contains("(sleep) S")
        };
        let soon = (0..200).any(|_| {
            thread::sleep(Duration::from_millis(100));
            is_gone()
        });
        assert!(soon, "process {} still runs", said.out.trim());
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages =
            "{\"executable\":null}\n{\"executable\":\"/t/a-1\",\"a\":1}\nwords\n{\"executable\":\"/t/b\"}";
        assert_eq!(executables(messages), ["/t/a-1", "/t/b"]);
        let messages = "{\"executable\":\"/t/a-1\",\"profile\":{\"test\":true}}\nwords\n\
                        {\"executable\":\"/t/b\",\"profile\":{\"test\":false}}";
        assert_eq!(test_programs(messages), ["/t/a-1"]);
    }

    #[test]
    fn every_failure_is_reported() {
        let work = |item: &u32| if item.is_multiple_of(2) { Ok(()) } else { Err(anyhow!("{item}")) };
        assert!(on_every_processor(&[0, 2, 4], work).is_ok());
        let failures = on_every_processor(&[1, 2, 3], work).unwrap_err().to_string();
        assert!(["1\n3", "3\n1"].contains(&failures.as_str()), "{failures}");
    }
}
