//! What a boot needs: an emulator, busybox, Debian's kernel, and our hypervisor. What is fetched or made stays in
//! `target/boot`.

use super::machine::Pc;
use crate::emulator::{Program, find};
use crate::process::{emptied, said, succeed};
use object::LittleEndian;
use object::elf::PT_INTERP;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use std::error::Error;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package whose newest dependency is the kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
const HYPERVISOR: Program =
    Program { package: "slat-hypervisor", name: "hypervisor", target: "x86_64-unknown-none" };

pub struct Ground {
    pub pc: Pc,
    /// For files of ours.
    pub folder: PathBuf,
    pub emulator: PathBuf,
    pub kernel: PathBuf,
    /// What package it is from.
    pub kernel_version: String,
    pub initrd: PathBuf,
    pub hypervisor: PathBuf,
}

impl Ground {
    /// Finds, fetches and builds it. An error of the type [`Missing`](crate::emulator::Missing) says what is not installed.
    pub fn prepare(pc: Pc) -> Result<Self, Box<dyn Error>> {
        let emulator = find(pc.tool.0, pc.tool.1)?;
        let busybox = fs::read(find("busybox", "busybox-static")?)?;
        find("apt-get", "apt")?;
        find("dpkg-deb", "dpkg")?;
        if has_interpreter(&busybox)? {
            let remedy = "the Debian package busybox-static has one that needs none";
            return Err(format!("busybox needs libraries: {remedy}").into());
        }
        let folder = std::path::absolute("target/boot")?;
        fs::create_dir_all(&folder)?;
        let initrd = folder.join("initrd");
        fs::write(&initrd, archive(&busybox)?)?;
        let package =
            newest_kernel()?.ok_or("apt knows no Debian kernel: run apt-get update, on a Debian system")?;
        let kernel = fetch(&folder, &package)?;
        let hypervisor = HYPERVISOR.build(&[])?;
        Ok(Self { pc, folder, emulator, kernel, kernel_version: package, initrd, hypervisor })
    }
}

/// Whether a program is loaded by another one: then it is not all there is to it.
fn has_interpreter(elf: &[u8]) -> Result<bool, Box<dyn Error>> {
    let file = ElfFile64::<LittleEndian>::parse(elf)?;
    let mut headers = file.elf_program_headers().iter();
    Ok(headers.any(|header| header.p_type(LittleEndian) == PT_INTERP))
}

/// The guest's whole file system: busybox and a script.
fn archive(busybox: &[u8]) -> std::io::Result<Vec<u8>> {
    const FOLDER: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    let entries: [(&str, u32, &[u8]); 3] = [
        ("bin", FOLDER, &[]),
        ("bin/busybox", PROGRAM, busybox),
        ("init", PROGRAM, include_bytes!("init.sh")),
    ];
    let files =
        entries.map(|(name, mode, data)| (cpio::NewcBuilder::new(name).mode(mode), Cursor::new(data)));
    cpio::write_cpio(files.into_iter(), Vec::new())
}

/// The kernel package that the distribution would install now.
fn newest_kernel() -> Result<Option<String>, Box<dyn Error>> {
    let answer = said(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
    Ok(answer.out.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).map(String::from))
}

/// The kernel of this package: from the last time, or by the distribution's own client.
fn fetch(folder: &Path, package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let kernel = folder.join(format!("{package}.vmlinuz"));
    if kernel.is_file() {
        return Ok(kernel);
    }
    eprintln!("boot: fetching {package}");
    let scratch = folder.join("package");
    emptied(&scratch)?;
    let script = format!(
        "apt-get -o APT::Sandbox::User=root -qq download {package} &&
         dpkg-deb --extract *.deb files && cp files/boot/vmlinuz-* '{}'",
        kernel.display()
    );
    succeed(Command::new("sh").args(["-c", &script]).current_dir(&scratch))?;
    fs::remove_dir_all(&scratch)?;
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_an_interpreter_is_not_alone() {
        assert!(has_interpreter(&fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap());
        assert!(has_interpreter(b"#!/bin/sh").is_err());
    }
}
