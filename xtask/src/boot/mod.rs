//! `boot`: Debian's kernel, unmodified, on the bare machine and as a guest of `walkers/hypervisor`, whose memory is slat's.
//!
//! ```text
//! apt-get download ─▶ kernel ─┐
//! busybox, init.sh ─▶ initrd ─┼─▶ an emulated PC ─▶ serial port: "slat: shell …", "report: …" ─▶ a table
//! cargo ─▶ hypervisor ────────┘        twice: plain, and under slat
//! ```
//! [`ground`] brings what is needed, [`machine`] runs a PC and hears its serial port. A boot has succeeded
//! when the guest has reached its shell with all its processors, its memory is what it wrote, and it has powered the machine
//! off. Where something is not installed the chore says what, and has nothing to do.

mod ground;
mod machine;

use crate::emulator::or_skipped;
use crate::process::tail;
use crate::{Outcome, misuse};
use ground::Ground;
use machine::{EPT, Guest, NPT, Pc, Run};
use std::error::Error;
use std::fmt::Write as _;

/// How the guest's memory is mapped, and how it is treated.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Args {
    /// On QEMU's AMD-V, as it is without --ept
    #[arg(long, conflicts_with = "ept")]
    npt: bool,
    /// On Bochs's VMX
    #[arg(long)]
    ept: bool,
    /// The machine's processors, and the guest's: 1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    cpus: u32,
    /// What maps the guest's memory
    #[arg(long, default_value = "2m", value_parser = ["4k", "2m"])]
    pages: String,
    /// Pages that a fault maps where they are small, as Linux does it for files: a power of two
    #[arg(long, value_name = "PAGES", default_value_t = 16, value_parser = power_of_two)]
    around: u64,
    /// Unmap everything on each timer interrupt
    #[arg(long)]
    zap: bool,
    /// Harvest a dirty log on each timer interrupt
    #[arg(long)]
    log_dirty: bool,
    /// Age everything on each timer interrupt
    #[arg(long)]
    age: bool,
}

fn power_of_two(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number: &u64| number.is_power_of_two());
    number.ok_or_else(|| "it is a power of two".to_owned())
}

impl Args {
    fn guest(&self) -> Guest<'static> {
        let chores = [(self.zap, "zap"), (self.log_dirty, "log-dirty"), (self.age, "age")];
        let asked = chores.into_iter().filter(|(asked, _)| *asked);
        let mut words: Vec<String> = asked.map(|(_, word)| word.to_owned()).collect();
        // With one processor, as no kernel starts a second one by that clock of QEMU's 7.2, slat or not.
        let by_instructions = !words.is_empty() && self.cpus == 1;
        if self.cpus > 1 {
            words.push(format!("cpus={}", self.cpus));
        }
        words.push(format!("pages={}", self.pages));
        words.push(format!("around={}", self.around));
        Guest { words, cpus: self.cpus, by_instructions, trace: None }
    }
}

pub fn run(args: &Args) -> Outcome {
    if args.ept && args.cpus > 1 {
        return misuse(
            "--ept is for one processor: the second begins in real mode, which is done for AMD-V only",
        );
    }
    or_skipped(compare(if args.ept { EPT } else { NPT }, &args.guest()))
}

fn compare(pc: Pc, guest: &Guest) -> Outcome {
    let ground = Ground::prepare(pc)?;
    eprintln!("boot: {} on {}", ground.kernel_version, pc.name);
    let plain = whole(ground.boot(&Guest { words: vec!["plain".into()], ..guest.clone() })?, guest.cpus)?;
    let under = whole(ground.boot(guest)?, guest.cpus)?;
    let what = format!("{} on {}; {}", ground.kernel_version, pc.name, guest.words.join(" "));
    print!("{}", side_by_side(&what, &plain, &under)?);
    Ok(())
}

/// Every fault of a boot with pages of 4 KiB that are all unmapped by each timer interrupt, as lines of a memory trace;
/// and what was booted. The same each time.
pub fn faults() -> Result<(String, String), Box<dyn Error>> {
    let ground = Ground::prepare(NPT)?;
    let trace = ground.folder.join("trace");
    let words = ["pages=4k", "zap", "record"].map(String::from).to_vec();
    whole(ground.boot(&Guest { words, cpus: 1, by_instructions: true, trace: Some(&trace) })?, 1)?;
    Ok((std::fs::read_to_string(trace)?, ground.kernel_version))
}

