//! `boot`: runs Debian's unmodified kernel on the bare machine, and as a guest of `proof/walkers/hypervisor`, whose memory is
//! slat's.
//!
//! ```text
//! apt-get download ─▶ kernel ─┐
//! busybox, init.sh ─▶ initrd ─┼─▶ an emulated PC ─▶ serial port: "slat: shell …", "report: …" ─▶ a table
//! cargo ─▶ hypervisor ────────┘        twice: plain, and under slat
//! ```
//! [`BootFiles`] has the needed files; [`emulated_pc`] runs a PC and reads its serial port. A boot has succeeded when
//! the guest has reached its shell with all its processors, its memory is right, and it has powered the machine off. If
//! a tool is missing, the chore names it and is skipped.

mod emulated_pc;

use crate::emulator::{Program, REQUIRED, find, or_skipped};
use crate::outcome::{Outcome, misuse};
use crate::process::{answer, emptied, succeed, tail};
use anyhow::{Context as _, Result, bail, ensure};
use emulated_pc::{BOCHS_NPT, BootFiles, EPT, Guest, NPT, NPT_NESTED, Pc, Run};
use object::LittleEndian;
use object::elf::PT_INTERP;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use std::fmt::Write as _;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options for the guest's memory.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Args {
    #[arg(long, conflicts_with = "ept", help = "On QEMU's AMD-V, as it is without --ept")]
    npt: bool,
    #[arg(long, help = "On Bochs's VMX")]
    ept: bool,
    #[arg(long, conflicts_with = "ept", help = "On Bochs's AMD-V; with --l1 alone")]
    bochs: bool,
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "ept",
        help = "A hypervisor as guest, whose own guests are slat's, too: a Multiboot image (limits: proof/walkers/hypervisor/README.md); own: ours; kvm: Linux's"
    )]
    l1: Option<String>,
    /// The guest's processors: 1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    cpus: u32,
    /// The machine's processors, if fewer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2))]
    processors: Option<u32>,
    #[arg(long, default_value = "2m", value_parser = ["4k", "2m"], help = "Largest page that maps the guest's memory")]
    pages: String,
    #[arg(long, help = "Unmap everything on each timer interrupt")]
    zap: bool,
    #[arg(long, help = "Harvest a dirty log on each timer interrupt")]
    log_dirty: bool,
    #[arg(long, help = "Age everything on each timer interrupt")]
    age: bool,
    #[arg(long = "move", help = "Move and take pages on each timer interrupt")]
    moves: bool,
    #[arg(
        long,
        value_name = "FILE",
        exclusive = true,
        help = "Boot once, and record every fault there: a trace"
    )]
    trace: Option<PathBuf>,
    #[arg(last = true, help = "Further options, listed in proof/walkers/hypervisor/src/options.rs")]
    words: Vec<String>,
}

impl Args {
    fn runs_kvm(&self) -> bool {
        self.l1.as_deref() == Some("kvm")
    }

    fn guest(&self) -> Guest<'static> {
        // The hypervisor's vCPUs share a processor, so that interrupts of the machine come to our hypervisor first.
        let (cpus, asked) = if self.l1.is_some() { (2, Some(1)) } else { (self.cpus, self.processors) };
        let (pages, processors) = (&self.pages, asked.unwrap_or(cpus));
        let chores =
            [(self.zap, "zap"), (self.log_dirty, "log-dirty"), (self.age, "age"), (self.moves, "move")];
        let mut words: Vec<String> =
            chores.iter().filter(|chore| chore.0).map(|chore| chore.1.into()).collect();
        // Only with one processor: with this clock of QEMU 7.2 no kernel starts a second one, with or without slat.
        let by_instructions = (!words.is_empty() || self.l1.is_some()) && processors == 1;
        words.extend([format!("cpus={cpus}"), format!("pages={pages}")]);
        words.extend(self.runs_kvm().then(|| "svm".into()));
        words.extend_from_slice(&self.words);
        Guest { words, cpus, processors, by_instructions, trace: None }
    }
}

