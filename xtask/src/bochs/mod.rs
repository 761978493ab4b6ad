//! Bochs: a PC whose processor has VMX and EPT (Intel's models) or AMD-V (`ryzen`), for a bare-metal program of
//! `walkers/`.
//!
//! Bochs knows no `-kernel`: the program's ELF file becomes a flat image in a ROM that we write (`rom`). The serial port
//! goes to a file, and that file is the answer: Bochs ends with status 1 whatever happened.

mod elf;
mod rom;

use crate::emulator;
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    /// After so many seconds it is ended.
    pub seconds: u32,
}

/// A disk's geometry: sectors of 512 bytes, 63 a track, 16 tracks a cylinder.
const CYLINDER: u64 = 512 * 63 * 16;

impl Bochs<'_> {
    /// Where the serial port's text goes.
    pub fn serial(&self) -> PathBuf {
        self.folder.join("serial.txt")
    }

    /// The command that runs it, everything it needs being written. Its own output is noise.
    /// [`Missing`](emulator::Missing) where there is no Bochs.
    pub fn command(&self) -> Result<Command, Box<dyn Error>> {
        let bochs = emulator::find("bochs", "bochs")?;
        fs::create_dir_all(self.folder)?;
        let image = elf::flatten(&fs::read(self.program)?)?;
        let rom = rom::with(&image).ok_or("the program is larger than a ROM can be")?;
        fs::write(self.folder.join("rom.bin"), rom)?;
        fs::write(self.folder.join("bochsrc"), self.configuration()?)?;
        // The debugger that Debian's Bochs is built with waits for a command before the first instruction.
        fs::write(self.folder.join("debugger"), "c\n")?;
        File::create(self.serial())?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &self.seconds.to_string()]).arg(bochs).arg("-q");
        command.arg("-f").arg(self.folder.join("bochsrc")).arg("-rc").arg(self.folder.join("debugger"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    /// Runs it to its end, and hands back what it wrote on the serial port.
    pub fn run(&self) -> Result<String, Box<dyn Error>> {
        let status = self.command()?.status()?;
        let text = String::from_utf8_lossy(&fs::read(self.serial())?).into_owned();
        match status.code() {
            // What `timeout` says where it had to end something.
            Some(124 | 137) => Err(format!("{text}\nstill running after {} seconds", self.seconds).into()),
            _ => Ok(text),
        }
    }

    /// No firmware, no screen, no more devices than are used.
    fn configuration(&self) -> Result<String, Box<dyn Error>> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let disk = match self.disk {
            Some(path) => {
                let cylinders = fs::metadata(path)?.len() / CYLINDER;
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
             com1: enabled=1, mode=file, dev={serial}\n\
             port_e9_hack: enabled=1\n\
             boot: floppy\n\
             {disk}\
             log: {log}\n\
             panic: action=fatal\nerror: action=ignore\ninfo: action=ignore\ndebug: action=ignore\n",
            rom = file("rom.bin"),
            model = self.model,
            processors = self.processors,
            serial = self.serial().display(),
            log = file("log.txt"),
        ))
    }
}
