//! `miri`: runs small worlds under Miri, which checks each access against the memory model and the aliasing rules, and
//! finds leaks; and one of them with a mistake, which it must report. Installs the component of the nightly compiler if it
//! is missing.
//!
//! The worlds are those of `slat/tests/miri`: whole VMs with threads, on `slat` and `slat-slots` without `std`, under Tree
//! Borrows with strict provenance. The locks of `parking_lot` and the default `TableMemory` make pointers of numbers,
//! which Tree Borrows cannot follow.
//!
//! Left out: unit tests, of which most explore too much for an interpreter; `slat-mm` and `slat-vm-memory`, whose memory
//! comes from `mmap` and `memfd_create` with sharing, which Miri does not have; `slat-machine`, whose coroutines switch
//! stacks in assembly; `slat-kvm`, which needs `/dev/kvm`.

use crate::Outcome;
use crate::process::{bounded, said, succeed};
use anyhow::ensure;
use std::process::Command;

/// A run: its name, Miri's flags, and cargo's words.
struct Run {
    name: &'static str,
    flags: &'static str,
    words: &'static str,
}

const WORLDS: Run = Run {
    name: "worlds",
    flags: "-Zmiri-tree-borrows -Zmiri-strict-provenance -Zmiri-many-seeds=0..3",
    words: "-p slat --no-default-features --test miri",
};

/// A world that one thread runs, and the mistake that Miri must report in it.
const CONTROL: Run = Run {
    name: "note-narrowed",
    flags: "-Zmiri-permissive-provenance -Zmiri-env-forward=SLAT_SEEDED",
    words: "-p slat --test miri -- --exact alone",
};

pub fn run() -> Outcome {
    if !said(Command::new("rustup").args(["run", "nightly", "cargo", "miri", "--version"]))?.status.success()
    {
        let words = "toolchain install nightly --profile minimal --component miri,rust-src";
        succeed(Command::new("rustup").args(words.split(' ')))?;
    }
    let worlds = said(&mut miri(&WORLDS))?.succeeded()?.to_string();
    // Seeds run side by side, so their lines mix: each test begins with its name.
    println!("EXECUTIONS Miri {} {}", WORLDS.name, worlds.matches(" ... ").count());
    let said = said(miri(&CONTROL).env("SLAT_SEEDED", CONTROL.name).env("RUSTFLAGS", "--cfg seeded"))?;
    let is_reported = !said.status.success() && said.to_string().contains("Undefined Behavior");
    ensure!(is_reported, "{said}{} was not reported", CONTROL.name);
    println!("SEEDED {} Miri 1", CONTROL.name);
    Ok(())
}

fn miri(Run { flags, words, .. }: &Run) -> Command {
    let mut cargo = bounded(1200, "rustup");
    cargo.args(["run", "nightly", "cargo", "miri", "test", "--locked"]).args(words.split(' '));
    cargo.env("MIRIFLAGS", flags).env("CARGO_TARGET_DIR", "target/miri").env_remove("CARGO");
    cargo
}
