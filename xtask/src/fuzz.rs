//! `fuzz`: runs the targets of `proof/fuzz/` under libFuzzer.
//!
//! The stable compiler builds the fuzzer: coverage is a pass of LLVM's, and the sanitizers' runtimes come with it.
//! Findings of a run stay in `target/fuzz/found`, and later runs begin with them; only `--keep` changes committed
//! files. Runs that look for a mistake ([`hunt`], for `mutants`) begin with the committed corpus alone and a fixed seed, so
//! their number of inputs does not depend on earlier runs.

use crate::outcome::Outcome;
use crate::process::{bounded, cargo, emptied, on_every_processor, said, succeed, tail};
use anyhow::{Result, anyhow, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Targets, in the order in which they run.
const TARGETS: [&str; 9] = ["vm", "slots", "trace", "lru_gen", "swap", "sound", "nested", "pager", "map"];
const FOLDER: &str = "target/fuzz";
/// The explicit target keeps the flags away from build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Coverage for libFuzzer: counters on the edges of the program, and a table of their places.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing";
/// Longest input in bytes: the number of choices that a target makes.
const LONGEST: u32 = 400;
/// Most files of the committed corpus for each target.
const KEPT: usize = 60;
/// The target that leaks on purpose: leak checks of libFuzzer and the sanitizer are off.
const LEAKS: &str = "sound";
const SHOWN: usize = 40;
/// Inputs after which a mistake counts as not found, and the time limit in seconds.
const MOST_RUNS: u32 = 100_000;
const MOST_SECONDS: u32 = 900;

#[derive(clap::Args)]
pub struct Args {
    /// All targets, unless some are named
    #[arg(value_parser = TARGETS)]
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Inputs for each target instead, from the committed corpus and a fixed seed: the same in each run
    #[arg(long, value_name = "N", conflicts_with_all = ["seconds", "keep"])]
    runs: Option<u32>,
    /// Find each mistake that a fuzzer is to find, as `mutants --tool Fuzz` does; then run each target by the same build, which
    /// has no sanitizer
    #[arg(long, conflicts_with = "keep")]
    mistakes: bool,
    /// Only rebuild the corpus: add the inputs found since the last time, and minimise it
    #[arg(long)]
    keep: bool,
}

/// The chore. `of_mistakes` finds the mistakes for a fuzzer, and returns the path of its program.
pub fn run(args: &Args, of_mistakes: impl FnOnce() -> Result<String>) -> Outcome {
    let named = |target: &&str| args.targets.is_empty() || args.targets.iter().any(|name| name == target);
    let targets: Vec<&str> = TARGETS.into_iter().filter(named).collect();
    let fuzzer = if args.mistakes { Fuzzer(of_mistakes()?.into()) } else { Fuzzer::build()? };
    if args.keep {
        return targets.iter().try_for_each(|target| fuzzer.keep(target));
    }
    on_every_processor(&targets, |target| fuzzer.look(target, args))
}

struct Fuzzer(PathBuf);

impl Fuzzer {
    /// Builds with `AddressSanitizer`.
    fn build() -> Result<Self> {
        let mut cargo = cargo("build --locked -p slat-fuzz");
        succeed(with_coverage(cargo.env("CARGO_TARGET_DIR", FOLDER), "-Zsanitizer=address"))?;
        Ok(Self(Path::new(FOLDER).join(TRIPLE).join("fuzz/fuzz")))
    }

    /// Runs libFuzzer. Returns whether it found nothing, and its output.
    fn run(&self, target: &str, set: impl FnOnce(&mut Command)) -> Result<(bool, String)> {
        let mut command = Command::new(&self.0);
        of_target(&mut command, target);
        if target == LEAKS {
            command.arg("-detect_leaks=0").env("ASAN_OPTIONS", "detect_leaks=0");
        }
        set(&mut command);
        let said = said(&mut command)?;
        Ok((said.status.success(), said.err))
    }

    fn look(&self, target: &str, args: &Args) -> Outcome {
        let (found, corpus) = (found(target)?, corpus(target));
        let fresh = found.with_extension("fresh");
        emptied(&fresh)?;
        let crashes = Path::new("proof/fuzz/crashes").join(target);
        fs::create_dir_all(&crashes)?;
        let (fine, said) = self.run(target, |command| {
            command.arg(format!("-artifact_prefix={}/", crashes.display()));
            match args.runs {
                Some(runs) => command.args(["-seed=1", &format!("-runs={runs}")]).args([&fresh, &corpus]),
                None => command.arg(format!("-max_total_time={}", args.seconds)).args([&found, &corpus]),
            };
        })?;
        // The folder stays if it is not empty.
        let _ = fs::remove_dir(&crashes);
        println!("EXECUTIONS Fuzz {target} {}", executions(&said));
        if fine {
            return Ok(());
        }
        println!("{}", tail(&said, SHOWN));
        ensure!(said.contains("Test unit written to "), "{target}: libFuzzer failed");
        println!("\nkept in proof/fuzz/crashes/{target}; `cargo test -p slat-fuzz` replays it, and so does");
        println!("  SLAT_FUZZ_STEPS=1 SLAT_FUZZ_TARGET={target} {} FILE", self.0.display());
        Err(anyhow!("{target}: an input was found"))
    }

    /// Keeps a small set of inputs with the full coverage.
    fn keep(&self, target: &str) -> Outcome {
        let (found, corpus) = (found(target)?, corpus(target));
        let fresh = corpus.with_extension("new");
        emptied(&fresh)?;
        fs::create_dir_all(&corpus)?;
        let (fine, said) = self.run(target, |command| {
            command.args(["-set_cover_merge=1"]).args([&fresh, &corpus, &found]);
        })?;
        ensure!(fine, tail(&said, SHOWN));
        let mut files =
            fs::read_dir(&fresh)?.map(|file| file.map(|file| file.path())).collect::<Result<Vec<_>, _>>()?;
        // In libFuzzer's order: each time the input that adds most.
        files.sort_by_cached_key(|file| file.metadata().and_then(|file| file.modified()).ok());
        files.drain(..files.len().min(KEPT));
        files.iter().try_for_each(fs::remove_file)?;
        fs::remove_dir_all(&corpus)?;
        fs::rename(&fresh, &corpus)?;
        println!("{target}: {} inputs kept", fs::read_dir(&corpus)?.count());
        Ok(())
    }
}

/// Makes cargo build the targets, with coverage and these flags.
pub fn with_coverage<'a>(cargo: &'a mut Command, flags: &str) -> &'a mut Command {
    // Coverage and sanitizers are unstable; a changed compiler shows as a failed build.
    cargo.env("RUSTFLAGS", format!("{COVERAGE} {flags}")).env("RUSTC_BOOTSTRAP", "1");
    cargo.args(["--profile", "fuzz", "--features", "libfuzzer", "--target", TRIPLE])
}

