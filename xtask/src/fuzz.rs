//! `fuzz`: what slat must hold of any bytes (`fuzz/`), looked for by libFuzzer.
//!
//! ```text
//! cargo xtask fuzz [--seconds N] [TARGET…]   a minute each, from the corpus that is kept
//! cargo xtask fuzz --seeded [--seconds N]    each mistake that a fuzzer is to find, made; it must be found. Then, by the
//!                                            same build, which has no sanitizer, each target without a mistake
//! cargo xtask fuzz --keep [TARGET…]          the corpus anew: what was found since the last time, minimised
//! ```
//! The fuzzer is built by the stable compiler: coverage is a pass of LLVM's, and the sanitizers' runtimes come with it.
//! What a run finds stays in `target/fuzz/found`, and later runs begin with it; only `--keep` changes what is committed.
//! Runs that look for seeded mistakes begin with the committed corpus alone and a fixed seed, so their number of inputs
//! does not depend on what else was done.

use crate::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// Targets, in the order in which they run.
const TARGETS: [&str; 6] = ["vm", "slots", "trace", "lru_gen", "swap", "sound"];
/// Where the compiler is told explicitly, what it builds with is not for build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// What guides libFuzzer: counters on the edges of the program, and a table of their places.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing";
/// The longest input, in bytes: as many choices as a target makes.
const LONGEST: u32 = 400;
/// Files of the committed corpus for each target at most.
const KEPT: usize = 60;
/// The target that leaks on purpose.
const LEAKS: &str = "sound";
/// The target that finds the engine's mistakes.
const SEEDED: &str = "vm";
/// Inputs after which a seeded mistake counts as not found.
const MOST_RUNS: u32 = 100_000;

/// The chore.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let (mut seconds, mut mode, mut targets) = (60, Mode::Run, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let number = args.next().ok_or("--seconds: how many?")?;
                seconds = number.parse().map_err(|_| format!("--seconds {number}: a number of seconds"))?;
            }
            "--seeded" => mode = Mode::Seeded,
            "--keep" => mode = Mode::Keep,
            name => match TARGETS.iter().find(|target| **target == name) {
                Some(target) => targets.push(*target),
                None => {
                    return Err(
                        format!("no target is called {name}; there are {}", TARGETS.join(", ")).into()
                    );
                }
            },
        }
    }
    let targets = if targets.is_empty() { TARGETS.to_vec() } else { targets };
    match mode {
        Mode::Run => {
            let fuzzer = Fuzzer::build(root, false)?;
            on_every_processor(&targets, |target| fuzzer.look(target, seconds))
        }
        Mode::Seeded => {
            let fuzzer = Fuzzer::build(root, true)?;
            on_every_processor(&seeded(root)?, |bug| fuzzer.find_seeded(bug))?;
            on_every_processor(&targets, |target| fuzzer.look(target, seconds))
        }
        Mode::Keep => {
            let fuzzer = Fuzzer::build(root, false)?;
            targets.iter().try_for_each(|target| fuzzer.keep(target))
        }
    }
}

/// What is asked for.
enum Mode {
    Run,
    Seeded,
    Keep,
}

/// The program, built.
struct Fuzzer {
    root: PathBuf,
    program: PathBuf,
}

