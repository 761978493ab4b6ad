//! The command `slat`.

mod bench;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
enum Command {
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Bench(bench) => bench.run().unwrap_or(ExitCode::from(2)),
    }
}
