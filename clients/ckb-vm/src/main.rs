//! ckb-vm, a RISC-V emulator of other authors, on slat: `README.md` lists its files.
//!
//! `clients/ckb-vm/run` builds the programs and runs all checks.

#[macro_use]
mod mistakes;
mod checks;
#[cfg(not(feature = "mistakes"))]
mod measure;
mod ram;
mod run;
mod running_program;
mod slat_memory;
mod snapshot;
mod tlb;

use checks::{Checked, Program};
use std::path::Path;
use std::process::ExitCode;

const PROGRAMS: [&str; 6] = ["sort", "sha256", "matrix", "chase", "code", "atomics"];
/// The number of arguments that `faults` knows.
const FAULTS: u64 = 10;

/// Makes all checks of these programs and passes each result to `told`, until `told` returns false.
fn check(programs: &[Program], mut told: impl FnMut(String, Checked) -> bool) {
    let faults = |program: &&Program| program.name == "faults";
    for program in programs {
        let argument = if faults(&program) { format!(" {}", program.which) } else { String::new() };
        let mut tell = |check: &str, checked| told(format!("{}{argument} {check}", program.name), checked);
        let goes_on = tell("runs", program.runs())
            && (faults(&program)
                || tell("stops", program.stops(4))
                    && tell("is harvested meanwhile", program.harvested_meanwhile())
                    && tell("has ckb-vm's snapshots", program.by_flags()));
        if !goes_on {
            return;
        }
    }
}

#[cfg(not(feature = "mistakes"))]
fn checked(programs: &[Program]) -> Result<(), String> {
    let mut failed = 0;
    check(programs, |name, checked| {
        failed += u32::from(checked.is_err());
        let (word, said) = checked.map_or_else(|error| ("FAILED", error), |said| ("ok", said));
        println!("{word:6} {name}: {said}");
        true
    });
    if failed == 0 { Ok(()) } else { Err(format!("{failed} checks failed")) }
}

/// Checks that some check finds each mistake.
#[cfg(feature = "mistakes")]
fn checked(programs: &[Program]) -> Result<(), String> {
    for mistake in mistakes::ALL {
        mistakes::make(Some(mistake));
        let mut found = None;
        check(programs, |name, checked| {
            found = checked.err().map(|error| format!("{name}: {error}"));
            found.is_none()
        });
        mistakes::make(None);
        let found = found.ok_or_else(|| format!("{mistake:?} was not found"))?;
        println!("ok     mistake {mistake:?} is found: {found}");
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, rest @ ..] = &arguments[..] else {
        eprintln!(
            "usage: slat-client-ckb-vm FOLDER [measure], with the programs that `run` builds in FOLDER"
        );
        return ExitCode::from(2);
    };
    let read = |(name, which)| Program::read(Path::new(folder), name, which);
    let all = PROGRAMS.map(|name| (name, 0)).into_iter().chain((0..FAULTS).map(|which| ("faults", which)));
    let programs = all.map(read).collect::<Result<Vec<_>, _>>();
    let done = programs.and_then(|programs| match rest {
        #[cfg(not(feature = "mistakes"))]
        [measure] if measure == "measure" => measure::all(&programs[..4]),
        _ => checked(&programs),
    });
    if let Err(error) = done {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