/// Sets how libFuzzer runs a target.
fn of_target<'a>(command: &'a mut Command, target: &str) -> &'a mut Command {
    command.env("SLAT_FUZZ_TARGET", target).arg(format!("-max_len={LONGEST}"));
    command.args(["-print_final_stats=1", "-len_control=0", "-timeout=20", "-rss_limit_mb=4096"])
}

/// Returns the command in which a target looks for a mistake. Its findings are kept in `folder`.
pub fn hunt(program: &str, target: &str, folder: &Path) -> Result<Command> {
    // Findings of an earlier run must not help.
    emptied(folder)?;
    let mut command = bounded(MOST_SECONDS, program);
    of_target(&mut command, target).arg("-seed=1").arg(format!("-runs={MOST_RUNS}"));
    command.arg(format!("-artifact_prefix={}/", folder.display()));
    command.args([folder, &std::path::absolute(corpus(target))?]);
    Ok(command)
}

fn corpus(target: &str) -> PathBuf {
    Path::new("proof/fuzz/corpus").join(target)
}

/// Returns the folder of findings, and makes it if it is missing.
fn found(target: &str) -> io::Result<PathBuf> {
    let folder = Path::new("target/fuzz/found").join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Returns the number of inputs, by libFuzzer's own count.
pub fn executions(said: &str) -> u64 {
    let count = said.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_counted_as_libfuzzer_counts_them() {
        assert_eq!(executions("#3 DONE\nstat::number_of_executed_units: 4535\nstat::x: 1\n"), 4535);
        assert_eq!(executions("killed"), 0);
    }
}
