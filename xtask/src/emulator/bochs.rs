//! Bochs: a PC whose processor has VMX and EPT (Intel's models) or AMD-V (`ryzen`), for a bare-metal program of
//! `walkers/`.
//!
//! Bochs knows no `-kernel`: the program travels in a ROM, and copies itself to its place (`walkers/x86/src/boot.s`). The
//! serial port is its standard error, and that is the answer: Bochs ends with status 1 whatever happened.

use super::find;
use crate::process::bounded;
use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

pub struct Bochs<'a> {
    /// A model as `bochs --help cpu` lists them: `corei7_skylake_x`.
    pub model: &'a str,
    /// How many processors it has, as cores of one package.
    pub processors: u32,
    pub program: &'a Path,
    /// A raw disk, read by the program; none for most.
    pub disk: Option<&'a Path>,
    /// A folder for this run's own files, made where there is none.
    pub folder: &'a Path,
}

/// Bytes of the ROM, which Bochs puts at the end of the 32-bit addresses.
const ROM: usize = 2 << 20;
/// Bytes of a sector, and of a cylinder: 16 tracks of 63 sectors.
pub const SECTOR: usize = 512;
pub const CYLINDER: usize = SECTOR * 63 * 16;

impl Bochs<'_> {
    /// The command that runs it for so many seconds, everything it needs being written. Its own output is noise.
    /// [`Missing`](super::Missing) where there is no Bochs.
    pub fn command(&self, seconds: u32) -> Result<Command, Box<dyn Error>> {
        let bochs = find("bochs", "bochs")?;
        fs::create_dir_all(self.folder)?;
        fs::write(self.folder.join("rom.bin"), rom(&fs::read(self.program)?)?)?;
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
        let mut disk = String::from("ata0: enabled=0\n");
        if let Some(path) = self.disk {
            let (cylinders, path) = (fs::metadata(path)?.len() / CYLINDER as u64, path.display());
            disk = format!(
                "ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
                 ata0-master: type=disk, mode=flat, path={path}, cylinders={cylinders}, heads=16, spt=63\n"
            );
        }
        Ok(format!(
            "config_interface: textconfig\n\
             display_library: rfb, options=\"timeout=0\"\n\
             romimage: file={folder}/rom.bin\n\
             memory: guest=512, host=512\n\
             cpu: model={model}, count=1:{processors}:1, ips=1000000000, reset_on_triple_fault=0, ignore_bad_msrs=1\n\
             clock: sync=none\n\
             com1: enabled=1, mode=file, dev=/dev/stderr\n\
             port_e9_hack: enabled=1\n\
             boot: floppy\n\
             {disk}\
             log: {folder}/log.txt\n\
             panic: action=fatal\nerror: action=ignore\ninfo: action=ignore\ndebug: action=ignore\n",
            folder = self.folder.display(),
            model = self.model,
            processors = self.processors,
        ))
    }
}

/// The ROM of a program: its one segment, up to the last byte that is in the file (what comes after it, the program clears
/// itself), and, where the processor wakes, its section `.rom`.
fn rom(elf: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let file = object::read::elf::ElfFile64::<object::LittleEndian>::parse(elf)?;
    let mut segments = file.segments();
    let (Some(segment), None) = (segments.next(), segments.next()) else {
        return Err("a program of walkers/ has one segment".into());
    };
    let code = file.section_by_name(".rom").ok_or("the program has no ROM")?.data()?;
    let mut rom = segment.data()?.to_vec();
    if rom.len() + code.len() > ROM {
        return Err("the program is larger than a ROM can be".into());
    }
    rom.resize(ROM - code.len(), 0);
    rom.extend(code);
    Ok(rom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_of_ours_is_refused() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(rom(&own).is_err() && rom(b"#!/bin/sh").is_err());
    }
}