pub fn run(args: &Args) -> Outcome {
    if args.ept && args.cpus > 1 {
        return misuse("--ept is for one processor: the second begins in real mode, done for AMD-V only");
    }
    if args.bochs && args.l1.is_none() {
        return misuse("--bochs goes with --l1");
    }
    let pc = match (args.ept, args.bochs) {
        (true, _) => EPT,
        (_, true) => BOCHS_NPT,
        _ if args.runs_kvm() => NPT_NESTED,
        _ => NPT,
    };
    if let Some(trace) = &args.trace {
        return faults(trace);
    }
    or_skipped(compare(pc, &args.guest(), args.l1.as_deref()), REQUIRED)
}

fn compare(pc: Pc, guest: &Guest, l1: Option<&str>) -> Outcome {
    let files = BootFiles::prepare(pc, l1)?;
    eprintln!("boot: {} on {}", files.what, pc.name);
    let under = files.whole(files.boot(guest)?, guest.cpus).context("under slat")?;
    let words = ["plain".into()].into_iter().chain(guest.words.clone()).collect();
    let plain = files.whole(files.boot(&Guest { words, ..guest.clone() })?, guest.processors);
    let plain = plain.context("without slat, on the emulator's own machine")?;
    let what = format!("{} on {}; {}", files.what, pc.name, guest.words.join(" "));
    print!("{}", side_by_side(&what, &plain, &under)?);
    Ok(())
}

/// Boots with pages of 4 KiB, all of which each timer interrupt unmaps. Writes every fault as lines of a memory trace,
/// and prints what was booted. The trace is the same each time.
fn faults(trace: &Path) -> Outcome {
    let files = BootFiles::prepare(NPT, None)?;
    let words = ["pages=4k", "around=1", "zap", "record"].map(String::from).to_vec();
    let guest = Guest { words, cpus: 1, processors: 1, by_instructions: true, trace: Some(trace) };
    files.whole(files.boot(&guest)?, 1)?;
    println!("{}", files.what);
    Ok(())
}

/// Returns what Linux failed to do: the number of processors, and the other checks.
fn undone(run: &Run, cpus: u32) -> Option<&'static str> {
    let clock = run.report().any(|(_, what)| what == "clock stores").then_some("kvm-clock");
    let must = [
        (run.shell.is_some(), "reached its shell"),
        (run.told("cpus") == Some(&*cpus.to_string()), "found its processors, and no more"),
        (run.told("sum").is_some(), "read back its file"),
        (run.told("kvm").is_none() || run.told("l2").is_some(), "had its own guest come to its end"),
        (clock.is_none() || run.told("clock") == clock, "taken the clock that it was offered"),
    ];
    must.into_iter().find(|(done, _)| !done).map(|(_, what)| what)
}

/// Returns a table under the name of the booted system. Fails if the two guests did not read the same from their
/// memory.
fn side_by_side(what: &str, plain: &Run, under: &Run) -> Result<String> {
    ensure!(
        plain.told("sum") == under.told("sum") && plain.told("l2") == under.told("l2"),
        "under slat the guest has read something else from its memory than without"
    );
    let mut text = format!("{what}\n");
    writeln!(text, "{:<24}{:>10}{:>12}{:>8}", "", "plain", "under slat", "ratio")?;
    let shells = [plain, under].map(|run| run.shell.unwrap_or_default());
    let (ends, works) = ([plain.end, under.end], [plain.work, under.work]);
    let rows = [("to the shell", shells), ("to power-off", ends), ("processor time", works)];
    for (what, [plain, under]) in rows.into_iter().filter(|row| !row.1[0].is_zero()) {
        let ratio = under.as_secs_f64() / plain.as_secs_f64();
        writeln!(text, "{what:<24}{plain:>10.2?}{under:>12.2?}{ratio:>7.2}x")?;
    }
    for ((under, what), (plain, _)) in under.counted("l1: ").zip(plain.counted("l1: ")) {
        writeln!(text, "{what:<24}{plain:>10}{under:>12}")?;
    }
    for (number, what) in under.report().filter(|(number, _)| *number > 0) {
        writeln!(text, "{what:<24}{number:>10}")?;
        if what == "dirty pages" {
            writeln!(text, "{:<24}{:>10.0}", "… per second", number as f64 / under.end.as_secs_f64())?;
        }
    }
    Ok(text)
}

