//! Records the bundled traces again, from two real programs and a real kernel: the named ones, or all. Needs
//! valgrind, zstd, gcc, and what `cargo xtask boot` needs; takes ten minutes.
//!
//! ```text
//! input ──▶ program under valgrind's lackey ──pipe──▶ parser ──▶ reduce ──▶ text in memory ──▶ zstd ──▶ crates/vcpu/traces/
//! Linux in slat's hypervisor ──▶ its faults ──────────────────────────────────────┘
//! ```
//! [`Filter`] keeps a few accesses in a thousand. The raw trace, gigabytes of it, is never stored. The output
//! begins with lines that say how it was made; parsers of lackey's text skip them like valgrind's own.
//!
//! `cc1` accesses thousands of pages of code, and writes small objects on a heap. `sort` has a hundred pages of
//! code, and reads one block of 64 MiB and more without locality. Their input is always the same.
//!
//! The code that serves a kernel's faults records its boot (`cargo xtask boot --trace`). Each timer interrupt
//! unmaps everything, so a page appears once for each 4 ms of virtual time in which it is used, as on an
//! MMU under memory pressure.

use slat_vcpu::trace::{Access, Filter, Reader};
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Cursor, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Pages in the filter: the entries of a small first-level TLB.
const FILTER: usize = 64;
/// Folder for the programs' input, and for text to compress.
const FOLDER: &str = "target/record";

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const NAMES: [&str; 3] = ["cc1", "sort", "boot"];

fn main() -> Result {
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = NAMES.map(String::from).into();
    }
    // Checked before the first recording.
    if let Some(wrong) = names.iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(format!("{wrong}: no trace; there are {}", NAMES.join(", ")).into());
    }
    for tool in ["valgrind", "zstd", "gcc"] {
        answer(tool, &["--version"])?;
    }
    fs::create_dir_all(FOLDER)?;
    for name in &names {
        let started = Instant::now();
        eprintln!("{name}: recording, some minutes ...");
        let text = match name.as_str() {
            "cc1" => cc1()?,
            "sort" => sort()?,
            _ => of_boot()?,
        };
        save(name, &text, started)?;
    }
    Ok(())
}

/// Returns the trimmed output of a program that succeeds.
fn answer(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {}: {}", words.join(" "), output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Compresses a trace to its place and prints what it is.
fn save(name: &str, text: &str, started: Instant) -> Result {
    let [plain, file] = [format!("{FOLDER}/{name}.lackey"), format!("crates/vcpu/traces/{name}.lackey.zst")];
    fs::write(&plain, text)?;
    answer("zstd", &["-19", "--quiet", "--force", &plain, "-o", &file])?;
    for line in text.lines().take_while(|line| line.starts_with("==")) {
        eprintln!("  {line}");
    }
    eprintln!("  {} bytes in {file}, {} s", fs::metadata(&file)?.len(), started.elapsed().as_secs());
    Ok(())
}

/// Returns the faults of a boot as a trace, without dropping any.
fn of_boot() -> Result<String> {
    let file = format!("{FOLDER}/boot.faults");
    let kernel = answer("cargo", &["xtask", "boot", "--trace", &file])?;
    let faults = fs::read_to_string(file)?;
    let mut reader = Reader::new("boot", Cursor::new(faults.clone()))?.strict(true);
    let (mut touched, mut accesses, mut batch) = (HashSet::new(), 0, Vec::new());
    while reader.fill(&mut batch, 4096)? > 0 {
        accesses += batch.len();
        touched.extend(batch.drain(..).flat_map(Access::pages));
    }
    Ok(format!(
        "==slat== program: {kernel} to its shell and power-off, 512 MiB\n\
         ==slat== recorded: faults under proof/walkers/hypervisor, pages of 4 KiB, all unmapped by each timer interrupt\n\
         ==slat== accesses: {accesses}, of a size that is not known\n\
         ==slat== pages: {} of 4 KiB\n{faults}",
        touched.len(),
    ))
}

fn cc1() -> Result<String> {
    const SOURCE: &str = include_str!("input.c");
    fs::write(format!("{FOLDER}/input.c"), SOURCE)?;
    let input = format!("a generated C file of 2 functions, {} bytes", SOURCE.len());
    // The compiler proper: `gcc` only starts it, and lackey does not follow.
    let (path, version) = (answer("gcc", &["-print-prog-name=cc1"])?, answer("gcc", &["--version"])?);
    of_program("cc1", &path, "-quiet -O1 -o /dev/null input.c", &version, &input)
}

fn sort() -> Result<String> {
    let (input, version) =
        (long_lines(&Path::new(FOLDER).join("input.txt"))?, answer("sort", &["--version"])?);
    let args = "--parallel=1 --buffer-size=200M -o /dev/null input.txt";
    of_program("sort", "sort", args, &version, &input)
}

/// Writes lines for `sort` of about a page each, so that a comparison visits two pages.
fn long_lines(path: &Path) -> io::Result<String> {
    const BYTES: u64 = 66 << 20;
    // Marsaglia's xorshift, for varied input.
    let mut state = 0x5157_4c49_4e45_5321_u64;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % limit
    };
    let filler = "abcdefghijklmnopqrstuvwxyz".repeat(128);
    let mut file = BufWriter::new(File::create(path)?);
    let (mut bytes, mut lines) = (0, 0);
    while bytes < BYTES {
        let (key, len) = (below(100_000_000), 1500 + below(1500));
        writeln!(file, "{key:08} {}", &filler[..len as usize])?;
        bytes += 10 + len;
        lines += 1;
    }
    file.flush()?;
    Ok(format!("{lines} lines of about 2 KiB with random keys, {} MiB", bytes >> 20))
}

/// Runs a program, whose input is in [`FOLDER`]; returns its reduced trace, which begins with its version and
/// input.
fn of_program(name: &str, path: &str, args: &str, version: &str, input: &str) -> Result<String> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=lackey", "--trace-mem=yes", path]).args(args.split(' '));
    valgrind.current_dir(FOLDER).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // The environment is on the traced program's stack, so it must be constant, or addresses move.
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut child = valgrind.env_clear().env("PATH", folders).env("LC_ALL", "C").spawn()?;
    let stderr = child.stderr.take().ok_or("valgrind has no output")?;
    let mut reader = Reader::new(name, stderr)?.strict(true);
    let (mut filter, mut touched, mut kept) = (Filter::new(FILTER), HashSet::new(), 0u64);
    let (mut body, mut batch) = (String::new(), Vec::new());
    while reader.fill(&mut batch, 4096)? > 0 {
        for access in batch.drain(..).filter(|&access| filter.keep(access)) {
            writeln!(body, "{access}")?;
            touched.extend(access.pages());
            kept += 1;
        }
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("{name} under valgrind: {status}").into());
    }
    let (before, tool) = (reader.lines() - reader.skipped(), answer("valgrind", &["--version"])?);
    Ok(format!(
        "==slat== program: {}\n\
         ==slat== command: {name} {args}\n\
         ==slat== input: {input}\n\
         ==slat== recorded: {tool} --tool=lackey --trace-mem=yes\n\
         ==slat== reduced: what one of the last {FILTER} pages kept would answer is dropped\n\
         ==slat== accesses: {before} before, {kept} after\n\
         ==slat== pages: {} of 4 KiB, none lost\n{body}",
        version.lines().next().unwrap_or_default(),
        touched.len(),
    ))
}
