//! An emulated PC with our hypervisor, and the output of its serial port.

use crate::emulator::{Bochs, CYLINDER, SECTOR, qemu, run};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// An emulator, and its processor.
#[derive(Clone, Copy)]
pub struct Pc {
    pub name: &'static str,
    /// The emulator's program, and its Debian package.
    pub tool: (&'static str, &'static str),
    /// Time limit of a boot in seconds, for a busy machine.
    limit: u32,
    /// The processor's model, on Bochs.
    bochs: Option<&'static str>,
}

/// AMD-V, nested paging. QEMU loads the kernel, and its exit status tells how the run ended.
pub const NPT: Pc =
    Pc { name: "QEMU (AMD-V)", tool: ("qemu-system-x86_64", "qemu-system-x86"), limit: 240, bochs: None };
/// The same, with guests of Linux's KVM.
pub const NPT_NESTED: Pc = Pc { limit: 1500, ..NPT };
/// VMX, extended page tables. The kernel comes on a disk; the status is always 1.
pub const EPT: Pc =
    Pc { name: "Bochs (VMX)", tool: ("bochs", "bochs"), limit: 900, bochs: Some("corei7_skylake_x") };
/// The same with AMD-V.
pub const BOCHS_NPT: Pc = Pc { name: "Bochs (AMD-V)", bochs: Some("ryzen"), ..EPT };

#[derive(Clone)]
pub struct Guest<'a> {
    /// Options of the hypervisor.
    pub words: Vec<String>,
    /// Number of the guest's processors, and of the machine's.
    pub cpus: u32,
    pub processors: u32,
    /// Whether there are chores on timer interrupts. Then time is counted in instructions, so that the work between two
    /// interrupts is the same on a slow or busy machine.
    pub by_instructions: bool,
    /// File for the output of the debug console.
    pub trace: Option<&'a Path>,
}

#[derive(Default)]
pub struct Run {
    pub serial: String,
    /// Time from the emulator's start until the guest had its shell.
    pub shell: Option<Duration>,
    /// Time until the emulator ended.
    pub end: Duration,
    /// Processor time of the run, which a busy machine does not distort.
    pub work: Duration,
    /// Whether the guest powered the machine off.
    pub powered_off: bool,
    pub status: ExitStatus,
}

/// Last messages on Bochs: its own, when the guest has powered it off, or that of a Linux without ACPI, which resets
/// it.
const BOCHS_ENDS: [&str; 2] = ["Shutdown port: shutdown requested", "reboot: Restarting system"];
/// Address of the first file; the second one follows.
const KERNEL: u64 = 0x1000_0000;
/// QEMU's exit status when the hypervisor succeeds; a plain kernel powers the machine off itself.
const PASSED: i32 = 33;
/// The same for a test of KVM's.
const TESTED: i32 = 1;
/// Message of the guest once it has its shell.
const SHELL: &str = "slat: shell";

/// The needs of a boot: an emulator, our hypervisor, and its files: Debian's kernel and a file system of busybox, or an
/// image. Fetched and generated files stay in `target/boot`.
pub struct BootFiles {
    pub pc: Pc,
    /// Folder for generated files.
    pub folder: PathBuf,
    pub emulator: PathBuf,
    /// Name of the booted system.
    pub what: String,
    pub files: Vec<PathBuf>,
    pub hypervisor: PathBuf,
    /// The file is an image that runs on the bare machine alone.
    pub is_image: bool,
}

impl BootFiles {
    pub fn boot(&self, guest: &Guest) -> Result<Run> {
        let plain = guest.words.iter().any(|word| word == "plain");
        // An image needs no other file on the bare machine.
        let alone = plain && self.is_image;
        let program = if alone { &self.files[0] } else { &self.hypervisor };
        let (mut at, mut files) = (KERNEL, Vec::new());
        for path in self.files.iter().filter(|_| !alone) {
            files.push((path.as_path(), at, fs::metadata(path)?.len()));
            at = (at + files[files.len() - 1].2).next_multiple_of(4096);
        }
        let line = match files[..] {
            [(_, kernel, _), (_, initrd, bytes)] => format!("kernel={kernel:x} initrd={initrd:x}+{bytes:x} "),
            [(_, image, bytes)] => format!("image={image:x}+{bytes:x} "),
            _ => String::new(),
        };
        let line = line + &guest.words.join(" ");
        let pc = match self.pc.bochs {
            Some(model) => self.bochs(model, guest.processors, program, &line, &files)?,
            None => self.qemu(guest, program, &line, &files),
        };
        let (started, before) = (Instant::now(), work()?);
        let mut shell = None;
        let (serial, status) = run(pc, |line| {
            if line.starts_with(SHELL) {
                shell.get_or_insert_with(|| started.elapsed());
            }
        })?;
        let (end, work) = (started.elapsed(), work()?.saturating_sub(before));
        let mut run = Run { serial, shell, end, work, powered_off: false, status };
        // A hypervisor ends with its report.
        let good: &[i32] = match plain {
            true if alone => &[PASSED, TESTED],
            true => &[0],
            false => &[PASSED],
        };
        // Bochs' exit status has no meaning, and Bochs sometimes crashes as it closes. Its output says why it ends.
        let ends = match self.pc.bochs {
            Some(_) => BOCHS_ENDS.iter().any(|end| run.serial.contains(end)),
            None => status.code().is_some_and(|code| good.contains(&code)),
        };
        run.powered_off = ends && run.report().next().is_none() == plain;
        Ok(run)
    }

