//! `slat bench`, `slat sim`, `slat calibrate` and `slat report`: the engine measured on threads, and simulated in virtual time.
//!
//! ```text
//! scenarios ─▶ engine (slat) ─▶ host: slat-mm, or a model of a primary MMU
//!     └───────────┬──────────────┘
//!               world ── simulated: CPUs in virtual time, each act at its price   (this source, as crate slat-sim)
//!                     └─ threads:   this machine, by the clock                    (this crate)
//! ```
//! The engine is the shipped one in both. The code around it (guests that compute, a host that finds and zeroes pages, threads that sleep)
//! consists of the few acts of [`world`]. They cost virtual time in one crate and take time in the other, so `slat sim validate`
//! can compare the two where this machine has the CPUs.
//!
//! | module | content | crates |
//! |---|---|---|
//! | [`world`] | the acts, and jobs on CPUs of their own; the only module that depends on the crate | both |
//! | [`parts`] | parts of scenarios: VMs, guests, a model of a host, figures and checks | both |
//! | [`scenario`] | [`scenario::Scenario`]: a program, its columns, its row of the registry | both |
//! | [`scenarios`] | the scenarios, and [`scenarios::ALL`] | both |
//! | `threads` | parts of scenarios for real threads: interleaved rounds, reports, guests with memory | slat-bench |
//! | `bench_command`, `sim`, `calibrate`, `report` | the subcommands | slat-bench |

mod bench_command;
mod by_name;
mod calibrate;
mod columns_compared;
mod cost_sheet;
pub mod figure_text;
pub mod lever_tables;
pub mod levers;
pub mod parts;
pub mod registry;
mod report;
pub mod scenario;
pub mod scenarios;
mod sim;
mod threads;
mod typed;
mod validation_row;
pub mod world;

pub use threads::bench_report as results;

use slat_cli::error::exit_code;
use slat_cli::{bar, interrupt};
use std::process::ExitCode;
use typed::{Command, SlatBench};

/// The program `slat-bench`.
pub fn main() -> ExitCode {
    exit_code(typed::parse().and_then(|SlatBench { quiet, command }| {
        bar::quiet(quiet.quiet);
        interrupt::hear()?;
        crate::world::NO_THREAD.get_or_init(|| slat_cli::thread::none);
        match command {
            Command::Bench(bench) => bench.run(),
            Command::Sim(sim) => sim.run(),
            Command::Calibrate(calibrate) => calibrate.run(),
            Command::Report(report) => report.run(typed::measured),
            Command::Completions(completions) => completions.print(typed::whole()),
            Command::Man(man) => man.write(typed::whole()),
        }
    }))
}
