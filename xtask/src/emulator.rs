//! Emulators, and the bare-metal programs that run in them.
//!
//! An emulator or a Rust target may be missing. Then the chore is skipped, with one line that says what to install; if
//! `SLAT_REQUIRE_EMULATORS=1` is set, as CI does, a skip is a failure.
//!
//! Bochs has no `-kernel`: the program is in a ROM, and copies itself to its place (`proof/walkers/x86/src/boot.s`).

use crate::outcome::Outcome;
use crate::process::{answer, bounded, cargo, succeed, was_ended};
use anyhow::{Context as _, Result, bail, ensure};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Variable that forbids skips.
pub const REQUIRED: &str = "SLAT_REQUIRE_EMULATORS";

/// A missing tool, and how to get it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Missing(String);

/// Finds a program of a Debian package.
pub fn find(program: &str, package: &str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.ok_or_else(|| Missing(format!("{program} is missing: install the Debian package {package}")))
}

/// Prints what is missing, and skips; or fails, if this variable is 1.
pub fn or_skipped(outcome: Outcome, required: &str) -> Outcome {
    outcome.or_else(|error| {
        println!("skipped: {}", error.downcast::<Missing>()?);
        let is_required = std::env::var_os(required).is_some_and(|value| value == "1");
        ensure!(!is_required, "something is missing, and {required}=1");
        Ok(())
    })
}

/// A program of `proof/walkers/`.
#[derive(serde::Deserialize)]
pub struct Program {
    pub package: String,
    pub name: String,
    /// Rust's name of its target.
    pub target: String,
}

impl Program {
    /// Builds it with these environment variables, and returns its path. [`Missing`] without a compiler for the target.
    pub fn build(&self, environment: &[(&str, String)]) -> Result<PathBuf> {
        let folder = answer("rustc", &format!("--print target-libdir --target {}", self.target));
        if !folder.is_ok_and(|folder| Path::new(&folder).is_dir()) {
            let missing = format!("the Rust target {0} is missing: rustup target add {0}", self.target);
            return Err(Missing(missing).into());
        }
        let folder = std::path::absolute("target/walkers/build")?;
        let mut cargo = cargo("build --quiet --release --locked");
        cargo.args(["--package", &self.package, "--bin", &self.name, "--target", &self.target]);
        cargo.arg("--target-dir").arg(&folder);
        cargo.envs(environment.iter().map(|(name, value)| (name, value)));
        // Each program has a linker script of its own, which outside flags would replace; the folder of those scripts
        // has the configuration of the targets.
        succeed(cargo.env_remove("RUSTFLAGS").current_dir("proof/walkers"))?;
        Ok(folder.join(&self.target).join("release").join(&self.name))
    }
}

/// Returns QEMU's command with the options of every run: one processor's instructions at a time, no screen, the serial
/// line on its standard error.
pub fn qemu(emulator: &Path, seconds: u32) -> Command {
    let mut qemu = bounded(seconds, emulator);
    let words = "-accel tcg -display none -monitor none -serial file:/dev/stderr -no-reboot";
    qemu.args(words.split(' '));
    qemu
}

/// Runs an emulator whose standard error is its serial line. Returns its output and its exit status, and calls `line`
/// for each line. Fails at the time limit. The program in the emulator decides what the exit status means, and prints a
/// last line.
pub fn run(mut emulator: Command, mut line: impl FnMut(&str)) -> Result<(String, ExitStatus)> {
    let mut child = emulator.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut serial = BufReader::new(child.stderr.take().context("no serial line")?);
    let (mut text, mut bytes) = (String::new(), Vec::new());
    while serial.read_until(b'\n', &mut bytes)? > 0 {
        let new = String::from_utf8_lossy(&bytes).replace('\r', "");
        line(new.trim_end());
        text += &new;
        bytes.clear();
    }
    let status = child.wait()?;
    ensure!(!was_ended(status), "{text}\nended, since it took too long");
    Ok((text, status))
}

/// A PC whose processor has VMX and EPT (Intel's models) or AMD-V (`ryzen`). The serial port is its standard error.
/// Only that output counts, because Bochs always ends with status 1.
pub struct Bochs<'a> {
    /// A model as `bochs --help cpu` lists them: `corei7_skylake_x`.
    pub model: &'a str,
    /// Number of processors, as cores of one package.
    pub processors: u32,
    pub program: &'a Path,
    /// An optional raw disk for the program.
    pub disk: Option<&'a Path>,
    /// A folder for this run's files, made if it is missing.
    pub folder: &'a Path,
}

