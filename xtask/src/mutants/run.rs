//! The test programs of the copy, and one test with one mistake.

use super::copy::{Copied, VARIABLE};
use super::record::{Seen, Tool};
use crate::process::{bounded, said, tail, test_programs, was_ended, with_compiler};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A test program of a package.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    pub package: String,
    pub kind: Kind,
}

/// How a program is built.
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
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loom => "loom tests",
            Self::Shuttle => "shuttle tests",
            Self::Lib => "unit tests",
            Self::Test(name) => return write!(f, "tests of {name}"),
        })
    }
}

impl Program {
    fn of(seen: &Seen) -> Self {
        Self { package: seen.package.clone(), kind: Kind::of(seen.tool) }
    }
}

impl Kind {
    pub fn of(tool: Tool) -> Self {
        match tool {
            Tool::Loom => Self::Loom,
            Tool::Shuttle => Self::Shuttle,
            Tool::History | Tool::Unit | Tool::Inject => Self::Lib,
            Tool::Worlds | Tool::Shared => Self::Test("vcpu"),
            Tool::Load => Self::Test("load"),
            Tool::Host => Self::Test("mm"),
            Tool::Pager => Self::Test("pager"),
            Tool::Kvm => Self::Test("kvm"),
        }
    }
}

/// The programs of a copy.
pub struct Programs {
    copied: PathBuf,
    built: BTreeMap<Program, String>,
}

/// Time limit of a build, and of one test, in seconds.
const BUILD: u32 = 900;
const TEST: u32 = 180;
/// Preemptions with which loom looks for a mistake, fewest first: most need no more.
const PREEMPTIONS: [&str; 3] = ["1", "2", "3"];
/// Schedules in which shuttle has to find a mistake.
const SCHEDULES: &str = "100000";
/// Time limit of all tests of a program, in seconds.
const ALL: u32 = 600;

impl Programs {
    pub fn of(copied: &Copied) -> Self {
        Self { copied: copied.0.clone(), built: BTreeMap::new() }
    }

    /// Builds the programs that some mistakes need.
    pub fn build<'m>(copied: &Copied, mistakes: impl IntoIterator<Item = &'m Seen>) -> Result<Self> {
        let mut programs = Self::of(copied);
        for seen in mistakes {
            let program = Program::of(seen);
            if !programs.built.contains_key(&program) {
                let built = programs.cargo(&program)?;
                programs.built.insert(program, built);
            }
        }
        Ok(programs)
    }

    fn cargo(&self, Program { package, kind }: &Program) -> Result<String> {
        let name = if package == "slat" { "slat".to_owned() } else { format!("slat-{package}") };
        let mut cargo = bounded(BUILD, env!("CARGO"));
        cargo.current_dir(&self.copied).args(["test", "--locked", "--no-run", "--message-format=json"]);
        cargo.args(["-p", &name]);
        // Beside the programs of the shipped sources, with what both need. The wrapper's path keeps the workspace's own
        // crates apart.
        let (target, flags) = match kind {
            Kind::Loom => ("target/loom", Some("--cfg loom")),
            Kind::Shuttle => ("target/shuttle", Some("--cfg shuttle")),
            Kind::Lib | Kind::Test(_) => ("target", None),
        };
        with_compiler(cargo.env("CARGO_TARGET_DIR", std::path::absolute(target)?), "mutants")?;
        if let Kind::Test(test) = kind {
            cargo.args(["--test", test]);
        } else {
            cargo.arg("--lib");
        }
        if let Some(flags) = flags {
            cargo.arg("--release").env("RUSTFLAGS", flags);
        }
        let built = said(&mut cargo)?;
        ensure!(built.status.success(), "the mistakes of {name} do not compile\n{}", tail(&built.err, 60));
        test_programs(&built.out).pop().with_context(|| format!("{name}: no test program"))
    }

    /// Builds a program, and runs the tests that a filter chooses with a mistake. Returns the tests that failed, or the
    /// end of what the program said if it failed otherwise.
    pub fn failed(&mut self, program: &Program, filter: &str, mistake: &str) -> Result<Vec<String>> {
        if !self.built.contains_key(program) {
            let built = self.cargo(program)?;
            self.built.insert(program.clone(), built);
        }
        let mut tests = bounded(ALL, &self.built[program]);
        tests.current_dir(self.copied.join(&program.package)).arg(filter);
        tests.env(VARIABLE, mistake).env("RUST_BACKTRACE", "0");
        let said = said(&mut tests)?;
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
        let Seen { tool, package, test, says } = seen;
        let tries = if *tool == Tool::Loom { PREEMPTIONS } else { [""; 3] };
        let (mut executions, mut last) = (0, String::new());
        for preemptions in tries {
            let mut program = bounded(TEST, &self.built[&Program::of(seen)]);
            program.current_dir(self.copied.join(package)).args(["--exact", test, "--nocapture"]);
            program.env(VARIABLE, name).env("RUST_BACKTRACE", "0");
            program.env("SLAT_LOOM_PREEMPTIONS", preemptions).env("SLAT_SHUTTLE_EXECUTIONS", SCHEDULES);
            let said = said(&mut program)?;
            let text = said.to_string();
            ensure!(!text.contains("running 0 tests"), "there is no test {test}");
            executions += counted(&text);
            ensure!(!was_ended(said.status), "{test} was not over after {TEST} s");
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

/// Returns the executions that a test tells of; a test that tells of none is one.
fn counted(text: &str) -> u64 {
    let told = text
        .lines()
        .filter_map(|line| line.split_once("EXECUTIONS ")?.1.rsplit(' ').next()?.parse::<u64>().ok());
    told.sum::<u64>().max(1)
}
