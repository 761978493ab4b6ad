//! A Firecracker, controlled by its API and by its guest's serial port.

use crate::daemon::{BOUND, Outcome};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The beginnings of the guest's lines; other lines are Firecracker's own.
const GUEST: [&str; 6] = ["filled: ", "gave back: ", "round ", "wrong: ", "verdict: ", "panic"];

/// A running Firecracker; killed when it is dropped.
pub struct Firecracker {
    child: Child,
    lines: Receiver<String>,
    /// The wrong pages that the guest has named.
    pub wrong: Vec<u64>,
    api: PathBuf,
}

impl Firecracker {
    /// Starts Firecracker with a name for its files in the current folder, and these flags.
    pub fn start(program: &Path, name: &str, flags: &[&str]) -> Outcome<Self> {
        let api = PathBuf::from(format!("{name}.api"));
        _ = std::fs::remove_file(&api);
        let mut firecracker = Command::new(program);
        // Its filter of system calls is made for one C library, and is not tested here.
        firecracker.arg("--api-sock").arg(&api).arg("--no-seccomp").args(flags);
        firecracker.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = firecracker.stderr(File::create(format!("{name}.txt"))?).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines
                .filter(|line| GUEST.iter().any(|word| line.starts_with(word)))
                .try_for_each(|line| send.send(line))
        });
        let began = Instant::now();
        while !api.exists() {
            if began.elapsed() > BOUND || child.try_wait()?.is_some() {
                return Err(format!("Firecracker does not start: see {name}.txt").into());
            }
            sleep(Duration::from_millis(2));
        }
        Ok(Self { child, lines, wrong: Vec::new(), api })
    }

    /// Restores a machine from its state and from a pager's socket, and lets it run.
    pub fn load(&self, state: &str, pager: &str) -> Outcome<()> {
        let backend = json!({ "backend_type": "Uffd", "backend_path": pager });
        self.ask(
            "PUT",
            "/snapshot/load",
            &json!({ "snapshot_path": state, "mem_backend": backend, "resume_vm": true, "enable_diff_snapshots": true }),
        )
    }

    /// Stops the vCPUs, or lets them run.
    pub fn set(&self, state: &str) -> Outcome<()> {
        self.ask("PATCH", "/vm", &json!({ "state": state }))
    }

    /// Saves the stopped machine.
    pub fn save(&self, kind: &str, state: &str, memory: &str) -> Outcome<()> {
        self.ask(
            "PUT",
            "/snapshot/create",
            &json!({ "snapshot_type": kind, "snapshot_path": state, "mem_file_path": memory }),
        )
    }

    /// Makes a request of the API.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Outcome<()> {
        let mut stream = UnixStream::connect(&self.api)?;
        stream.set_read_timeout(Some(BOUND))?;
        let body = body.to_string();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = [0; 4096];
        let read = stream.read(&mut answer).map_err(|error| format!("{method} {path}: {error}"))?;
        let answer = String::from_utf8_lossy(&answer[..read]);
        if answer.starts_with("HTTP/1.1 2") {
            Ok(())
        } else {
            Err(format!("{method} {path}: {answer}").into())
        }
    }

    /// Sends bytes to the guest.
    pub fn say(&mut self, bytes: &str) -> Outcome<()> {
        Ok(self.child.stdin.as_mut().ok_or("no input")?.write_all(bytes.as_bytes())?)
    }

    /// Waits for the guest's line that begins with this word, and returns the numbers in it.
    pub fn hear(&mut self, word: &str) -> Outcome<Vec<u64>> {
        loop {
            let line =
                self.lines.recv_timeout(BOUND).map_err(|_| format!("the guest does not say {word:?}"))?;
            let numbers =
                line.split(|letter: char| !letter.is_ascii_digit()).filter_map(|word| word.parse().ok());
            if line.starts_with("wrong: ") {
                eprintln!("{line}");
                self.wrong.extend(numbers.take(1));
            } else if line.starts_with(word) {
                return Ok(numbers.collect());
            } else {
                return Err(format!("the guest says {line:?} instead of {word:?}").into());
            }
        }
    }

    /// Waits for the guest's verdict and for the end of the machine. Returns the numbers of rounds, of pages, and of
    /// wrong ones.
    pub fn verdict(&mut self) -> Outcome<Vec<u64>> {
        let verdict = self.hear("verdict: ")?;
        let status = self.end()?;
        if status.success() { Ok(verdict) } else { Err(format!("Firecracker ends with {status}").into()) }
    }

    /// Waits for the end of the process.
    pub fn end(&mut self) -> Outcome<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > BOUND {
                return Err("Firecracker does not end".into());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Returns its process number.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Firecracker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_file(&self.api);
    }
}