/// The package whose newest dependency is the kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

impl BootFiles {
    /// Finds, fetches and builds the files of Linux, of Linux with a KVM, or of an image. An error of the type
    /// [`Missing`](crate::emulator::Missing) names a missing tool.
    fn prepare(pc: Pc, l1: Option<&str>) -> Result<Self> {
        let (emulator, folder) = (find(pc.tool.0, pc.tool.1)?, std::path::absolute("target/boot")?);
        fs::create_dir_all(&folder)?;
        if let Some(image) = l1.filter(|l1| *l1 != "kvm") {
            let own = || program("slat-l1", "l1");
            let image = if image == "own" { own()? } else { std::path::absolute(image)? };
            let (what, hypervisor) = (image.display().to_string(), program("slat-hypervisor", "hypervisor")?);
            return Ok(Self { pc, folder, emulator, what, files: vec![image], hypervisor, is_image: true });
        }
        let busybox = fs::read(find("busybox", "busybox-static")?)?;
        find("apt-get", "apt")?;
        find("dpkg-deb", "dpkg")?;
        let remedy = "the Debian package busybox-static has one that needs none";
        ensure!(!has_interpreter(&busybox)?, "busybox needs libraries: {remedy}");
        let (what, initrd) = (newest_kernel()?, folder.join("initrd"));
        let package = fetch(&folder, &what)?;
        let mut more = Vec::new();
        if l1.is_some() {
            more.push(("kvm-l2".into(), fs::read(program("slat-l1", "kvm-l2")?)?));
            for module in MODULES {
                more.push((module.into(), fs::read(package.join(module))?));
            }
        }
        fs::write(&initrd, archive(&busybox, &more)?)?;
        let files = vec![package.join("vmlinuz"), initrd];
        let hypervisor = program("slat-hypervisor", "hypervisor")?;
        Ok(Self { pc, folder, emulator, what, files, hypervisor, is_image: false })
    }

    /// Returns the run, if its guest has passed all checks; otherwise the last output of its serial port.
    fn whole(&self, run: Run, cpus: u32) -> Result<Run> {
        let undone = if self.is_image { None } else { undone(&run, cpus) };
        let undone = undone.or((!run.powered_off).then_some("powered off"));
        let Some(what) = undone else { return Ok(run) };
        let last = tail(&run.serial, 30);
        bail!("the guest has not {what} (the emulator ended: {}); its last lines:\n{last}", run.status)
    }
}

/// Builds a program of `proof/walkers/`.
fn program(package: &str, name: &str) -> Result<PathBuf> {
    let [package, name, target] = [package, name, "x86_64-unknown-none"].map(String::from);
    Program { package, name, target }.build(&[])
}

/// Returns whether a program needs a loader, and so further files.
fn has_interpreter(elf: &[u8]) -> Result<bool> {
    let file = ElfFile64::<LittleEndian>::parse(elf)?;
    let mut headers = file.elf_program_headers().iter();
    Ok(headers.any(|header| header.p_type(LittleEndian) == PT_INTERP))
}

/// Modules that Linux needs to run guests of its own and to swap.
const MODULES: [&str; 4] = ["irqbypass.ko", "kvm.ko", "kvm-amd.ko", "brd.ko"];

/// Makes the guest's whole file system: busybox, a script, and further files.
fn archive(busybox: &[u8], more: &[(String, Vec<u8>)]) -> std::io::Result<Vec<u8>> {
    let init: &[u8] = include_bytes!("init.sh");
    let mut all =
        vec![("bin", 0o040_755, &[][..]), ("bin/busybox", 0o100_755, busybox), ("init", 0o100_755, init)];
    all.extend(more.iter().map(|(name, data)| (&**name, 0o100_755, &**data)));
    let entry = |(name, mode, data)| (cpio::NewcBuilder::new(name).mode(mode), Cursor::new(data));
    cpio::write_cpio(all.into_iter().map(entry), Vec::new())
}

