//! `miri`: runs small worlds and unit tests under Miri, which checks each access against the memory model and the
//! aliasing rules, and finds leaks. Installs the component of the nightly compiler if it is missing.
//!
//! | run | aliasing rules | why so |
//! |---|---|---|
//! | `slat/tests/miri`, without `std` | Tree Borrows, strict provenance, many seeds | its host keeps the pointers of its tables |
//! | the same, with `std` | Stacked Borrows | `parking_lot` and the default [`TableMemory`] make pointers of numbers, which Tree Borrows cannot follow |
//! | unit tests of `slat-slots` | Tree Borrows | it makes no pointer of a number |
//! | unit tests of `slat`, the small ones | Stacked Borrows | as above |
//! | tests of `slat-c` | Stacked Borrows | as above |
//!
//! Left out: `slat-mm` and `slat-vm-memory`, whose memory comes from `mmap` and `memfd_create` with sharing, which Miri
//! does not have; `slat-machine`, whose coroutines switch stacks in assembly; `slat-kvm`, which needs `/dev/kvm`; and
//! tests of the lost time that take minutes there.
//!
//! [`TableMemory`]: ../../slat/src/table/memory.rs

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

const RUNS: &[Run] = &[
    Run {
        name: "worlds",
        flags: "-Zmiri-tree-borrows -Zmiri-strict-provenance -Zmiri-many-seeds=0..4",
        words: "-p slat --no-default-features --test miri",
    },
    Run { name: "worlds-std", flags: "-Zmiri-permissive-provenance", words: "-p slat --test miri" },
    Run {
        name: "slots",
        flags: "-Zmiri-tree-borrows -Zmiri-strict-provenance -Zmiri-disable-isolation",
        words: "-p slat-slots --lib",
    },
    Run {
        name: "units",
        flags: "-Zmiri-permissive-provenance -Zmiri-disable-isolation",
        words: "-p slat --lib -- sync:: slots::bitmap table::entry table::node_list table::page_notes waits:: tlb::",
    },
];

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
    for run in RUNS {
        let tests = said(&mut miri(run))?.succeeded()?.to_string();
        println!("EXECUTIONS Miri {} {}", run.name, tests.matches(" ... ok\n").count());
    }
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
