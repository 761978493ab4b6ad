//! `sanitize`: the tests of the engine, its host and its guests under `AddressSanitizer` and `LeakSanitizer`; the soak, which
//! is everything at once, under `ThreadSanitizer`. Each also runs with mistakes that it has to report. The former also counts
//! how often each line is run, for `coverage`: one build, and one run, for both.
//!
//! The compiler in use can do both, once it is told to let us ask. `ThreadSanitizer` must see everything, the standard
//! library too, which is therefore built as well; and it knows no fences, so the engine, told by `cfg(tsan)`, makes them
//! of read-modify-writes on one place (`slat/src/sync/prim.rs`).

use crate::Outcome;
use crate::compiler::{ADDRESS, Compiler};
use std::path::Path;
use std::process::{Command, Output};

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
const LOGS: &[&str] = &["-p", "slat", "--test", "engine", "dirty_log::"];

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

/// The chore: both, or the one that is named.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let asked = |sanitizer: &&Sanitizer| args.is_empty() || args.iter().any(|arg| arg == sanitizer.name);
    if let Some(unknown) = args.iter().find(|arg| !SANITIZERS.iter().any(|one| one.name == *arg)) {
        return Err(format!("usage: cargo xtask sanitize [address] [thread], not {unknown}").into());
    }
    SANITIZERS.iter().filter(asked).try_for_each(|sanitizer| sanitizer.run(root))
}

impl Sanitizer {
    fn run(&self, root: &Path) -> Outcome {
        if let How::Everything(_) = self.how {
            let added = Command::new("rustup").args(["component", "add", "rust-src"]).output()?;
            if !added.status.success() {
                return Err("the standard library's source is needed: rustup component add rust-src".into());
            }
        }
        let output = self.test(root, self.tests, None)?;
        if !output.status.success() {
            println!("{}", said(&output));
            return Err(format!("{}: {}", self.name, output.status).into());
        }
        let passed = said(&output).matches(" ... ok\n").count();
        println!("EXECUTIONS Sanitizer {} {passed}", self.name);
        for mistake in self.mistakes {
            let output = self.test(root, mistake.tests, Some(mistake.name))?;
            if output.status.success() || !said(&output).contains(mistake.said) {
                println!("{}", said(&output));
                return Err(format!("{}: {} was not reported", self.name, mistake.name).into());
            }
            println!("SEEDED {} Sanitizer 1", mistake.name);
        }
        Ok(())
    }

    fn test(&self, root: &Path, tests: &[&str], mistake: Option<&str>) -> Result<Output, std::io::Error> {
        let mut command = Command::new("timeout");
        command.args(["1200", env!("CARGO"), "test", "--locked"]).current_dir(root);
        match self.how {
            How::Workspace(compiler) => compiler.for_cargo(root, &mut command)?,
            How::Everything(flags) => {
                command.args(["-Zbuild-std", "--target", TARGET]).env("RUSTFLAGS", flags);
                let folder = format!("target/{}", self.name);
                command.envs([("CARGO_TARGET_DIR", folder.as_str()), ("RUSTC_BOOTSTRAP", "1")]);
            }
        }
        command.args(tests);
        command.envs([("SLAT_SOAK_SECONDS", SECONDS), ("TSAN_OPTIONS", "halt_on_error=1")]);
        // Helpers that tests start are counted too, and write their own. A run with a mistake counts nothing.
        let profiles =
            if mistake.is_none() { root.join(PROFILES).join("%p-%m.profraw") } else { "/dev/null".into() };
        command.env("LLVM_PROFILE_FILE", profiles);
        if let Some(mistake) = mistake {
            command.env("SLAT_SEEDED", mistake);
        }
        command.output()
    }
}

/// Both streams.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
