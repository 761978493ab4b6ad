//! `sanitize`: the tests of the engine, its host and its guests under `AddressSanitizer` and `LeakSanitizer`; the soak, which
//! is everything at once, under `ThreadSanitizer`. Each also runs with mistakes that it has to report. The former also counts
//! how often each line is run, for `coverage`: one build, and one run, for both.
//!
//! The compiler in use can do both, once it is told to let us ask. `ThreadSanitizer` must see everything, the standard
//! library too, which is therefore built as well; and it knows no fences, so the engine, told by `cfg(tsan)`, makes them
//! of read-modify-writes on one place (`slat/src/sync/prim.rs`).

use crate::Outcome;
use crate::compiler::{ADDRESS, Compiler};
use crate::process::{Said, bounded, said};
use std::error::Error;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// How long the soak lasts.
const SECONDS: &str = "20";

struct Sanitizer {
    name: &'static str,
    how: How,
    /// What is run.
    tests: &'static [&'static str],
    mistakes: &'static [Mistake],
}

/// How it is built.
enum How {
    /// The crates of this workspace, by a compiler of their own.
    Workspace(Compiler),
    /// Everything, the standard library too, with these flags, in a folder of its own.
    Everything(&'static str),
}

/// A mistake, what it is run with, and what has to be said.
struct Mistake {
    name: &'static str,
    tests: &'static [&'static str],
    said: &'static str,
}

/// What is run under the address sanitizer, built and run by cargo.
pub const TESTS: &[&str] = &["-p", "slat", "-p", "slat-mm", "-p", "slat-vcpu", "--tests"];
/// Where those tests leave their counts.
pub const PROFILES: &str = "target/coverage/profiles";
/// The test that is left out there: it limits the size of files, the profile's too. The plain suite has it.
const LEFT_OUT: &str = "the_limit_on_files_is_kept";

const SOAK: &[&str] = &["-p", "slat", "--test", "soak", "--", "--exact", "--nocapture", "everything_at_once"];
const LOGS: &[&str] = &["-p", "slat", "--test", "dirty_log"];

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer {
        name: "address",
        how: How::Workspace(ADDRESS),
        tests: &["-p", "slat", "-p", "slat-mm", "-p", "slat-vcpu", "--tests", "--", "--skip", LEFT_OUT],
        mistakes: &[
            Mistake { name: "log-freed-twice", tests: LOGS, said: "AddressSanitizer: " },
            Mistake { name: "log-leaked", tests: LOGS, said: "LeakSanitizer: detected memory leaks" },
        ],
    },
    Sanitizer {
        name: "thread",
        how: How::Everything("-Zsanitizer=thread --cfg tsan --cfg seeded"),
        tests: SOAK,
        mistakes: &[Mistake {
            name: "slots-freed-early",
            tests: SOAK,
            said: "WARNING: ThreadSanitizer: data race",
        }],
    },
];

#[derive(clap::Args)]
pub struct Args {
    /// Both, unless one is named
    #[arg(value_parser = ["address", "thread"])]
    only: Vec<String>,
}

/// The chore: both, or the one that is named.
pub fn run(args: &Args) -> Outcome {
    let asked =
        |sanitizer: &&Sanitizer| args.only.is_empty() || args.only.iter().any(|name| name == sanitizer.name);
    SANITIZERS.iter().filter(asked).try_for_each(Sanitizer::run)
}

/// The tests under the address sanitizer.
pub fn address() -> Outcome {
    SANITIZERS[0].run()
}

impl Sanitizer {
    fn run(&self) -> Outcome {
        if let How::Everything(_) = self.how {
            let added = said(Command::new("rustup").args(["component", "add", "rust-src"]))?;
            if !added.status.success() {
                return Err("the standard library's source is needed: rustup component add rust-src".into());
            }
        }
        let passed = self.test(self.tests, None)?.succeeded()?.to_string().matches(" ... ok\n").count();
        println!("EXECUTIONS Sanitizer {} {passed}", self.name);
        for mistake in self.mistakes {
            let said = self.test(mistake.tests, Some(mistake.name))?;
            if said.status.success() || !said.to_string().contains(mistake.said) {
                return Err(format!("{said}{}: {} was not reported", self.name, mistake.name).into());
            }
            println!("SEEDED {} Sanitizer 1", mistake.name);
        }
        Ok(())
    }

    fn test(&self, tests: &[&str], mistake: Option<&str>) -> Result<Said, Box<dyn Error>> {
        let mut command = bounded(1200, env!("CARGO"));
        command.args(["test", "--locked"]);
        match self.how {
            How::Workspace(compiler) => compiler.for_cargo(&mut command)?,
            How::Everything(flags) => {
                command.args(["-Zbuild-std", "--target", TARGET]).env("RUSTFLAGS", flags);
                command.env("CARGO_TARGET_DIR", format!("target/{}", self.name)).env("RUSTC_BOOTSTRAP", "1");
            }
        }
        command.args(tests);
        command.envs([("SLAT_SOAK_SECONDS", SECONDS), ("TSAN_OPTIONS", "halt_on_error=1")]);
        if let Some(mistake) = mistake {
            // It counts nothing.
            command.env("SLAT_SEEDED", mistake).env("LLVM_PROFILE_FILE", "/dev/null");
        } else {
            // Helpers that tests start are counted too, and write their own.
            command.env("LLVM_PROFILE_FILE", std::path::absolute(PROFILES)?.join("%p-%m.profraw"));
        }
        said(&mut command)
    }
}
