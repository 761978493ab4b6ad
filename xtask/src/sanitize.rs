//! `sanitize`: runs the tests of the engine, its host and its guests under `AddressSanitizer` and `LeakSanitizer`, and
//! the soak, which does everything at once, under `ThreadSanitizer`. The former also counts how often each line runs, for
//! `coverage`: one build, and one run, for both. `mutants` makes the mistakes that each must report.
//!
//! The stable compiler can do both with its unstable options. `ThreadSanitizer` must see everything, including the
//! standard library, which is therefore built, too. It does not support fences, so the engine replaces them under
//! `cfg(tsan)` by read-modify-writes on one place (`slat/src/sync/prim.rs`).

use crate::outcome::Outcome;
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

pub fn address() -> Outcome {
    let mut cargo = test(&format!("{TESTS} -- --skip {LEFT_OUT}"));
    with_compiler(&mut cargo, ADDRESS)?;
    // Helper processes of tests are counted, too, and write their own profiles.
    cargo.env("LLVM_PROFILE_FILE", std::path::absolute(PROFILES)?.join("%p-%m.profraw"));
    passes("address", cargo)
}

pub fn thread() -> Outcome {
    let mut cargo = bounded(1200, env!("CARGO"));
    // Without optimization the threads meet so rarely that a mistake is not found.
    with_thread_sanitizer(cargo.args(["test", "--profile", "fuzz", "--locked"]))?;
    cargo.args(SOAK.split(' ')).env("SLAT_SOAK_SECONDS", SOAK_SECONDS);
    passes("thread", cargo)
}

/// Makes cargo build with the thread sanitizer.
pub fn with_thread_sanitizer(cargo: &mut Command) -> Result<&mut Command> {
    let added = said(Command::new("rustup").args(["component", "add", "rust-src"]))?;
    ensure!(added.status.success(), "the standard library's source is needed: rustup component add rust-src");
    cargo.env("RUSTFLAGS", "-Zsanitizer=thread --cfg tsan").env("RUSTC_BOOTSTRAP", "1");
    cargo.env("CARGO_TARGET_DIR", "target/thread").env("TSAN_OPTIONS", "halt_on_error=1");
    Ok(cargo.args(["-Zbuild-std", "--target", TARGET]))
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
