//! The command `slat`: run, measure and prove second-level address translation.

mod bar;
mod bench;
mod calibrate;
mod checksum;
mod error;
mod interrupt;
mod plan;
mod report;
mod run;
mod sim;
mod size;
mod thread;
mod top;

use clap::Parser;
use error::Error;
use std::io::{ErrorKind::BrokenPipe, Write};
use std::process::ExitCode;

/// Second-level address translation: a hypervisor's memory engine, run, measured and proved
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
enum Command {
    /// Replay memory traces on software vCPUs, with every byte checked
    Run(run::Run),
    /// The figures, on this machine, before against after in one run
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The same past this machine: simulated, from 1 to hundreds of vCPUs
    #[command(subcommand)]
    Sim(sim::Sim),
    Calibrate(calibrate::Calibrate),
    Plan(plan::Plan),
    Report(report::Report),
    Top(top::Top),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Run(run) => run.run(),
        Command::Bench(bench) => bench.run(),
        Command::Sim(sim) => sim.run(),
        Command::Calibrate(calibrate) => calibrate.run(),
        Command::Plan(plan) => plan.run(),
        Command::Report(report) => report.run(),
        Command::Top(top) => top.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            let mut stderr = std::io::stderr();
            // There may be nobody left to tell.
            let _ = match &error {
                Error::Report(io) if io.kind() == BrokenPipe => {
                    writeln!(stderr, "slat: standard output was closed before the report was written")
                }
                error => writeln!(stderr, "slat: {error}"),
            };
            ExitCode::from(if matches!(error, Error::Corrupt(_)) { 3 } else { 2 })
        }
    }
}
