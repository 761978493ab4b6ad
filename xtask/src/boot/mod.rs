//! `boot`: Debian's kernel, unmodified, on the bare machine and as a guest of `walkers/hypervisor`, whose memory is slat's.
//!
//! ```text
//! apt-get download ─▶ kernel ─┐
//! busybox, a script ─▶ initrd ┼─▶ an emulated PC ─▶ serial port: "slat: shell …", "report: …" ─▶ a table
//! cargo ─▶ hypervisor ────────┘        twice: plain, and under slat
//! ```
//! [`ground`] brings what is needed, [`initrd`] makes the initial file system, [`machine`] runs a PC and watches its serial
//! port, [`report`] compares. A boot has succeeded when the guest has reached its shell, its memory is what it wrote, and
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
    /// Something is done on timer interrupts. Then time is counted in instructions, so that what happens between two of
    /// them is the same on a slow machine and on a busy one.
    chores: bool,
}

const USAGE: &str =
    "usage: cargo xtask boot [--npt | --ept] [--pages 4k|2m] [--around PAGES] [--zap] [--log-dirty] [--age]";
/// Pages that a fault maps where they are small, unless said otherwise: as Linux does it for files.
const AROUND: &str = "16";

/// The chore.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let asked = parse(args)?;
    let ground = match Ground::prepare(root, asked.pc) {
        Ok(ground) => ground,
        Err(error) => return emulator::skip(error.downcast_ref::<Missing>().ok_or(error.to_string())?),
    };
    eprintln!("boot: {} on {}", ground.kernel_version, asked.pc.name());
    let plain = whole(&ground.boot(asked.pc, &["plain".into()], asked.chores, None)?)?;
    let under = whole(&ground.boot(asked.pc, &asked.words, asked.chores, None)?)?;
    print!("{}", report::compare(&ground.kernel_version, asked.pc, &asked.words, &plain, &under)?);
    Ok(())
}

/// Every fault of a boot with pages of 4 KiB that are all unmapped by each timer interrupt, as lines of a memory trace;
/// and what was booted. The same each time.
pub fn faults(root: &Path) -> Result<(String, String), Box<dyn Error>> {
    let ground = Ground::prepare(root, Pc::Npt)?;
    let trace = ground.folder.join("trace");
    let words = ["pages=4k", "zap", "record"].map(String::from);
    whole(&ground.boot(Pc::Npt, &words, true, Some(&trace))?)?;
    Ok((std::fs::read_to_string(trace)?, ground.kernel_version))
}

/// The run, if its guest has done all it should; else what its serial port said last.
fn whole(run: &Run) -> Result<Run, String> {
    let problem = match run {
        Run { shell: None, .. } => "the guest has not reached its shell",
        Run { sum: None, .. } => "the guest has not read back its file",
        Run { powered_off: false, .. } => "the guest has not powered off",
        _ => return Ok(run.clone()),
    };
    let lines: Vec<&str> = run.serial.lines().collect();
    let tail = lines[lines.len().saturating_sub(30)..].join("\n");
    Err(format!("{problem} ({}); its last lines:\n{tail}", run.ended))
}

fn parse(args: &[String]) -> Result<Asked, String> {
    let mut asked = Asked { pc: Pc::Npt, words: Vec::new(), chores: false };
    let (mut pages, mut around) = ("2m", None);
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        match arg {
            "--npt" => asked.pc = Pc::Npt,
            "--ept" => asked.pc = Pc::Ept,
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
                asked.chores = true;
            }
            _ => return Err(format!("no option is called {arg}\n{USAGE}")),
        }
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
        assert_eq!((asked.pc, asked.chores), (Pc::Ept, true));
        assert_eq!(asked.words, ["zap", "pages=4k", "around=1"]);
        assert_eq!(parsed(&[]).unwrap().words, ["pages=2m", "around=16"]);
    }

    #[test]
    fn what_is_no_option_is_said() {
        for (wrong, named) in [("--fast", "--fast"), ("--pages", "4k or 2m"), ("--around", "power of two")] {
            assert!(parsed(&[wrong]).unwrap_err().contains(named), "{wrong}");
        }
        assert!(parsed(&["--around", "12"]).is_err());
    }

    #[test]
    fn a_run_is_whole_with_shell_sum_and_power_off() {
        let good = Run::judged("slat: shell\nslat: sum 1\nreport: 5 faults\n", true);
        assert!(whole(&good).is_ok());
        let lost = |edit: fn(&mut Run)| {
            let mut run = good.clone();
            edit(&mut run);
            whole(&run).unwrap_err()
        };
        assert!(lost(|run| run.shell = None).contains("shell"));
        assert!(lost(|run| run.sum = None).contains("file"));
        assert!(lost(|run| run.powered_off = false).contains("report: 5 faults"));
    }
}
