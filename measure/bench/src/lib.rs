//! What `slat bench`, `slat sim`, `slat calibrate` and `slat report` run, and [`registry`], which these and CI iterate.

mod bench;
mod calibrate;
pub mod levers;
pub mod registry;
mod report;
pub mod rules;
mod sim;
mod typed;

pub use bench::report as results;

use slat_cli::error::exit_code;
use slat_cli::{bar, interrupt};
use std::process::ExitCode;
use typed::{Command, SlatBench};

/// The program `slat-bench`.
pub fn main() -> ExitCode {
    exit_code(typed::parse().and_then(|SlatBench { quiet, command }| {
        bar::quiet(quiet.quiet);
        interrupt::hear()?;
        slat_threads::world::NO_THREAD.get_or_init(|| slat_cli::thread::none);
        match command {
            Command::Bench(bench) => bench.run(),
            Command::Sim(sim) => sim.run(),
            Command::Calibrate(calibrate) => calibrate.run(),
            Command::Report(report) => report.run(),
            Command::Completions(completions) => completions.print(typed::whole()),
            Command::Man(man) => man.write(typed::whole()),
        }
    }))
}
