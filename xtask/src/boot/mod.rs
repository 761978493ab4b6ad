//! `boot`: Debian's kernel, unmodified, on the bare machine and as a guest of `walkers/hypervisor`, whose memory is slat's.
//!
//! ```text
//! apt-get download ─▶ kernel ─┐
//! busybox, a script ─▶ initrd ┼─▶ an emulated PC ─▶ serial port: "slat: shell …", "report: …" ─▶ a table
//! cargo ─▶ hypervisor ────────┘        twice: plain, and under slat
//! ```
//! [`ground`] brings what is needed, [`initrd`] makes the initial file system, [`machine`] runs a PC and watches its serial
//! port, [`report`] compares. A boot has succeeded when the guest has reached its shell with all its processors, its memory is what it wrote, and
//! it has powered the machine off. Where something is not installed the chore says what, and has nothing to do.

mod ground;
mod initrd;
mod machine;
mod report;

use crate::Outcome;
use crate::emulator::{self, Missing};
use ground::Ground;
use machine::{Pc, Run};
use std::error::Error;
use std::path::Path;

/// What a guest's memory is mapped with, and how it is treated; the words are the hypervisor's own.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Asked {
    pc: Pc,
    words: Vec<String>,
    /// The machine's processors, and the guest's.
    cpus: u32,
    /// Something is done on timer interrupts. Then time is counted in instructions, so that what happens between two of
    /// them is the same on a slow machine and on a busy one; with one processor, as no kernel starts a second one by that
    /// clock of QEMU's 7.2, slat or not.
    by_instructions: bool,
}

const USAGE: &str = "usage: cargo xtask boot [--npt | --ept] [--cpus 1|2] [--pages 4k|2m] [--around PAGES] [--zap] [--log-dirty] [--age]";
/// Pages that a fault maps where they are small, unless said otherwise: as Linux does it for files.
const AROUND: &str = "16";

/// The chore.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let asked = parse(args)?;
    let ground = match Ground::prepare(root, asked.pc) {
        Ok(ground) => ground,
        Err(error) => {
            return emulator::skip(
                error.downcast_ref::<Missing>().ok_or(error.to_string())?,
                emulator::REQUIRED,
            );
        }
    };
    eprintln!("boot: {} on {}", ground.kernel_version, asked.pc.name());
    let boot = |words: &[String]| -> Result<Run, Box<dyn Error>> {
        Ok(whole(&ground.boot(asked.pc, words, asked.cpus, asked.by_instructions, None)?, asked.cpus)?)
    };
    let (plain, under) = (boot(&["plain".into()])?, boot(&asked.words)?);
    print!("{}", report::compare(&ground.kernel_version, asked.pc, &asked.words, &plain, &under)?);
    Ok(())
}

/// Every fault of a boot with pages of 4 KiB that are all unmapped by each timer interrupt, as lines of a memory trace;
/// and what was booted. The same each time.
pub fn faults(root: &Path) -> Result<(String, String), Box<dyn Error>> {
    let ground = Ground::prepare(root, Pc::Npt)?;
    let trace = ground.folder.join("trace");
    let words = ["pages=4k", "zap", "record"].map(String::from);
    whole(&ground.boot(Pc::Npt, &words, 1, true, Some(&trace))?, 1)?;
    Ok((std::fs::read_to_string(trace)?, ground.kernel_version))
}

/// The run, if its guest has done all it should; else what its serial port said last.
fn whole(run: &Run, cpus: u32) -> Result<Run, String> {
    let problem = match run {
        Run { shell: None, .. } => "the guest has not reached its shell",
        Run { cpus: found, .. } if *found != Some(cpus) => {
            "the guest has not found its processors, and no more"
        }
        Run { sum: None, .. } => "the guest has not read back its file",
        Run { powered_off: false, .. } => "the guest has not powered off",
        _ => return Ok(run.clone()),
    };
    let lines: Vec<&str> = run.serial.lines().collect();
    let tail = lines[lines.len().saturating_sub(30)..].join("\n");
    Err(format!("{problem} ({}); its last lines:\n{tail}", run.ended))
}

