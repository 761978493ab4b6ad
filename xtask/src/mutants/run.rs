//! The test programs of the copy, and one test with one mistake.

use super::copy::{Copied, VARIABLE};
use super::record::{Seen, Tool};
use crate::process::{bounded, executables, never_began, said, tail, test_programs, was_ended};
use crate::sanitize::with_thread_sanitizer;
use crate::{fuzz, miri};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A test program of a package.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    pub package: String,
    pub kind: Kind,
}

/// The build of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The unit tests, on loom's atomics.
    Loom,
    /// The unit tests, on shuttle's.
    Shuttle,
    /// The unit tests.
    Lib,
    /// An integration test.
    Test(&'static str),
    /// The integration test of the oracle, with its feature.
    Oracle,
    /// An integration test, under Miri.
    Miri(&'static str),
    /// An integration test, under `AddressSanitizer`.
    Address(&'static str),
    /// An integration test, under `ThreadSanitizer`.
    Thread(&'static str),
    /// The targets of libFuzzer.
    Fuzz,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loom => "loom tests",
            Self::Shuttle => "shuttle tests",
            Self::Lib => "unit tests",
            Self::Test(name) => return write!(f, "tests of {name}"),
            Self::Oracle => "tests of oracle",
            Self::Miri(name) => return write!(f, "tests of {name} under Miri"),
            Self::Address(name) => return write!(f, "tests of {name} under AddressSanitizer"),
            Self::Thread(name) => return write!(f, "tests of {name} under ThreadSanitizer"),
            Self::Fuzz => "fuzzer",
        })
    }
}

impl Program {
    fn of(seen: &Seen) -> Self {
        let kind = match seen.tool {
            Tool::Sanitizer if seen.test.starts_with("soak::") => Kind::Thread("soak"),
            tool => Kind::of(tool),
        };
        Self { package: seen.package.clone(), kind }
    }
}

impl Kind {
    pub fn of(tool: Tool) -> Self {
        match tool {
            Tool::Loom => Self::Loom,
            Tool::Shuttle => Self::Shuttle,
            Tool::History | Tool::Unit | Tool::Inject => Self::Lib,
            Tool::Explore => Self::Test("explore"),
            Tool::Worlds | Tool::Shared => Self::Test("vcpu"),
            Tool::Load => Self::Test("load"),
            Tool::Host => Self::Test("mm"),
            Tool::Miri => Self::Miri("miri"),
            Tool::Oracle => Self::Oracle,
            Tool::Sanitizer => Self::Address("engine"),
            Tool::Fuzz => Self::Fuzz,
            Tool::Pager => Self::Test("pager"),
            Tool::Kvm => Self::Test("kvm"),
        }
    }
}

/// Returns the folder of the workspace that has a package.
fn workspace(package: &str) -> &'static str {
    if package == "pager" { "pager" } else { "" }
}

/// Returns the folder of a package.
fn folder(package: &str) -> PathBuf {
    let room = match package {
        "slat" | "pager" => "",
        "explore" | "fuzz" => "proof",
        _ => "crates",
    };
    Path::new(room).join(package)
}

/// The programs of a copy.
pub struct Programs {
    copied: Copied,
    built: BTreeMap<Program, String>,
}

/// Time limit of a build, and of one test, in seconds.
const BUILD: u32 = 900;
const TEST: u32 = 180;
/// Preemptions with which loom looks for a mistake, fewest first: most need no more.
const PREEMPTIONS: [&str; 3] = ["1", "2", "3"];
/// Schedules in which shuttle has to find a mistake.
const SCHEDULES: &str = "100000";
/// Schedules that shuttle tries without a mistake.
const FEW_SCHEDULES: &str = "100";
/// `SLAT_TRIES`, which tests read: worlds, seeds or attempts in which they have to find a mistake.
const TRIES: &str = "512";
/// Seconds in which a soak has to find a mistake.
const SOAK: &str = "90";
/// Time limit of all tests of a program, in seconds.
const ALL: u32 = 600;

impl Programs {
    pub fn of(copied: Copied) -> Self {
        Self { copied, built: BTreeMap::new() }
    }