/// Bytes of the ROM, which Bochs puts at the end of the 32-bit addresses.
const ROM: usize = 2 << 20;
/// Bytes of a sector, and of a cylinder: 16 tracks of 63 sectors.
pub const SECTOR: usize = 512;
pub const CYLINDER: usize = SECTOR * 63 * 16;

impl Bochs<'_> {
    /// Writes all needed files, and returns the command that runs it for `seconds` seconds. Ignore its own output.
    /// [`Missing`] without Bochs.
    pub fn command(&self, seconds: u32) -> Result<Command> {
        let bochs = find("bochs", "bochs")?;
        fs::create_dir_all(self.folder)?;
        fs::write(self.folder.join("rom.bin"), rom(&fs::read(self.program)?)?)?;
        fs::write(self.folder.join("bochsrc"), self.configuration()?)?;
        // The debugger of Debian's Bochs waits for a command before the first instruction.
        fs::write(self.folder.join("debugger"), "c\n")?;
        let mut command = bounded(seconds, bochs);
        command.arg("-q").arg("-f").arg(self.folder.join("bochsrc"));
        command.arg("-rc").arg(self.folder.join("debugger"));
        Ok(command)
    }

    /// A configuration without firmware, screen and unused devices.
    fn configuration(&self) -> Result<String> {
        let mut disk = String::from("ata0: enabled=0");
        if let Some(path) = self.disk {
            let (cylinders, path) = (fs::metadata(path)?.len() / CYLINDER as u64, path.display());
            disk = format!(
                "ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
                 ata0-master: type=disk, mode=flat, path={path}, cylinders={cylinders}, heads=16, spt=63"
            );
        }
        let (folder, processors) = (self.folder.display().to_string(), self.processors.to_string());
        let set = [("FOLDER", &*folder), ("MODEL", self.model), ("PROCESSORS", &processors), ("DISK", &disk)];
        let text = include_str!("bochsrc").to_owned();
        Ok(set.iter().fold(text, |text, (name, value)| text.replace(name, value)))
    }
}

/// Makes the ROM of a program: its one segment, up to the last byte in the file (the program clears the rest itself),
/// and its section `.rom` at the reset address.
fn rom(elf: &[u8]) -> Result<Vec<u8>> {
    let file = object::read::elf::ElfFile64::<object::LittleEndian>::parse(elf)?;
    let mut segments = file.segments();
    let (Some(segment), None) = (segments.next(), segments.next()) else {
        bail!("a program of proof/walkers/ has one segment");
    };
    let code = file.section_by_name(".rom").context("the program has no ROM")?.data()?;
    let mut rom = segment.data()?.to_vec();
    ensure!(rom.len() + code.len() <= ROM, "the program is larger than a ROM can be");
    rom.resize(ROM - code.len(), 0);
    rom.extend(code);
    Ok(rom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_emulator_is_reported_in_one_line() {
        assert!(find("sh", "dash").is_ok());
        let missing = find("no-such-emulator", "qemu-system-none").unwrap_err();
        let line = "no-such-emulator is missing: install the Debian package qemu-system-none";
        assert_eq!(missing.to_string(), line);
        assert!(or_skipped(Err(anyhow::anyhow!("other")), REQUIRED).is_err());
    }

    #[test]
    fn an_emulator_is_heard_line_by_line_and_ended_in_time() {
        let shell = |script, seconds| {
            let mut shell = bounded(seconds, "sh");
            shell.args(["-c", script]);
            let mut lines = Vec::new();
            run(shell, |line| lines.push(line.to_owned())).map(|(text, status)| (text, status.code(), lines))
        };
        let (text, status, lines) = shell("printf 'one\\r\\ntwo' >&2; exit 3", 10).unwrap();
        assert_eq!((text.as_str(), status, lines), ("one\ntwo", Some(3), vec!["one".into(), "two".into()]));
        assert!(shell("sleep 60", 1).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn an_image_that_is_no_program_of_ours_is_refused() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(rom(&own).is_err() && rom(b"#!/bin/sh").is_err());
    }
}