impl Fuzzer {
    /// With `AddressSanitizer`; or with the mistakes in it, which are found by what the targets compare.
    fn build(root: &Path, seeded: bool) -> Result<Self, Box<dyn std::error::Error>> {
        let (folder, more) =
            if seeded { ("fuzz-seeded", "--cfg seeded") } else { ("fuzz", "-Zsanitizer=address") };
        let folder = root.join("target").join(folder);
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--profile",
                "fuzz",
                "--locked",
                "--package",
                "slat-fuzz",
                "--features",
                "libfuzzer",
            ])
            .args(["--target", TRIPLE])
            .env("CARGO_TARGET_DIR", &folder)
            .env("RUSTFLAGS", format!("{COVERAGE} {more}"))
            // Coverage and sanitizers are not promised to stay as they are; a build that fails says so.
            .env("RUSTC_BOOTSTRAP", "1")
            .current_dir(root)
            .status()?;
        if !status.success() {
            return Err(format!("cargo build: {status}").into());
        }
        Ok(Self { root: root.to_owned(), program: folder.join(TRIPLE).join("fuzz/fuzz") })
    }

    /// Runs libFuzzer, and returns whether it found nothing, and all that it said.
    fn run(&self, target: &str, set: impl FnOnce(&mut Command)) -> Result<(bool, String), std::io::Error> {
        let mut command = Command::new(&self.program);
        command.env("SLAT_FUZZ_TARGET", target).current_dir(&self.root);
        command.args(["-print_final_stats=1", "-len_control=0", "-timeout=20", "-rss_limit_mb=4096"]);
        command.arg(format!("-max_len={LONGEST}"));
        if target == LEAKS {
            command.arg("-detect_leaks=0");
        }
        set(&mut command);
        let output = command.output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    fn corpus(&self, target: &str) -> PathBuf {
        self.root.join("fuzz/corpus").join(target)
    }

    /// What runs have found; made if there is none.
    fn found(&self, target: &str) -> Result<PathBuf, std::io::Error> {
        let folder = self.root.join("target").join("fuzz/found").join(target);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Looks for anything wrong.
    fn look(&self, target: &str, seconds: u32) -> Outcome {
        let (found, corpus) = (self.found(target)?, self.corpus(target));
        let crashes = self.root.join("fuzz/crashes").join(target);
        fs::create_dir_all(&crashes)?;
        let (fine, said) = self.run(target, |command| {
            command.arg(format!("-max_total_time={seconds}"));
            command.arg(format!("-artifact_prefix={}/", crashes.display()));
            command.args([&found, &corpus]);
        })?;
        // It stays where there is something in it.
        let _ = fs::remove_dir(&crashes);
        println!("EXECUTIONS Fuzz {target} {}", executions(&said));
        if fine {
            return Ok(());
        }
        println!("{}", tail(&said));
        if !said.contains("Test unit written to ") {
            return Err(format!("{target}: libFuzzer failed").into());
        }
        println!("\nkept in fuzz/crashes/{target}; `cargo test -p slat-fuzz` replays it, and so does");
        println!("  SLAT_FUZZ_STEPS=1 SLAT_FUZZ_TARGET={target} {} FILE", self.program.display());
        Err(format!("{target}: an input was found").into())
    }

    /// Makes a mistake, and demands that it is found.
    fn find_seeded(&self, bug: &str) -> Outcome {
        let folder = self.root.join("target/fuzz-seeded/found").join(bug);
        // What an earlier run found must not help.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let (fine, said) = self.run(SEEDED, |command| {
            command.env("SLAT_SEEDED", bug).arg("-seed=1").arg(format!("-runs={MOST_RUNS}"));
            command.arg(format!("-artifact_prefix={}/", folder.display()));
            command.args([&folder, &self.corpus(SEEDED)]);
        })?;
        let inputs = executions(&said);
        // One that does not come back is found, too.
        if fine || !["panicked at", "libFuzzer: timeout"].iter().any(|sign| said.contains(sign)) {
            return Err(format!("{bug}: not found by {SEEDED} in {inputs} inputs").into());
        }
        println!("SEEDED {bug} Fuzz {inputs}");
        Ok(())
    }

    /// Keeps the smallest inputs that together reach everything that is reached, and not too many.
    fn keep(&self, target: &str) -> Outcome {
        let (found, corpus) = (self.found(target)?, self.corpus(target));
        let fresh = corpus.with_extension("new");
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir_all(&fresh)?;
        fs::create_dir_all(&corpus)?;
        let (fine, said) = self.run(target, |command| {
            command.args(["-set_cover_merge=1"]).args([&fresh, &corpus, &found]);
        })?;
        if !fine {
            return Err(tail(&said).into());
        }
        let mut files =
            fs::read_dir(&fresh)?.map(|file| file.map(|file| file.path())).collect::<Result<Vec<_>, _>>()?;
        // As libFuzzer chose them: each time the one that adds most.
        files.sort_by_cached_key(|file| file.metadata().and_then(|file| file.modified()).ok());
        files.drain(..files.len().min(KEPT));
        files.iter().try_for_each(fs::remove_file)?;
        fs::remove_dir_all(&corpus)?;
        fs::rename(&fresh, &corpus)?;
        println!("{target}: {} inputs kept", fs::read_dir(&corpus)?.count());
        Ok(())
    }
}

/// Does `work` for each of `items`, as many at once as there are processors; says of each that failed, why.
fn on_every_processor<T: Sync>(items: &[T], work: impl Fn(&T) -> Outcome + Sync) -> Outcome {
    let (left, failures) = (Mutex::new(items.iter()), Mutex::new(Vec::new()));
    let next = || left.lock().expect("nobody panics under it").next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    if let Err(failure) = work(item) {
                        failures.lock().expect("nobody panics under it").push(failure.to_string());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics under it");
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Inputs tried, by libFuzzer's own count.
fn executions(said: &str) -> u64 {
    let count = said.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The end of what was said.
fn tail(said: &str) -> String {
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// The mistakes that are a fuzzer's to find, as the engine lists them.
fn seeded(root: &Path) -> Result<Vec<String>, std::io::Error> {
    let list = fs::read_to_string(root.join("slat/src/seeded.rs"))?;
    Ok(names(&list).map(String::from).collect())
}

/// `Name "name" Fuzz "what"`: the names.
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert!(seeded(root).unwrap().len() >= 5);
    }

    #[test]
    fn inputs_are_counted_as_libfuzzer_counts_them() {
        assert_eq!(executions("#3 DONE\nstat::number_of_executed_units: 4535\nstat::x: 1\n"), 4535);
        assert_eq!(executions("killed"), 0);
    }
}
