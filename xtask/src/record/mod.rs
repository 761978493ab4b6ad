//! `record-traces`: makes the bundled traces anew, from two real programs and a real kernel.
//!
//! ```text
//! input ──▶ program under valgrind's lackey ──pipe──▶ parser ──▶ reduce ──▶ text in memory ──▶ zstd ──▶ traces/
//! Linux in our hypervisor ──▶ its faults ────────────────────────────────────────┘
//! ```
//! [`program`] says what is run on what, [`input`] makes the input, the same each time, and [`reduce`] keeps
//! a few accesses in a thousand. The raw trace, gigabytes of it, is never stored. What is written begins with lines
//! that tell the reader how it was made; parsers of lackey's text skip them, as they skip valgrind's own.
//!
//! A kernel's boot ([`crate::boot`]) is recorded by who serves its faults. Everything is unmapped on each timer interrupt,
//! so a page is told once for each 4 ms of virtual time in which it is used: what an MMU under pressure sees.

mod input;
mod program;
mod reduce;

use crate::Outcome;
use program::Program;
use reduce::{Filter, pages};
use slat_vcpu::trace::Reader;
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, time::Instant};

/// Pages that the filter remembers: the entries of a small first-level TLB.
const FILTER: usize = 64;

/// The trace of a boot.
const BOOT: &str = "boot";

/// The chore: all traces, or those that are named.
pub fn run(root: &Path, names: &[String]) -> Outcome {
    let programs = program::all()?;
    let known: Vec<&str> = programs.iter().map(|program| program.name).chain([BOOT]).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no trace is called {name}; there are {}", known.join(", ")).into());
    }
    let wanted = |trace: &str| names.is_empty() || names.iter().any(|name| name == trace);
    // Better now than after the first recording.
    for tool in ["valgrind", "zstd"] {
        program::version(tool)?;
    }
    let scratch = Scratch::new()?;
    for program in programs.iter().filter(|program| wanted(program.name)) {
        let started = Instant::now();
        eprintln!("{}: recording, some minutes ...", program.name);
        save(root, program.name, &record(program, &scratch.0)?, started)?;
    }
    let started = Instant::now();
    if wanted(BOOT) {
        let (faults, kernel) = crate::boot::faults(root)?;
        save(root, BOOT, &of_boot(&faults, &kernel)?, started)?;
    }
    Ok(())
}

/// Compresses a trace into its place and says what it is.
fn save(root: &Path, name: &str, text: &str, started: Instant) -> Outcome {
    let file = root.join(format!("traces/{name}.lackey.zst"));
    compress(text, &file)?;
    for line in text.lines().take_while(|line| line.starts_with("==")) {
        eprintln!("  {line}");
    }
    let (bytes, seconds) = (fs::metadata(&file)?.len(), started.elapsed().as_secs());
    eprintln!("  {} bytes in {}, {seconds} s", bytes, file.display());
    Ok(())
}

/// The faults of a boot as a trace. None is dropped.
fn of_boot(faults: &str, kernel: &str) -> Result<String, Box<dyn Error>> {
    let mut reader = Reader::new(BOOT, std::io::Cursor::new(faults.to_owned()))?.strict(true);
    let (mut touched, mut accesses, mut batch) = (HashSet::new(), 0, Vec::new());
    while reader.fill(&mut batch, 4096)? > 0 {
        accesses += batch.len();
        touched.extend(batch.drain(..).flat_map(pages));
    }
    Ok(format!(
        "==slat== program: {kernel} to its shell and power-off, 512 MiB\n\
         ==slat== recorded: faults under walkers/hypervisor, pages of 4 KiB, all unmapped by each timer interrupt\n\
         ==slat== accesses: {accesses}, of a size that is not known\n\
         ==slat== pages: {} of 4 KiB\n{faults}",
        touched.len(),
    ))
}

/// Runs `program` and returns its reduced trace.
fn record(program: &Program, scratch: &Path) -> Result<String, Box<dyn Error>> {
    let input = (program.input)(&scratch.join(program.input_name))?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=lackey", "--trace-mem=yes"]).arg(&program.path).args(&program.args);
    valgrind.current_dir(scratch).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // The environment lies on the traced program's stack: the same each time, or addresses move.
    let path = std::env::var_os("PATH").unwrap_or_default();
    valgrind.env_clear().env("PATH", path).env("LC_ALL", "C");
    let mut child = start(&mut valgrind, "valgrind")?;

    let stderr = child.stderr.take().ok_or("valgrind has no output")?;
    let mut reader = Reader::new(program.name, stderr)?.strict(true);
    let (mut filter, mut touched, mut kept) = (Filter::new(FILTER), HashSet::new(), 0u64);
    let (mut body, mut batch) = (String::new(), Vec::new());
    while reader.fill(&mut batch, 4096)? > 0 {
        for access in batch.drain(..) {
            if filter.keep(access) {
                writeln!(body, "{access}")?;
                touched.extend(pages(access));
                kept += 1;
            }
        }
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("{} under valgrind: {status}", program.name).into());
    }

    let before = reader.lines() - reader.skipped();
    let tool = program::version("valgrind")?;
    Ok(format!(
        "==slat== program: {}\n\
         ==slat== command: {} {}\n\
         ==slat== input: {input}\n\
         ==slat== recorded: {tool} --tool=lackey --trace-mem=yes\n\
         ==slat== reduced: what one of the last {FILTER} pages kept would answer is dropped\n\
         ==slat== accesses: {before} before, {kept} after\n\
         ==slat== pages: {} of 4 KiB, none lost\n{body}",
        program.version,
        program.name,
        program.args.join(" "),
        touched.len(),
    ))
}

fn compress(text: &str, file: &Path) -> Outcome {
    let mut zstd = Command::new("zstd");
    zstd.args(["-19", "--quiet", "--force", "-o"]).arg(file).stdin(Stdio::piped());
    let mut child = start(&mut zstd, "zstd")?;
    // Dropped at once, so that zstd sees the end.
    child.stdin.take().ok_or("zstd has no input")?.write_all(text.as_bytes())?;
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("zstd: {status}").into()) }
}

/// Starts a tool that may not be there.
fn start(command: &mut Command, tool: &str) -> Result<Child, Box<dyn Error>> {
    command.spawn().map_err(|error| missing(tool, &error))
}

/// What to say when a tool cannot be started.
fn missing(tool: &str, error: &io::Error) -> Box<dyn Error> {
    match error.kind() {
        io::ErrorKind::NotFound => format!("{tool} not found: install it, e.g. apt install {tool}").into(),
        _ => format!("cannot start {tool}: {error}").into(),
    }
}

/// A folder for the programs' input, removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("slat-record-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing depends on it: at worst a folder stays behind in the system's own place for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}