    /// Builds QEMU's command. No program reserves the memory that a loader fills until the guest's kernel uses it.
    fn qemu(&self, guest: &Guest, program: &Path, line: &str, files: &[(&Path, u64, u64)]) -> Command {
        let mut qemu = qemu(&self.emulator, self.pc.limit);
        qemu.args(["-cpu", "max", "-m", "512", "-smp", &guest.processors.to_string()]);
        qemu.args(["-nodefaults", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        for (file, at, _) in files {
            qemu.args(["-device", &format!("loader,file={},addr={at:#x},force-raw=on", file.display())]);
        }
        if guest.by_instructions {
            // One nanosecond for each instruction, a clock without any other time, and the same random numbers.
            let clock = "-icount shift=0,sleep=off -seed 1 -rtc base=2026-01-01T00:00:00,clock=vm";
            qemu.args(clock.split(' '));
        }
        if let Some(trace) = guest.trace {
            qemu.args(["-chardev", &format!("file,id=trace,path={}", trace.display())]);
            qemu.args(["-device", "isa-debugcon,iobase=0xe9,chardev=trace"]);
        }
        qemu.arg("-kernel").arg(program).args(["-append", line]);
        qemu
    }

    fn bochs(
        &self,
        model: &str,
        processors: u32,
        program: &Path,
        line: &str,
        files: &[(&Path, u64, u64)],
    ) -> Result<Command> {
        let folder = &self.folder.join("bochs");
        fs::create_dir_all(folder)?;
        let (path, mut memory) = (folder.join("disk.bin"), Vec::new());
        for (file, at, _) in files {
            memory.resize((at - KERNEL) as usize, 0);
            memory.extend(fs::read(file)?);
        }
        fs::write(&path, disk_with(line, memory))?;
        // A Bochs that was killed leaves this file, and no other one would open the disk.
        let _ = fs::remove_file(folder.join("disk.bin.lock"));
        let disk = (!files.is_empty()).then_some(path.as_path());
        Bochs { model, processors, program, disk, folder }.command(self.pc.limit)
    }
}

/// Makes a raw disk: a sector with the number of further sectors and the command line; then the memory from [`KERNEL`]
/// on.
fn disk_with(line: &str, mut memory: Vec<u8>) -> Vec<u8> {
    memory.resize(memory.len().next_multiple_of(SECTOR), 0);
    let mut disk = b"SLATDISK".to_vec();
    disk.extend(((memory.len() / SECTOR) as u32).to_le_bytes());
    disk.extend(line.bytes().chain([0]));
    disk.resize(SECTOR, 0);
    disk.extend(memory);
    disk.resize(disk.len().next_multiple_of(CYLINDER), 0);
    disk
}

/// Returns the processor time of finished child programs, in hundredths of a second: fields 16 and 17 of Linux's
/// `stat`.
fn work() -> Result<Duration> {
    let line = fs::read_to_string("/proc/self/stat")?;
    // The second field is a name in parentheses, which may have spaces.
    let (_, fields) = line.rsplit_once(") ").context("/proc/self/stat is not as it was")?;
    let ticks = fields.split(' ').skip(13).take(2).map(str::parse::<u64>);
    Ok(Duration::from_millis(10 * ticks.sum::<Result<u64, _>>()?))
}

impl Run {
    /// Returns the guest's output for this key.
    pub fn told(&self, what: &str) -> Option<&str> {
        self.serial
            .lines()
            .find_map(|line| line.strip_prefix("slat: ")?.strip_prefix(what)?.strip_prefix(' '))
    }

    /// Returns the hypervisor's counters: the number, and its name.
    pub fn report(&self) -> impl Iterator<Item = (u64, &str)> {
        self.counted("report: ")
    }

    /// The same for lines with this beginning.
    pub fn counted(&self, begin: &str) -> impl Iterator<Item = (u64, &str)> {
        let lines = self.serial.lines().filter_map(move |line| line.strip_prefix(begin)?.split_once(' '));
        lines.filter_map(|(number, what)| Some((number.parse().ok()?, what)))
    }

    /// A run that took a second, for tests.
    #[cfg(test)]
    pub fn judged(serial: &str, powered_off: bool) -> Self {
        let second = Duration::from_secs(1);
        let shell = serial.contains(SHELL).then_some(second);
        Self { serial: serial.into(), shell, end: second, work: second, powered_off, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hypervisor_reads_the_disk_that_xtask_writes() {
        let mut memory = vec![7; 5000];
        memory.resize(8192, 0);
        memory.extend([8; 100]);
        let disk = disk_with("kernel=10000000", memory);
        assert_eq!((&disk[..8], &disk[8..12]), (b"SLATDISK" as &[u8], &17_u32.to_le_bytes() as &[u8]));
        assert_eq!(&disk[12..28], b"kernel=10000000\0");
        let memory = &disk[SECTOR..];
        assert_eq!([memory[0], memory[4999], memory[5000], memory[8192]], [7, 7, 0, 8]);
        assert_eq!(disk.len() % CYLINDER, 0);
    }
}