/// The run, if its guest has done all it should; else what its serial port said last.
fn whole(run: Run, cpus: u32) -> Result<Run, String> {
    let problem = if run.shell.is_none() {
        "the guest has not reached its shell"
    } else if run.cpus() != Some(cpus) {
        "the guest has not found its processors, and no more"
    } else if run.sum().is_none() {
        "the guest has not read back its file"
    } else if !run.powered_off {
        "the guest has not powered off"
    } else {
        return Ok(run);
    };
    Err(format!("{problem} (the emulator ended: {}); its last lines:\n{}", run.status, tail(&run.serial, 30)))
}

/// A table for people, headed by what was booted. An error where the two guests did not read the same from their memory.
fn side_by_side(what: &str, plain: &Run, under: &Run) -> Result<String, Box<dyn Error>> {
    if plain.sum() != under.sum() {
        return Err("under slat the guest has read something else from its memory than without".into());
    }
    let mut text = format!("{what}\n");
    writeln!(text, "{:<24}{:>10}{:>12}{:>8}", "", "plain", "under slat", "ratio")?;
    let shells = [plain, under].map(|run| run.shell.unwrap_or_default());
    let (ends, works) = ([plain.end, under.end], [plain.work, under.work]);
    for (what, [plain, under]) in
        [("to the shell", shells), ("to power-off", ends), ("processor time", works)]
    {
        let ratio = under.as_secs_f64() / plain.as_secs_f64();
        writeln!(text, "{what:<24}{plain:>10.2?}{under:>12.2?}{ratio:>7.2}x")?;
    }
    for (number, what) in under.report().filter(|(number, _)| *number > 0) {
        writeln!(text, "{what:<24}{number:>10}")?;
        if what == "dirty pages" {
            writeln!(text, "{:<24}{:>10.0}", "… per second", number as f64 / under.end.as_secs_f64())?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(line.split(' ')).map(|line| line.args)
    }

    #[test]
    fn options_become_words_of_the_hypervisor() {
        let guest = |line| {
            let guest = parsed(line).unwrap().guest();
            (guest.cpus, guest.by_instructions, guest.words.join(" "))
        };
        assert_eq!(guest("boot"), (1, false, "pages=2m around=16".into()));
        let ept = guest("boot --ept --zap --pages 4k --around 1");
        assert_eq!(ept, (1, true, "zap pages=4k around=1".into()));
        assert_eq!(guest("boot --cpus 2 --zap"), (2, false, "zap cpus=2 pages=2m around=16".into()));
    }

    #[test]
    fn what_cannot_be_booted_is_refused() {
        for wrong in ["--cpus 3", "--pages 1g", "--around 12", "--npt --ept", "--fast"] {
            assert!(parsed(&format!("boot {wrong}")).is_err(), "{wrong}");
        }
        assert!(
            run(&parsed("boot --ept --cpus 2").unwrap()).unwrap_err().to_string().contains("one processor")
        );
    }

    #[test]
    fn a_run_is_whole_with_shell_sum_and_power_off() {
        let why = |serial: &str, powered_off| whole(Run::judged(serial, powered_off), 2).err();
        let all = "slat: shell\nslat: cpus 2\nslat: sum 1\nreport: 5 faults\n";
        assert_eq!(why(all, true), None);
        for (lost, named) in [("shell", "shell"), ("cpus 2", "processors"), ("sum", "file")] {
            assert!(why(&all.replace(lost, "lost"), true).unwrap().contains(named), "{lost}");
        }
        assert!(why(all, false).unwrap().ends_with("report: 5 faults"));
    }

    #[test]
    fn two_guests_are_compared_if_they_read_the_same() {
        let run = |serial: &str| Run::judged(serial, true);
        let one = run("slat: shell\nslat: sum 1\n");
        let text = side_by_side("", &one, &run("slat: sum 1\nreport: 5 faults\nreport: 0 zaps\n")).unwrap();
        assert!(text.contains("1.00x") && text.contains("faults") && !text.contains("zaps"), "{text}");
        assert!(side_by_side("", &one, &run("slat: sum 2")).is_err());
    }
}
