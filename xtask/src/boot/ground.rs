//! What a boot needs: an emulator, busybox, Debian's kernel, and our hypervisor. What is fetched or made stays in
//! `target/boot`.

use super::initrd;
use super::machine::{Pc, Run};
use crate::emulator::{self, Program};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package whose newest dependency is the kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
const HYPERVISOR: Program =
    Program { package: "slat-hypervisor", name: "hypervisor", target: "x86_64-unknown-none" };

/// Everything is there.
pub struct Ground {
    /// For files of ours.
    pub folder: PathBuf,
    /// The emulator's program.
    pub emulator: PathBuf,
    /// The kernel's file.
    pub kernel: PathBuf,
    /// What package it is from.
    pub kernel_version: String,
    /// The initial file system.
    pub initrd: PathBuf,
    /// The hypervisor, an ELF file.
    pub hypervisor: PathBuf,
}

impl Ground {
    /// Finds, fetches and builds it. An error of the type [`Missing`](emulator::Missing) says what is not installed.
    pub fn prepare(root: &Path, pc: Pc) -> Result<Self, Box<dyn Error>> {
        let (tool, package) = pc.tool();
        let emulator = emulator::find(tool, package)?;
        let busybox = emulator::find("busybox", "busybox-static")?;
        emulator::find("apt-get", "apt")?;
        emulator::find("dpkg-deb", "dpkg")?;
        let busybox = fs::read(busybox)?;
        if has_interpreter(&busybox) {
            return Err(
                "busybox needs libraries: the Debian package busybox-static has one that needs none".into()
            );
        }
        let folder = root.join("target/boot");
        fs::create_dir_all(&folder)?;
        let initrd = folder.join("initrd");
        fs::write(&initrd, initrd::archive(&busybox))?;
        let package =
            newest_kernel()?.ok_or("apt knows no Debian kernel: run apt-get update, on a Debian system")?;
        let kernel = fetch(&folder, &package)?;
        let hypervisor = HYPERVISOR.build(root, &[])?;
        Ok(Self { folder, emulator, kernel, kernel_version: package, initrd, hypervisor })
    }

    /// Boots a machine with so many processors, with these words for the hypervisor; `trace`, if there is one, is what it tells the debug console.
    pub fn boot(
        &self,
        pc: Pc,
        words: &[String],
        cpus: u32,
        by_instructions: bool,
        trace: Option<&Path>,
    ) -> Result<Run, Box<dyn Error>> {
        pc.run(self, words, cpus, by_instructions, trace)
    }
}

/// Whether an ELF file is loaded by another program: then it is not all there is to it.
fn has_interpreter(elf: &[u8]) -> bool {
    const INTERPRETER: [u8; 4] = [3, 0, 0, 0];
    let half =
        |at: usize| elf.get(at..at + 2).map_or(0, |half| usize::from(u16::from_le_bytes([half[0], half[1]])));
    let (size, count) = (half(0x36), half(0x38));
    // Program headers lie behind the file's own, which has 64 bytes.
    (0..count)
        .any(|index| elf.get(64 + index * size..).is_some_and(|header| header.starts_with(&INTERPRETER)))
}

/// The kernel package that the distribution would install now.
fn newest_kernel() -> Result<Option<String>, Box<dyn Error>> {
    let answer = Command::new("apt-cache").args(["depends", META_PACKAGE]).output()?;
    let text = String::from_utf8_lossy(&answer.stdout);
    Ok(text.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).map(String::from))
}

/// The kernel of this package: from the last time, or by the distribution's own client.
fn fetch(folder: &Path, package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let kernel = folder.join(format!("{package}.vmlinuz"));
    if kernel.is_file() {
        return Ok(kernel);
    }
    eprintln!("boot: fetching {package}");
    let scratch = folder.join("package");
    // Nothing may be there yet.
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch)?;
    let quiet = ["-o", "APT::Sandbox::User=root", "-qq"];
    succeed(Command::new("apt-get").args(quiet).args(["download", package]).current_dir(&scratch))?;
    let file = only(&scratch, ".deb")?;
    succeed(Command::new("dpkg-deb").arg("--extract").arg(file).arg(scratch.join("files")))?;
    fs::copy(only(&scratch.join("files/boot"), "vmlinuz-")?, &kernel)?;
    fs::remove_dir_all(&scratch)?;
    Ok(kernel)
}

/// The one file in a folder whose name has this part.
fn only(folder: &Path, part: &str) -> Result<PathBuf, Box<dyn Error>> {
    let mut files = fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    let fits = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    files.find(fits).ok_or_else(|| format!("{}: no file called {part}", folder.display()).into())
}

fn succeed(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status()?;
    let name = command.get_program().to_string_lossy();
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_an_interpreter_is_not_alone() {
        let mut elf = vec![0; 64 + 2 * 56];
        (elf[0x36], elf[0x38]) = (56, 2);
        assert!(!has_interpreter(&elf));
        elf[64 + 56] = 3;
        assert!(has_interpreter(&elf));
        assert!(!has_interpreter(b"#!/bin/sh"));
    }
}
