//! `record-traces`: makes the bundled traces anew, from two real programs and a real kernel.
//!
//! ```text
//! input ──▶ program under valgrind's lackey ──pipe──▶ parser ──▶ reduce ──▶ text in memory ──▶ zstd ──▶ traces/
//! Linux in our hypervisor ──▶ its faults ────────────────────────────────────────┘
//! ```
//! [`reduce`] keeps a few accesses in a thousand. The raw trace, gigabytes of it, is never stored. What is written begins
//! with lines that tell the reader how it was made; parsers of lackey's text skip them, as they skip valgrind's own.
//!
//! A compiler and a sort are recorded, unlike each other in all that matters to an MMU. Both are on any Debian with a C
//! compiler, and their input is the same each time.
//!
//! | | `cc1` | `sort` |
//! |---|---|---|
//! | code | thousands of pages, jumped about in | a hundred |
//! | data | a heap of small objects, written often | one block of 64 MiB and more, read often |
//! | locality | some, everywhere | none: each comparison looks at two lines anywhere |
//!
//! A kernel's boot ([`crate::boot`]) is recorded by who serves its faults. Everything is unmapped on each timer interrupt,
//! so a page is told once for each 4 ms of virtual time in which it is used: what an MMU under pressure sees.

mod reduce;

use crate::Outcome;
use crate::emulator::find;
use crate::process::{said, succeed};
use reduce::{Filter, pages};
use slat_vcpu::trace::Reader;
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Cursor, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Pages that the filter remembers: the entries of a small first-level TLB.
const FILTER: usize = 64;

/// For the programs' input, and text to compress.
const FOLDER: &str = "target/record";

#[derive(clap::Args)]
pub struct Args {
    /// All traces, unless some are named
    #[arg(value_name = "NAME", value_parser = ["cc1", "sort", "boot"])]
    names: Vec<String>,
}

pub fn run(args: &Args) -> Outcome {
    // Better now than after the first recording.
    for tool in ["valgrind", "zstd", "gcc"] {
        find(tool, tool)?;
    }
    fs::create_dir_all(FOLDER)?;
    for name in ["cc1", "sort", "boot"] {
        if args.names.is_empty() || args.names.iter().any(|asked| asked == name) {
            let started = Instant::now();
            eprintln!("{name}: recording, some minutes ...");
            let text = match name {
                "cc1" => of_program(&cc1()?)?,
                "sort" => of_program(&sort()?)?,
                _ => of_boot()?,
            };
            save(name, &text, started)?;
        }
    }
    Ok(())
}

/// Compresses a trace into its place and says what it is.
fn save(name: &str, text: &str, started: Instant) -> Outcome {
    let [plain, file] = [format!("{FOLDER}/{name}.lackey"), format!("traces/{name}.lackey.zst")];
    fs::write(&plain, text)?;
    succeed(Command::new("zstd").args(["-19", "--quiet", "--force", &plain, "-o", &file]))?;
    for line in text.lines().take_while(|line| line.starts_with("==")) {
        eprintln!("  {line}");
    }
    eprintln!("  {} bytes in {file}, {} s", fs::metadata(&file)?.len(), started.elapsed().as_secs());
    Ok(())
}

/// The faults of a boot as a trace. None is dropped.
fn of_boot() -> Result<String, Box<dyn Error>> {
    let (faults, kernel) = crate::boot::faults()?;
    let mut reader = Reader::new("boot", Cursor::new(faults.clone()))?.strict(true);
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

/// One program to record, whose input lies in [`FOLDER`].
struct Program {
    name: &'static str,
    /// Where it is; a bare name is looked up in `PATH`.
    path: String,
    args: &'static str,
    /// First line of what it says of itself.
    version: String,
    /// What its input is.
    input: String,
}

fn cc1() -> Result<Program, Box<dyn Error>> {
    const SOURCE: &str = include_str!("input.c");
    fs::write(format!("{FOLDER}/input.c"), SOURCE)?;
    Ok(Program {
        name: "cc1",
        // The compiler proper: `gcc` itself only starts it, and lackey does not follow.
        path: first_line("gcc", "-print-prog-name=cc1")?,
        args: "-quiet -O1 -o /dev/null input.c",
        version: first_line("gcc", "--version")?,
        input: format!("a generated C file of 2 functions, {} bytes", SOURCE.len()),
    })
}

fn sort() -> Result<Program, Box<dyn Error>> {
    Ok(Program {
        name: "sort",
        path: "sort".into(),
        args: "--parallel=1 --buffer-size=200M -o /dev/null input.txt",
        version: first_line("sort", "--version")?,
        input: long_lines(&Path::new(FOLDER).join("input.txt"))?,
    })
}

/// Lines for `sort`, as long as a page is large or nearly: a comparison of two is a visit to two pages.
fn long_lines(path: &Path) -> io::Result<String> {
    const BYTES: u64 = 66 << 20;
    // Marsaglia's xorshift: enough to make input that looks alive.
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

/// Runs `program` and returns its reduced trace.
fn of_program(program: &Program) -> Result<String, Box<dyn Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=lackey", "--trace-mem=yes", &program.path]).args(program.args.split(' '));
    valgrind.current_dir(FOLDER).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // The environment lies on the traced program's stack: the same each time, or addresses move.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut child = valgrind.env_clear().env("PATH", path).env("LC_ALL", "C").spawn()?;

    let stderr = child.stderr.take().ok_or("valgrind has no output")?;
    let mut reader = Reader::new(program.name, stderr)?.strict(true);
    let (mut filter, mut touched, mut kept) = (Filter::new(FILTER), HashSet::new(), 0u64);
    let (mut body, mut batch) = (String::new(), Vec::new());
    while reader.fill(&mut batch, 4096)? > 0 {
        for access in batch.drain(..).filter(|&access| filter.keep(access)) {
            writeln!(body, "{access}")?;
            touched.extend(pages(access));
            kept += 1;
        }
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("{} under valgrind: {status}", program.name).into());
    }

    let Program { name, args, version, input, .. } = program;
    let (before, tool) = (reader.lines() - reader.skipped(), first_line("valgrind", "--version")?);
    Ok(format!(
        "==slat== program: {version}\n\
         ==slat== command: {name} {args}\n\
         ==slat== input: {input}\n\
         ==slat== recorded: {tool} --tool=lackey --trace-mem=yes\n\
         ==slat== reduced: what one of the last {FILTER} pages kept would answer is dropped\n\
         ==slat== accesses: {before} before, {kept} after\n\
         ==slat== pages: {} of 4 KiB, none lost\n{body}",
        touched.len(),
    ))
}

/// First line of what a tool prints when it is told `argument`.
fn first_line(tool: &str, argument: &str) -> Result<String, Box<dyn Error>> {
    let text = said(Command::new(tool).arg(argument))?.succeeded()?.out;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
