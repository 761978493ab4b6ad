//! `fuzz`: runs the targets of `fuzz/` under libFuzzer.
//!
//! The stable compiler builds the fuzzer: coverage is a pass of LLVM's, and the sanitizers' runtimes come with it.
//! Findings of a run stay in `target/fuzz/found`, and later runs begin with them; only `--keep` changes committed
//! files. Runs that look for seeded mistakes begin with the committed corpus alone and a fixed seed, so their number of
//! inputs does not depend on earlier runs.

use crate::Outcome;
use crate::process::{cargo, emptied, on_every_processor, said, succeed, tail};
use anyhow::{Result, anyhow, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Targets, in the order in which they run.
const TARGETS: [&str; 9] = ["vm", "slots", "trace", "lru_gen", "swap", "sound", "nested", "pager", "map"];
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
/// The target that must find the engine's seeded mistakes, and those that another target must find.
const SEEDED: &str = "vm";
const SEEDED_ELSEWHERE: [(&str, &str); 1] = [("parts-alike", "map")];
const SHOWN: usize = 40;
/// Inputs after which a seeded mistake counts as not found.
const MOST_RUNS: u32 = 100_000;

#[derive(clap::Args)]
pub struct Args {
    /// All targets, unless some are named
    #[arg(value_parser = TARGETS)]
    targets: Vec<String>,
    /// How long for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// So many inputs for each target instead, from the committed corpus and a fixed seed: the same in each run
    #[arg(long, value_name = "N", conflicts_with_all = ["seconds", "keep"])]
    runs: Option<u32>,
    /// Make each mistake that a fuzzer is to find, which must be found; then run each target without a mistake, by the same
    /// build, which has no sanitizer
    #[arg(long, conflicts_with = "keep")]
    seeded: bool,
    /// Only make the corpus anew: what was found since the last time, minimised
    #[arg(long)]
    keep: bool,
}

pub fn run(args: &Args) -> Outcome {
    let named = |target: &&str| args.targets.is_empty() || args.targets.iter().any(|name| name == target);
    let targets: Vec<&str> = TARGETS.into_iter().filter(named).collect();
    let fuzzer = Fuzzer::build(args.seeded)?;
    if args.keep {
        return targets.iter().try_for_each(|target| fuzzer.keep(target));
    }
    if args.seeded {
        let list = fs::read_to_string("slat/src/seeded.rs")?;
        on_every_processor(&names(&list).collect::<Vec<_>>(), |bug| fuzzer.find_seeded(bug))?;
    }
    on_every_processor(&targets, |target| fuzzer.look(target, args))
}

struct Fuzzer(PathBuf);

impl Fuzzer {
    /// Builds with `AddressSanitizer`; or with the seeded mistakes, which the targets' comparisons find.
    fn build(seeded: bool) -> Result<Self> {
        let folder = if seeded { "target/fuzz-seeded" } else { "target/fuzz" };
        let more = if seeded { "--cfg seeded" } else { "-Zsanitizer=address" };
        let mut cargo =
            cargo("build --profile fuzz --locked --package slat-fuzz --features libfuzzer --target");
        cargo.arg(TRIPLE).env("CARGO_TARGET_DIR", folder).env("RUSTFLAGS", format!("{COVERAGE} {more}"));
        // Coverage and sanitizers are unstable; a changed compiler shows as a failed build.
        succeed(cargo.env("RUSTC_BOOTSTRAP", "1"))?;
        Ok(Self(Path::new(folder).join(TRIPLE).join("fuzz/fuzz")))
    }

    /// Runs libFuzzer. Returns whether it found nothing, and its output.
    fn run(&self, target: &str, set: impl FnOnce(&mut Command)) -> Result<(bool, String)> {
        let mut command = Command::new(&self.0);
        command.env("SLAT_FUZZ_TARGET", target).arg(format!("-max_len={LONGEST}"));
        command.args(["-print_final_stats=1", "-len_control=0", "-timeout=20", "-rss_limit_mb=4096"]);
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
        let crashes = Path::new("fuzz/crashes").join(target);
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
        println!("\nkept in fuzz/crashes/{target}; `cargo test -p slat-fuzz` replays it, and so does");
        println!("  SLAT_FUZZ_STEPS=1 SLAT_FUZZ_TARGET={target} {} FILE", self.0.display());
        Err(anyhow!("{target}: an input was found"))
    }

    /// Makes a mistake, and fails if it is not found.
    fn find_seeded(&self, bug: &str) -> Outcome {
        let folder = Path::new("target/fuzz-seeded/found").join(bug);
        // Findings of an earlier run must not help.
        emptied(&folder)?;
        let target = seeded_target(bug);
        let (fine, said) = self.run(target, |command| {
            command.env("SLAT_SEEDED", bug).arg("-seed=1").arg(format!("-runs={MOST_RUNS}"));
            command.arg(format!("-artifact_prefix={}/", folder.display()));
            command.args([&folder, &corpus(target)]);
        })?;
        let inputs = executions(&said);
        // An endless run counts as found, too.
        let is_found = ["panicked at", "libFuzzer: timeout"].iter().any(|sign| said.contains(sign));
        ensure!(!fine && is_found, "{bug}: not found by {target} in {inputs} inputs");
        println!("SEEDED {bug} Fuzz {inputs}");
        Ok(())
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

/// Returns the target that must find this mistake.
fn seeded_target(bug: &str) -> &'static str {
    SEEDED_ELSEWHERE.iter().find(|(name, _)| *name == bug).map_or(SEEDED, |(_, target)| target)
}

fn corpus(target: &str) -> PathBuf {
    Path::new("fuzz/corpus").join(target)
}

/// Returns the folder of findings, and makes it if it is missing.
fn found(target: &str) -> io::Result<PathBuf> {
    let folder = Path::new("target/fuzz/found").join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Returns the number of inputs, by libFuzzer's own count.
fn executions(said: &str) -> u64 {
    let count = said.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Returns the mistakes that a fuzzer must find, from the engine's list: `Name "name" Fuzz "what"`.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| {
        let mut parts = line.split('"');
        let (_, name, tool) = (parts.next()?, parts.next()?, parts.next()?);
        (tool.trim() == "Fuzz").then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_for_the_fuzzer_are_listed() {
        let list =
            "    A \"a-b\" Fuzz \"words \\\"c\\\"\",\n    B \"b\" Loom \"x\",\n//! SLAT_SEEDED=\"no\" Fuzz\n";
        assert_eq!(names(list).collect::<Vec<_>>(), ["a-b", "no"]);
        let names: Vec<_> = names(include_str!("../../slat/src/seeded.rs")).collect();
        assert!(names.len() >= 5);
        for (name, target) in SEEDED_ELSEWHERE {
            assert!(names.contains(&name) && TARGETS.contains(&target));
            assert_eq!(seeded_target(name), target);
        }
    }

    #[test]
    fn inputs_are_counted_as_libfuzzer_counts_them() {
        assert_eq!(executions("#3 DONE\nstat::number_of_executed_units: 4535\nstat::x: 1\n"), 4535);
        assert_eq!(executions("killed"), 0);
    }
}