    /// Builds the programs that some mistakes need.
    pub fn build<'m>(copied: Copied, mistakes: impl IntoIterator<Item = &'m Seen>) -> Result<Self> {
        let mut programs = Self::of(copied);
        for seen in mistakes {
            programs.make(&Program::of(seen))?;
        }
        Ok(programs)
    }

    /// Builds a program, unless it is built.
    fn make(&mut self, program: &Program) -> Result<()> {
        if !self.built.contains_key(program) {
            let built = self.cargo(program)?;
            self.built.insert(program.clone(), built);
        }
        Ok(())
    }

    /// Returns the path of a tool's program, if it is built.
    pub fn of_tool(&self, tool: Tool) -> Option<String> {
        self.built.iter().find(|(program, _)| program.kind == Kind::of(tool)).map(|(_, built)| built.clone())
    }

    fn cargo(&self, Program { package, kind }: &Program) -> Result<String> {
        let name = if package == "slat" { "slat".to_owned() } else { format!("slat-{package}") };
        let mut cargo = bounded(BUILD, env!("CARGO"));
        let (words, target, wrapper) = match kind {
            Kind::Loom => ("test --no-run --release --features baselines --lib", "target/loom", "mutants"),
            Kind::Shuttle => {
                ("test --no-run --release --features baselines --lib", "target/shuttle", "mutants")
            }
            Kind::Lib => ("test --no-run --lib", "target", "mutants"),
            Kind::Test(_) => ("test --no-run", "target", "mutants"),
            Kind::Oracle => ("test --no-run --features oracle --test oracle", "target", "mutants"),
            Kind::Address(_) => ("test --no-run", "target", "chaos"),
            Kind::Thread(_) => ("test --no-run --profile fuzz", "target/thread", "mutants"),
            Kind::Fuzz => ("build", "target/fuzz-mutants", "mutants"),
            // Cargo builds and runs these tests at once, so it takes the place of their program.
            Kind::Miri(_) => return Ok(String::new()),
        };
        cargo.args(words.split(' ')).args(["--locked", "--message-format=json-render-diagnostics"]);
        cargo.args(["-p", &name]);
        match kind {
            Kind::Loom => _ = cargo.env("RUSTFLAGS", "--cfg loom"),
            Kind::Shuttle => _ = cargo.env("RUSTFLAGS", "--cfg shuttle"),
            Kind::Thread(_) => _ = with_thread_sanitizer(&mut cargo)?,
            Kind::Fuzz => _ = fuzz::with_coverage(&mut cargo, ""),
            _ => {}
        }
        if let Kind::Test(test) | Kind::Address(test) | Kind::Thread(test) = kind {
            cargo.args(["--test", test]);
        }
        let cargo = self.copied.builds(&mut cargo, target, wrapper)?;
        let built = said(cargo.current_dir(self.copied.folder.join(workspace(package))))?;
        ensure!(built.status.success(), "the mistakes of {name} do not compile\n{}", errors(&built.err));
        let mut programs =
            if *kind == Kind::Fuzz { executables(&built.out) } else { test_programs(&built.out) };
        programs.pop().with_context(|| format!("{name}: no test program"))
    }

    /// Returns the command that runs a mistake's test, without the mistake.
    fn test(&self, seen: &Seen, found: &str) -> Result<Command> {
        let program = Program::of(seen);
        let (built, mut test) = (&self.built[&program], &*seen.test);
        let mut command = match program.kind {
            Kind::Fuzz => fuzz::hunt(built, test, &self.copied.folder.join("target/found").join(found))?,
            Kind::Miri(program) => miri::test(program, VARIABLE)?,
            Kind::Address(program) | Kind::Thread(program) => {
                test = test.trim_start_matches(program).trim_start_matches("::");
                bounded(3 * TEST, built)
            }
            _ => bounded(TEST, built),
        };
        if program.kind != Kind::Fuzz {
            command.args(["--exact", test, "--nocapture"]);
        }
        command.current_dir(self.copied.folder.join(folder(&program.package)));
        command.env_remove(VARIABLE).env("RUST_BACKTRACE", "0").env("TSAN_OPTIONS", "halt_on_error=1");
        Ok(command)
    }

    /// Runs a test without a mistake: for as long as the suite runs it, or less. It must pass, and say nothing that its
    /// mistakes make it say; else its failure with a mistake would show nothing.
    pub fn passes(&self, seen: &Seen) -> Result<()> {
        let Seen { tool, test, says, .. } = seen;
        let mut program = self.test(seen, &format!("without/{test}"))?;
        if *tool == Tool::Fuzz {
            program.arg("-runs=1");
        }
        program.env("SLAT_SHUTTLE_EXECUTIONS", FEW_SCHEDULES).env("SLAT_LOOM_PREEMPTIONS", PREEMPTIONS[0]);
        let said = said(&mut program)?;
        let text = said.to_string();
        ensure!(!text.contains("running 0 tests"), "there is no test {test}");
        ensure!(said.status.success(), "{test} fails without a mistake:\n{}", tail(&text, 30));
        let always = says.iter().find(|says| text.contains(*says));
        ensure!(always.is_none(), "{test} says {:?} without a mistake", always.map_or("", String::as_str));
        Ok(())
    }

    /// Builds a program, and runs the tests that a filter chooses with a mistake. Returns the tests that failed, or the
    /// end of what the program said if it failed otherwise.
    pub fn failed(&mut self, program: &Program, filter: &str, mistake: &str) -> Result<Vec<String>> {
        ensure!(!matches!(program.kind, Kind::Fuzz | Kind::Miri(_)), "{}: only by record", program.kind);
        self.make(program)?;
        let mut tests = bounded(ALL, &self.built[program]);
        tests.current_dir(self.copied.folder.join(folder(&program.package))).arg(filter);
        tests.env(VARIABLE, mistake).env("RUST_BACKTRACE", "0").env("SLAT_TRIES", TRIES);
        let said = said(&mut tests)?;
        ensure!(!never_began(said.status), "the {} did not begin:\n{said}", program.kind);
        let failed = said.out.lines().filter(|line| line.starts_with("test ") && line.ends_with("FAILED"));
        let failed: Vec<String> =
            failed.filter_map(|line| Some(line.split(' ').nth(1)?.to_owned())).collect();
        if !said.status.success() && failed.is_empty() {
            return Ok(vec![tail(&said.to_string(), 8)]);
        }
        Ok(failed)
    }

    /// Runs the mistake's test, which must fail. Returns the number of executions that it took, as far as the test says it;
    /// none where this machine lacks what the test needs.
    pub fn find(&self, name: &str, seen: &Seen) -> Result<u64> {
        let Seen { tool, test, says, .. } = seen;
        let tries = if *tool == Tool::Loom { PREEMPTIONS } else { [""; 3] };
        let (mut executions, mut last) = (0, String::new());
        for preemptions in tries {
            let mut program = self.test(seen, name)?;
            program.env(VARIABLE, name).env("SLAT_LOOM_PREEMPTIONS", preemptions);
            program.env("SLAT_SHUTTLE_EXECUTIONS", SCHEDULES).env("SLAT_TRIES", TRIES);
            let said = said(program.env("SLAT_SOAK_SECONDS", SOAK))?;
            let text = said.to_string();
            ensure!(!never_began(said.status), "{test} did not begin:\n{}", tail(&text, 5));
            executions += if *tool == Tool::Fuzz { fuzz::executions(&text) } else { counted(&text) };
            ensure!(!was_ended(said.status), "{test} did not end");
            if !said.status.success() {
                let is_said = says.is_empty() || says.iter().any(|says| text.contains(says));
                ensure!(is_said, "{test} fails for another reason:\n{}", tail(&text, 30));
                return Ok(executions);
            }
            if let Some((_, why)) = ["skipped: ", "SKIPPED: "].iter().find_map(|said| text.split_once(said)) {
                println!("SKIPPED {name} {tool}: {}", why.lines().next().unwrap_or_default());
                return Ok(0);
            }
            last = text;
        }
        bail!("{test} passed\n{}", tail(&last, 5))
    }
}

/// Returns what a compiler says from its first error on, without the warnings before it.
fn errors(said: &str) -> String {
    let lines: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("error")).take(60).collect();
    if lines.is_empty() { tail(said, 60) } else { lines.join("\n") }
}

/// Returns the executions that a test tells of; a test that tells of none is one.
fn counted(text: &str) -> u64 {
    let told = text
        .lines()
        .filter_map(|line| line.split_once("EXECUTIONS ")?.1.rsplit(' ').next()?.parse::<u64>().ok());
    told.sum::<u64>().max(1)
}
