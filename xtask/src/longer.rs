//! Runs tests for longer than the suite does (`soak`, `repeat`, `explore`, `prove`, `simulate`).

use crate::outcome::Outcome;
use crate::process::{bounded, cargo, on_every_processor, said, succeed};
use anyhow::{Result, ensure};
use std::hint::spin_loop;
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

/// Package, test, and its functions, which run concurrently.
const SOAKS: [(&str, &str, &[&str]); 3] = [
    ("slat", "soak", &["everything_at_once"]),
    ("slat-mm", "load", &["no_guest_reads_what_is_not_its_own"]),
    (
        "slat-vcpu",
        "vcpu",
        &[
            "dirty::the_shadow_is_what_was_written",
            "dirty::the_shadow_is_what_was_written_in_the_other_settings",
        ],
    ),
];

const SLAT_BENCH: &str = "target/release/slat-bench";

#[derive(clap::Args)]
pub struct Soak {
    /// Minutes for all tests together
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..525_600))]
    minutes: u64,
}

/// Runs the tests that do everything at once (`slat/tests/soak`; a primary MMU under load, `crates/mm/tests/load`; dirty logs
/// under load, `crates/vcpu/tests/vcpu/dirty`), optimized, each for its part of the time.
pub fn soak(args: &Soak) -> Outcome {
    let seconds = 60 * args.minutes / SOAKS.len() as u64;
    SOAKS.into_iter().try_for_each(|(package, test, functions)| {
        let mut cargo = cargo("test --release --locked");
        cargo.args(["--package", package, "--test", test, "--", "--exact", "--nocapture"]).args(functions);
        succeed(cargo.env("SLAT_SOAK_SECONDS", seconds.to_string()))
    })
}

#[derive(clap::Args)]
pub struct Repeat {
    /// Number of repetitions
    #[arg(long, value_name = "N", default_value_t = 20)]
    times: u32,
    /// Threads that spin meanwhile, as on a machine with other load
    #[arg(long, value_name = "N", default_value_t = 0)]
    beside: u32,
}

/// Repeats the whole suite, to find tests that fail sometimes. The first failure ends it, with its output.
pub fn repeat(args: &Repeat) -> Outcome {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..args.beside {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    spin_loop();
                }
            });
        }
        let outcome = (1..=args.times).try_for_each(|time| {
            let began = Instant::now();
            let said = [(".", "test --workspace --locked"), ("pager", "test --locked")]
                .into_iter()
                .map(|(folder, words)| Ok(said(cargo(words).current_dir(folder))?.succeeded()?.out));
            let tests = said.collect::<Result<String>>()?.matches(" ... ok\n").count();
            println!("{time} of {}: {tests} tests passed in {:.0?}", args.times, began.elapsed());
            Ok(())
        });
        over.store(true, Relaxed);
        outcome
    })
}

/// Runs worlds of the engine on simulated CPUs (`proof/explore`), which parses the arguments itself. Built like the
/// fuzzer: quickly, and with debug assertions.
pub fn explore(words: &[String]) -> Outcome {
    Err(cargo("run --package slat-explore --profile fuzz --locked --quiet --").args(words).exec().into())
}

/// Asks the questions of the proof by induction (`proof`), which parses the arguments itself.
pub fn prove(words: &[String]) -> Outcome {
    Err(cargo("run --package slat-proof --locked --quiet --").args(words).exec().into())
}

#[derive(clap::Args)]
pub struct Simulate {
    /// Seeds, from 1
    #[arg(long, value_name = "N", default_value_t = 100)]
    seeds: u64,
    /// Numbers of simulated CPUs
    #[arg(long, value_name = "N,…", default_value = "5,33,112,416")]
    vcpus: String,
}

/// Runs every simulated bench under many seeds. Each check must hold each time.
pub fn simulate(args: &Simulate) -> Outcome {
    succeed(&mut cargo("build --release --locked --package slat-bench"))?;
    let list = "bench list --commands simulated".split(' ');
    let sims = said(bounded(60, SLAT_BENCH).args(list))?.succeeded()?.out;
    let runs: Vec<_> = (1..=args.seeds).flat_map(|seed| sims.lines().map(move |sim| (sim, seed))).collect();
    on_every_processor(&runs, |(sim, seed)| {
        let words = format!("{sim} --vcpus {} --no-sweep --seed {seed}", args.vcpus);
        let told = said(bounded(900, SLAT_BENCH).args(words.split(' ')).arg("--quiet"))?;
        ensure!(told.status.success(), "{told}slat {words}: {}", told.status);
        Ok(())
    })?;
    println!("{} simulations of {} CPUs each: every check held", runs.len(), args.vcpus);
    Ok(())
}