fn parse(args: &[String]) -> Result<Asked, String> {
    let mut asked = Asked { pc: Pc::Npt, words: Vec::new(), cpus: 1, by_instructions: false };
    let (mut pages, mut around) = ("2m", None);
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        match arg {
            "--npt" => asked.pc = Pc::Npt,
            "--ept" => asked.pc = Pc::Ept,
            "--cpus" => match args.next() {
                Some("1") => asked.cpus = 1,
                Some("2") => asked.cpus = 2,
                _ => return Err(format!("--cpus is 1 or 2\n{USAGE}")),
            },
            "--pages" => match args.next() {
                Some("4k") => pages = "4k",
                Some("2m") => pages = "2m",
                _ => return Err(format!("--pages is 4k or 2m\n{USAGE}")),
            },
            "--around" => match args.next().map(|pages| (pages, pages.parse::<u64>())) {
                Some((pages, Ok(number))) if number.is_power_of_two() => around = Some(pages),
                _ => return Err(format!("--around is a power of two\n{USAGE}")),
            },
            "--zap" | "--log-dirty" | "--age" => {
                asked.words.push(arg.trim_start_matches('-').into());
                asked.by_instructions = true;
            }
            _ => return Err(format!("no option is called {arg}\n{USAGE}")),
        }
    }
    if asked.cpus > 1 {
        if asked.pc == Pc::Ept {
            return Err(
                "--ept is for one processor: the second begins in real mode, which is done for AMD-V only"
                    .into(),
            );
        }
        asked.by_instructions = false;
        asked.words.push(format!("cpus={}", asked.cpus));
    }
    asked.words.push(format!("pages={pages}"));
    asked.words.push(format!("around={}", around.unwrap_or(AROUND)));
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Asked, String> {
        parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn options_become_words_of_the_hypervisor() {
        let asked = parsed(&["--ept", "--zap", "--pages", "4k", "--around", "1"]).unwrap();
        assert_eq!((asked.pc, asked.by_instructions), (Pc::Ept, true));
        assert_eq!(asked.words, ["zap", "pages=4k", "around=1"]);
        let plain = parsed(&[]).unwrap();
        assert_eq!((plain.cpus, plain.words), (1, ["pages=2m", "around=16"].map(String::from).into()));
        let two = parsed(&["--cpus", "2", "--zap"]).unwrap();
        assert_eq!(
            (two.cpus, two.by_instructions, two.words[..2].join(" ")),
            (2, false, "zap cpus=2".into())
        );
    }

    #[test]
    fn what_is_no_option_is_said() {
        for (wrong, named) in [
            ("--fast", "--fast"),
            ("--cpus", "1 or 2"),
            ("--pages", "4k or 2m"),
            ("--around", "power of two"),
        ] {
            assert!(parsed(&[wrong]).unwrap_err().contains(named), "{wrong}");
        }
        assert!(parsed(&["--around", "12"]).is_err());
        assert!(parsed(&["--cpus", "3"]).is_err());
        assert!(parsed(&["--ept", "--cpus", "2"]).unwrap_err().contains("one processor"));
    }

    #[test]
    fn a_run_is_whole_with_shell_sum_and_power_off() {
        let good = Run::judged("slat: shell\nslat: cpus 2\nslat: sum 1\nreport: 5 faults\n", true);
        assert!(whole(&good, 2).is_ok());
        assert!(whole(&good, 1).unwrap_err().contains("processors"));
        let lost = |edit: fn(&mut Run)| {
            let mut run = good.clone();
            edit(&mut run);
            whole(&run, 2).unwrap_err()
        };
        assert!(lost(|run| run.shell = None).contains("shell"));
        assert!(lost(|run| run.cpus = None).contains("processors"));
        assert!(lost(|run| run.sum = None).contains("file"));
        assert!(lost(|run| run.powered_off = false).contains("report: 5 faults"));
    }
}
