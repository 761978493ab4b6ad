//! `slat-bench`: what `slat bench`, `slat sim`, `slat calibrate` and `slat report` run.

mod bench;
mod calibrate;
mod report;
mod sim;

use clap::Parser;
use slat_cli::error::exit_code;
use slat_cli::interrupt;
use slat_cli::memory::OrEnd;
use std::process::ExitCode;

/// What `slat` runs to measure: benches, simulations, their costs, and the page that shows them
#[derive(Parser)]
// Users type `slat bench`, so help and errors say that.
#[command(name = "slat-bench", bin_name = "slat", version = slat_cli::VERSION, arg_required_else_help = true)]
enum Command {
    /// The figures, on this machine, before against after in one run
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The same past this machine: simulated, from 1 to hundreds of vCPUs
    #[command(subcommand)]
    Sim(sim::Sim),
    Calibrate(calibrate::Calibrate),
    Report(report::Report),
}

#[global_allocator]
static MEMORY: OrEnd = OrEnd;

fn main() -> ExitCode {
    let command = Command::parse();
    exit_code(interrupt::hear().and_then(|()| match command {
        Command::Bench(bench) => bench.run(),
        Command::Sim(sim) => sim.run(),
        Command::Calibrate(calibrate) => calibrate.run(),
        Command::Report(report) => report.run(),
    }))
}
