//! An emulated PC with our hypervisor on it, watched by its serial port.
//!
//! | | emulator | kernel and words come by | ends |
//! |---|---|---|---|
//! | [`Pc::Npt`] | QEMU without KVM: a processor of AMD's | QEMU's loader | with a status that says how |
//! | [`Pc::Ept`] | Bochs: a processor of Intel's | a disk | always with status 1 |

use super::ground::Ground;
use crate::bochs::Bochs;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A machine to boot on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pc {
    /// AMD-V, nested paging.
    Npt,
    /// VMX, extended page tables.
    Ept,
}

/// What came of a boot.
#[derive(Clone, Debug)]
pub struct Run {
    /// All that the serial port said.
    pub serial: String,
    /// When the guest had its shell, from the emulator's start.
    pub shell: Option<Duration>,
    /// How many processors the guest has found.
    pub cpus: Option<u32>,
    /// What the guest read back.
    pub sum: Option<String>,
    /// When the emulator ended.
    pub end: Duration,
    /// How long processors worked for it: what a busy machine does not distort.
    pub work: Duration,
    /// By the guest's own wish.
    pub powered_off: bool,
    /// How it ended, in words.
    pub ended: String,
}

/// Where the kernel's file is put, and the initial file system behind it.
const KERNEL: u64 = 0x1000_0000;
/// How the hypervisor ends QEMU when all is well; a plain kernel powers it off itself.
const PASSED: i32 = 33;
const MODEL: &str = "corei7_skylake_x";
const SECTOR: usize = 512;
/// Sectors of a cylinder of Bochs's disk.
const CYLINDER: usize = 63 * 16;

impl Pc {
    /// What to call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Npt => "QEMU (AMD-V)",
            Self::Ept => "Bochs (VMX)",
        }
    }

    /// The emulator's program, and the Debian package that it is in.
    pub fn tool(self) -> (&'static str, &'static str) {
        match self {
            Self::Npt => ("qemu-system-x86_64", "qemu-system-x86"),
            Self::Ept => ("bochs", "bochs"),
        }
    }

    /// Longer than this no boot takes, even on a busy machine.
    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Npt => 240,
            Self::Ept => 900,
        })
    }

    /// Runs it to its end.
    pub fn run(
        self,
        ground: &Ground,
        words: &[String],
        cpus: u32,
        by_instructions: bool,
        trace: Option<&Path>,
    ) -> Result<Run, Box<dyn Error>> {
        let (kernel, initrd) = (fs::metadata(&ground.kernel)?.len(), fs::metadata(&ground.initrd)?.len());
        let behind = (KERNEL + kernel).next_multiple_of(4096);
        let line = format!("kernel={KERNEL:x} initrd={behind:x}+{initrd:x} {}", words.join(" "));
        let (mut command, serial) = match self {
            Self::Npt => {
                let serial = ground.folder.join("serial.txt");
                let mut qemu = qemu(ground, &line, behind);
                qemu.args(["-smp", &cpus.to_string()]);
                qemu.args(["-serial", &format!("file:{}", serial.display())]);
                if by_instructions {
                    // One nanosecond an instruction, a clock that knows no other time, and the same dice.
                    qemu.args(["-icount", "shift=0,sleep=off", "-seed", "1"]);
                    qemu.args(["-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
                }
                if let Some(trace) = trace {
                    qemu.args(["-chardev", &format!("file,id=trace,path={}", trace.display())]);
                    qemu.args(["-device", "isa-debugcon,iobase=0xe9,chardev=trace"]);
                }
                (qemu, serial)
            }
            Self::Ept => {
                let folder = ground.folder.join("bochs");
                fs::create_dir_all(&folder)?;
                let disk = folder.join("disk.bin");
                let [kernel, initrd] = [&ground.kernel, &ground.initrd].map(fs::read);
                fs::write(&disk, disk_with(&line, &kernel?, &initrd?, (behind - KERNEL) as usize))?;
                // A Bochs that was ended left it, and no other would take the disk.
                let _ = fs::remove_file(folder.join("disk.bin.lock"));
                let seconds = self.limit().as_secs() as u32 + 60;
                let bochs = Bochs {
                    model: MODEL,
                    processors: cpus,
                    program: &ground.hypervisor,
                    disk: Some(&disk),
                    folder: &folder,
                    seconds,
                };
                (bochs.command()?, bochs.serial())
            }
        };
        // What is there is of another run.
        File::create(&serial)?;
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).spawn()?;
        let watched = watch(child, &serial, started, self.limit())?;
        let under_slat = !words.iter().any(|word| word == "plain");
        Ok(watched.judged_by(self, under_slat))
    }
}

