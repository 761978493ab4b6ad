//! Bochs: a PC whose processor has VMX and EPT (Intel's models) or AMD-V (`ryzen`), for a bare-metal program of
//! `walkers/`.
//!
//! Bochs knows no `-kernel`: the program's ELF file becomes a flat image in a ROM that we write ([`rom`]). The serial port
//! is its standard error, and that is the answer: Bochs ends with status 1 whatever happened.

use super::{find, rom};
use crate::process::bounded;
use object::{Object as _, ObjectSegment as _};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Where the programs of `walkers/x86` are linked to.
const BASE: u64 = 0x400_0000;
/// No program is so large.
const LIMIT: u64 = 16 << 20;
/// Bytes of a sector, and of a cylinder: 16 tracks of 63 sectors.
pub const SECTOR: usize = 512;
pub const CYLINDER: usize = SECTOR * 63 * 16;

/// A machine to be.
pub struct Bochs<'a> {
    /// A model as `bochs --help cpu` lists them: `corei7_skylake_x`.
    pub model: &'a str,
    /// How many processors it has, as cores of one package.
    pub processors: u32,
    /// The program, an ELF file linked for `0x400_0000`.
    pub program: &'a Path,
    /// A raw disk, read by the program; none for most.
    pub disk: Option<&'a Path>,
    /// A folder for this run's own files, made where there is none.
    pub folder: &'a Path,
}

impl Bochs<'_> {
    /// The command that runs it for so many seconds, everything it needs being written. Its own output is noise.
    /// [`Missing`](super::Missing) where there is no Bochs.
    pub fn command(&self, seconds: u32) -> Result<Command, Box<dyn Error>> {
        let bochs = find("bochs", "bochs")?;
        fs::create_dir_all(self.folder)?;
        let rom = rom::with(&flatten(&fs::read(self.program)?)?)
            .ok_or("the program is larger than a ROM can be")?;
        fs::write(self.folder.join("rom.bin"), rom)?;
        fs::write(self.folder.join("bochsrc"), self.configuration()?)?;
        // The debugger that Debian's Bochs is built with waits for a command before the first instruction.
        fs::write(self.folder.join("debugger"), "c\n")?;
        let mut command = bounded(seconds, bochs);
        command.arg("-q").arg("-f").arg(self.folder.join("bochsrc"));
        command.arg("-rc").arg(self.folder.join("debugger"));
        Ok(command)
    }

    /// No firmware, no screen, no more devices than are used.
    fn configuration(&self) -> Result<String, Box<dyn Error>> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let disk = match self.disk {
            Some(path) => {
                let cylinders = fs::metadata(path)?.len() / CYLINDER as u64;
                let path = path.display();
                format!(
                    "ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
                     ata0-master: type=disk, mode=flat, path={path}, cylinders={cylinders}, heads=16, spt=63\n"
                )
            }
            None => String::from("ata0: enabled=0\n"),
        };
        Ok(format!(
            "config_interface: textconfig\n\
             display_library: rfb, options=\"timeout=0\"\n\
             romimage: file={rom}\n\
             memory: guest=512, host=512\n\
             cpu: model={model}, count=1:{processors}:1, ips=1000000000, reset_on_triple_fault=0, ignore_bad_msrs=1\n\
             clock: sync=none\n\
             com1: enabled=1, mode=file, dev=/dev/stderr\n\
             port_e9_hack: enabled=1\n\
             boot: floppy\n\
             {disk}\
             log: {log}\n\
             panic: action=fatal\nerror: action=ignore\ninfo: action=ignore\ndebug: action=ignore\n",
            rom = file("rom.bin"),
            model = self.model,
            processors = self.processors,
            log = file("log.txt"),
        ))
    }
}

/// The loadable segments of an ELF file as they lie in memory from [`BASE`] on, up to the last byte that is in the file: what
/// comes after it, the program clears itself.
fn flatten(elf: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut image = Vec::new();
    for segment in object::read::elf::ElfFile64::<object::LittleEndian>::parse(elf)?.segments() {
        let place = segment.address().checked_sub(BASE).filter(|place| *place < LIMIT);
        let place = place.ok_or("a segment that is not where programs are")? as usize;
        let data = segment.data()?;
        image.resize(image.len().max(place + data.len()), 0);
        image[place..place + data.len()].copy_from_slice(data);
    }
    if image.is_empty() { Err("an ELF file with nothing to load".into()) } else { Ok(image) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_of_ours_is_refused() {
        assert!(flatten(b"#!/bin/sh").is_err());
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let why = flatten(&own).unwrap_err().to_string();
        assert!(why.contains("not where programs are"), "{why}");
    }
}
