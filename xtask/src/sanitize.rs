//! `sanitize`: runs the tests of the engine, its host and its guests under `AddressSanitizer` and `LeakSanitizer`, and
//! the soak, which does everything at once, under `ThreadSanitizer`. Each also runs with mistakes that it must report.
//! The former also counts how often each line runs, for `coverage`: one build, and one run, for both.
//!
//! The stable compiler can do both with its unstable options. `ThreadSanitizer` must see everything, including the
//! standard library, which is therefore built, too. It does not support fences, so the engine replaces them under
//! `cfg(tsan)` by read-modify-writes on one place (`slat/src/sync/prim.rs`).

use crate::Outcome;
use crate::process::{bounded, said, with_compiler};
use anyhow::{Result, ensure};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const SOAK_SECONDS: &str = "20";

/// The address sanitizer's compiler.
pub const ADDRESS: &str = "address";
/// Tests under the address sanitizer, built and run by cargo.
pub const TESTS: &str = "-p slat -p slat-slots -p slat-mm -p slat-vcpu --tests";
/// Folder for the counts of those tests.
pub const PROFILES: &str = "target/coverage/profiles";
/// The test that is left out: it limits the size of files, including that of the profile. The plain suite has it.
const LEFT_OUT: &str = "the_limit_on_files_is_kept";

const SOAK: &str = "-p slat --test soak -- --exact --nocapture everything_at_once";
const LOGS: &str = "-p slat --test engine dirty_log::";
const SECTIONS: &str = "-p slat --test engine sound::sections::";

pub fn address() -> Outcome {
    let cargo = |tests: &str| -> Result<Command> {
        let mut cargo = test(tests);
        with_compiler(&mut cargo, ADDRESS)?;
        // Helper processes of tests are counted, too, and write their own profiles.
        cargo.env("LLVM_PROFILE_FILE", std::path::absolute(PROFILES)?.join("%p-%m.profraw"));
        Ok(cargo)
    };
    passes("address", cargo(&format!("{TESTS} -- --skip {LEFT_OUT}"))?)?;
    // A memslot is missed, or memory that was freed is read: whichever comes first.
    reports(cargo(SECTIONS)?, "section-ended-early", "sound::sections::")?;
    reports(cargo(LOGS)?, "log-freed-twice", "AddressSanitizer: ")?;
    reports(cargo(LOGS)?, "log-leaked", "LeakSanitizer: detected memory leaks")
}

pub fn thread() -> Outcome {
    // Without optimization the threads meet so rarely that the mistake below is not found.
    let cargo = || with_thread_sanitizer(&format!("--profile fuzz {SOAK}"));
    passes("thread", cargo()?)?;
    reports(cargo()?, "slots-freed-early", "WARNING: ThreadSanitizer: data race")
}

/// Returns the command for tests under the thread sanitizer.
pub fn with_thread_sanitizer(tests: &str) -> Result<Command> {
    let added = said(Command::new("rustup").args(["component", "add", "rust-src"]))?;
    ensure!(added.status.success(), "the standard library's source is needed: rustup component add rust-src");
    let mut cargo = test(&format!("-Zbuild-std --target {TARGET} {tests}"));
    cargo.env("RUSTFLAGS", "-Zsanitizer=thread --cfg tsan --cfg seeded").env("RUSTC_BOOTSTRAP", "1");
    cargo.env("CARGO_TARGET_DIR", "target/thread").env("TSAN_OPTIONS", "halt_on_error=1");
    Ok(cargo)
}

fn test(arguments: &str) -> Command {
    let mut cargo = bounded(1200, env!("CARGO"));
    cargo.args(["test", "--locked"]).args(arguments.split(' ')).env("SLAT_SOAK_SECONDS", SOAK_SECONDS);
    cargo
}

fn passes(name: &str, mut tests: Command) -> Outcome {
    let passed = said(&mut tests)?.succeeded()?.to_string().matches(" ... ok\n").count();
    println!("EXECUTIONS Sanitizer {name} {passed}");
    Ok(())
}

/// Runs tests with a mistake, which must be reported in these words. Counts no lines.
fn reports(mut tests: Command, mistake: &str, words: &str) -> Outcome {
    let said = said(tests.env("SLAT_SEEDED", mistake).env("LLVM_PROFILE_FILE", "/dev/null"))?;
    let is_reported = !said.status.success() && said.to_string().contains(words);
    ensure!(is_reported, "{said}{mistake} was not reported");
    println!("SEEDED {mistake} Sanitizer 1");
    Ok(())
}