/// QEMU with what any run needs. Memory that a loader fills is kept by nobody until the guest's kernel has it.
fn qemu(ground: &Ground, line: &str, behind: u64) -> Command {
    let mut qemu = Command::new(&ground.emulator);
    qemu.args(["-accel", "tcg", "-cpu", "max", "-m", "512", "-display", "none", "-monitor", "none"]);
    qemu.args(["-no-reboot", "-nodefaults", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    for (file, at) in [(&ground.kernel, KERNEL), (&ground.initrd, behind)] {
        qemu.args(["-device", &format!("loader,file={},addr={at:#x},force-raw=on", file.display())]);
    }
    qemu.arg("-kernel").arg(&ground.hypervisor).args(["-append", line]);
    qemu
}

/// A raw disk: a sector that says how many follow, and the command line; then memory from [`KERNEL`] on.
fn disk_with(line: &str, kernel: &[u8], initrd: &[u8], behind: usize) -> Vec<u8> {
    let mut memory = kernel.to_vec();
    memory.resize(behind, 0);
    memory.extend(initrd);
    memory.resize(memory.len().next_multiple_of(SECTOR), 0);
    let mut disk = b"SLATDISK".to_vec();
    disk.extend(((memory.len() / SECTOR) as u32).to_le_bytes());
    disk.extend(line.bytes().chain([0]));
    disk.resize(SECTOR, 0);
    disk.extend(memory);
    disk.resize(disk.len().next_multiple_of(CYLINDER * SECTOR), 0);
    disk
}

/// A run that is over, before anybody has said what it means.
struct Watched {
    run: Run,
    status: Option<ExitStatus>,
}

/// Reads what the serial port says while it says it, so that times are known; ends what takes too long.
fn watch(
    mut child: Child,
    serial: &Path,
    started: Instant,
    limit: Duration,
) -> Result<Watched, Box<dyn Error>> {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut file = File::open(serial)?;
    let (mut text, mut shell, mut work) = (Vec::new(), None, Duration::ZERO);
    let status = loop {
        work = work_of(child.id()).map_or(work, |now| now.max(work));
        // Asked first: what it said before it ended is then in the file.
        let status = child.try_wait()?;
        let seen = text.len();
        file.read_to_end(&mut text)?;
        let new = &text[seen.saturating_sub(Run::SHELL.len())..];
        if shell.is_none() && new.windows(Run::SHELL.len()).any(|part| part == Run::SHELL.as_bytes()) {
            shell = Some(started.elapsed());
        }
        if status.is_some() {
            break status;
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(PAUSE);
    };
    let mut ended = String::new();
    match status {
        Some(status) => write!(ended, "the emulator ended: {status}")?,
        None => write!(ended, "ended after {} seconds", limit.as_secs())?,
    }
    let serial = String::from_utf8_lossy(&text).into_owned();
    let sum = serial.lines().find_map(|line| line.strip_prefix(Run::SUM)).map(String::from);
    let cpus = Run::cpus_in(&serial);
    let run = Run { serial, shell, cpus, sum, end: started.elapsed(), work, powered_off: false, ended };
    Ok(Watched { run, status })
}

/// How long processors have worked for a process and those that it has started, which `timeout` does with Bochs: fields 14
/// and 15 of what Linux says of each, in hundredths of a second.
fn work_of(process: u32) -> Option<Duration> {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses, which may have blanks in it.
    let (_, fields) = line.rsplit_once(") ")?;
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().ok());
    let own = Duration::from_millis(10 * ticks.sum::<Option<u64>>()?);
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    Some(own + children.filter_map(work_of).sum::<Duration>())
}

impl Watched {
    /// A hypervisor's last words are its report; Bochs says nothing by its status.
    fn judged_by(mut self, pc: Pc, under_slat: bool) -> Run {
        let reported = self.run.report().next().is_some();
        self.run.powered_off = match (pc, self.status.map(|status| status.code())) {
            (_, None) => false,
            (Pc::Npt, Some(code)) => {
                code == Some(if under_slat { PASSED } else { 0 }) && reported == under_slat
            }
            (Pc::Ept, Some(_)) => reported == under_slat,
        };
        self.run
    }
}

impl Run {
    const SHELL: &str = "slat: shell";
    const SUM: &str = "slat: sum ";

    fn cpus_in(serial: &str) -> Option<u32> {
        serial.lines().find_map(|line| line.strip_prefix("slat: cpus ")?.trim_end().parse().ok())
    }

    /// What the hypervisor counted: how many, and of what.
    pub fn report(&self) -> impl Iterator<Item = (u64, &str)> {
        let lines = self.serial.lines().filter_map(|line| line.strip_prefix("report: "));
        lines
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(number, what)| Some((number.parse().ok()?, what)))
    }

    /// A run that took a second, for tests.
    #[cfg(test)]
    pub fn judged(serial: &str, powered_off: bool) -> Self {
        let second = Duration::from_secs(1);
        let sum = serial.lines().find_map(|line| line.strip_prefix(Self::SUM)).map(String::from);
        let shell = serial.contains(Self::SHELL).then_some(second);
        Self {
            serial: serial.into(),
            shell,
            cpus: Self::cpus_in(serial),
            sum,
            end: second,
            work: second,
            powered_off,
            ended: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_as_the_hypervisor_reads_it() {
        let disk = disk_with("kernel=10000000", &[7; 5000], &[8; 100], 8192);
        assert_eq!((&disk[..8], &disk[8..12]), (b"SLATDISK" as &[u8], &17_u32.to_le_bytes() as &[u8]));
        assert_eq!(&disk[12..28], b"kernel=10000000\0");
        assert_eq!(
            (disk[SECTOR], disk[SECTOR + 4999], disk[SECTOR + 5000], disk[SECTOR + 8192]),
            (7, 7, 0, 8)
        );
        assert_eq!(disk.len() % (CYLINDER * SECTOR), 0);
    }

    #[test]
    fn a_report_is_numbers_and_what_they_count() {
        let run = Run::judged("report: 12 faults\nother\nreport: 3 dirty pages\n", true);
        assert_eq!(run.report().collect::<Vec<_>>(), [(12, "faults"), (3, "dirty pages")]);
    }
}