/// Returns the kernel package that the distribution would install now.
fn newest_kernel() -> Result<String> {
    let answer = answer("apt-cache", &format!("depends {META_PACKAGE}")).unwrap_or_default();
    let package = answer.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(package.context("apt knows no Debian kernel: run apt-get update, on a Debian system")?.to_owned())
}

/// Returns the folder of this package's kernel and modules, from an earlier run, or fetched by the distribution's
/// client.
fn fetch(folder: &Path, package: &str) -> Result<PathBuf> {
    let place = folder.join(package);
    if place.is_dir() {
        return Ok(place);
    }
    eprintln!("boot: fetching {package}");
    let scratch = folder.join("package");
    emptied(&scratch)?;
    let script = format!(
        "apt-get -o APT::Sandbox::User=root -qq download {package} && dpkg-deb --extract *.deb files &&
         mkdir kept && cp files/boot/vmlinuz-* kept/vmlinuz &&
         for module in {}; do cp \"$(find files -name $module)\" kept/; done && mv kept '{}'",
        MODULES.join(" "),
        place.display()
    );
    succeed(Command::new("sh").args(["-c", &script]).current_dir(&scratch))?;
    fs::remove_dir_all(&scratch)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches as _};

    fn parsed(line: &str) -> Result<Args, clap::Error> {
        let command = Args::augment_args(clap::Command::new("boot"));
        Args::from_arg_matches(&command.try_get_matches_from(line.split(' '))?)
    }

    #[test]
    fn options_become_words_of_the_hypervisor() {
        let guest = |line| {
            let guest = parsed(line).unwrap().guest();
            (guest.cpus, guest.by_instructions, guest.words.join(" "))
        };
        assert_eq!(guest("boot"), (1, false, "cpus=1 pages=2m".into()));
        let ept = guest("boot --ept --zap --pages 4k -- around=1");
        assert_eq!(ept, (1, true, "zap cpus=1 pages=4k around=1".into()));
        assert_eq!(guest("boot --cpus 2 --move"), (2, false, "move cpus=2 pages=2m".into()));
        let shared = guest("boot --cpus 2 --processors 1 --move -- mistake=lost-dirty");
        assert_eq!(shared, (2, true, "move cpus=2 pages=2m mistake=lost-dirty".into()));
    }

    #[test]
    fn options_that_cannot_boot_are_refused() {
        for wrong in ["--cpus 3", "--pages 1g", "--npt --ept", "--fast"] {
            assert!(parsed(&format!("boot {wrong}")).is_err(), "{wrong}");
        }
        let two = run(&parsed("boot --ept --cpus 2").unwrap());
        assert!(two.unwrap_err().to_string().contains("one processor"));
    }

    #[test]
    fn a_run_is_whole_with_shell_sum_and_power_off_and_compared_if_it_read_the_same() {
        let run = |serial: &str| Run::judged(serial, true);
        let all = "slat: shell\nslat: cpus 2\nslat: clock kvm-clock\nslat: sum 1\nreport: 5 faults\nother\nreport: 3 clock stores\nreport: 0 zaps\n";
        assert_eq!(undone(&run(all), 2), None);
        for (lost, named) in [("shell", "shell"), ("cpus", "processors"), ("kvm", "clock"), ("sum", "file")] {
            assert!(undone(&run(&all.replace(lost, "lost")), 2).unwrap().contains(named), "{lost}");
        }
        assert_eq!(run(all).report().collect::<Vec<_>>(), [(5, "faults"), (3, "clock stores"), (0, "zaps")]);
        let text = side_by_side("", &run(all), &run(all)).unwrap();
        assert!(text.contains("1.00x") && text.contains("faults") && !text.contains("zaps"), "{text}");
        assert!(side_by_side("", &run(all), &run("slat: sum 2")).is_err());
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_alone() {
        assert!(has_interpreter(&fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap());
        assert!(has_interpreter(b"#!/bin/sh").is_err());
    }
}
