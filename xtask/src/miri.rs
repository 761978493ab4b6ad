//! `miri`: runs small worlds under Miri, which checks each access against the memory model and the aliasing rules, and
//! finds leaks. `mutants` runs one of them with a mistake. Installs the component of the nightly compiler if it is missing.
//!
//! The worlds are those of `slat/tests/miri`: whole VMs with threads, on `slat` and `slat-slots` without `std`, under Tree
//! Borrows with strict provenance. The locks of `parking_lot` and `Heap` make pointers of numbers, which Tree Borrows
//! cannot follow.
//!
//! Left out: unit tests, of which most explore too much for an interpreter; `slat-mm` and `slat-vm-memory`, whose memory
//! comes from `mmap` and `memfd_create` with sharing, which Miri does not have; `slat-machine`, whose coroutines switch
//! stacks in assembly; `slat-kvm`, which needs `/dev/kvm`.

use crate::outcome::Outcome;
use crate::process::{bounded, said, succeed};
use anyhow::Result;
use std::process::Command;

const WORLDS: &str = "-p slat --no-default-features --features nested --test miri";
const FLAGS: &str = "-Zmiri-tree-borrows -Zmiri-strict-provenance -Zmiri-many-seeds=0..3";
/// For a world that one thread runs, with the locks of `parking_lot`.
const PERMISSIVE: &str = "-Zmiri-permissive-provenance";

pub fn run() -> Outcome {
    let mut cargo = cargo()?;
    cargo.args(WORLDS.split(' ')).env("MIRIFLAGS", FLAGS).env("CARGO_TARGET_DIR", "target/miri");
    let worlds = said(&mut cargo)?.succeeded()?.to_string();
    // Seeds run side by side, so their lines mix: each test begins with its name.
    println!("EXECUTIONS Miri worlds {}", worlds.matches(" ... ").count());
    Ok(())
}

/// Returns the command for tests of slat with a mistake, without the test's arguments. The tests see this variable.
pub fn test(program: &str, variable: &str) -> Result<Command> {
    let mut cargo = cargo()?;
    cargo.args(["-p", "slat", "--test", program, "--"]);
    cargo.env("MIRIFLAGS", format!("{PERMISSIVE} -Zmiri-env-forward={variable}"));
    cargo.env("CARGO_TARGET_DIR", std::path::absolute("target/miri-mutants")?);
    Ok(cargo)
}

fn cargo() -> Result<Command> {
    if !said(Command::new("rustup").args(["run", "nightly", "cargo", "miri", "--version"]))?.status.success()
    {
        let words = "toolchain install nightly --profile minimal --component miri,rust-src";
        succeed(Command::new("rustup").args(words.split(' ')))?;
    }
    let mut cargo = bounded(1200, "rustup");
    cargo.args(["run", "nightly", "cargo", "miri", "test", "--locked"]).env_remove("CARGO");
    Ok(cargo)
}
