//! `slat report`: the benches, the simulations and a watched replay, as one page.
//!
//! ```text
//! steps ──▶ bench, sim, replay ──▶ Data ──▶ facts ──▶ sections: sentences, claims ──┬─▶ data.json
//!                                   └───────────────────────────────────────────────┼─▶ index.html    page/ around data.json
//!                                                                                   └─▶ report.md     sentences and claims
//! ```
//! | file | idea |
//! |---|---|
//! | `report_commands` | the commands of a quick and of a full report |
//! | `replay` | a guest whose memory is watched while it runs |
//! | `report_data` | all results; `--from` makes the page anew from them |
//! | `facts` | rows of every source as one kind of row |
//! | `published` | the series: texts, and published figures |
//! | `claims` | a published figure beside ours, and the verdict |
//! | `sentences` | templates: which row, which words |
//! | `sections` | what the page says of each series |
//! | `page`, `page/` | the files; the static page, which draws tables and plots of the data |

mod claims;
mod facts;
mod page;
mod published;
mod replay;
mod report_commands;
pub mod report_data;
mod sections;
mod sentences;
#[cfg(test)]
mod tests;

use crate::report::page::Folder;
use crate::report::report_data::{Data, Part};
use crate::threads::machine_info::Machine;
use report_commands::RunLine;
use slat_cli::error::Error;
use slat_cli::{bar, interrupt};
use std::fs;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Run the benches and the simulations, and write a page that shows them beside the tables of the patch series
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  slat report --quick -o /tmp/report
  slat report --from slat-report/data.json -o elsewhere

Writes index.html, which needs no other file and no network; data.json, the data in it; and report.md, its sentences and claims.

Exit status: 0 every check holds; 1 one does not, or a ratio does not name its sides; 2 bad input; 130 interrupted.")]
pub struct Report {
    /// Small sizes and few rounds: three minutes; else twenty
    #[arg(long)]
    quick: bool,
    /// The folder that it goes to
    #[arg(short, long, value_name = "DIR", default_value = "slat-report")]
    output: PathBuf,
    /// Measure nothing: make the page anew from the data.json of an earlier report
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    from: Option<PathBuf>,
}

impl Report {
    /// Measures, writes, says where the page is, and returns the exit status.
    pub fn run(&self, run_line: RunLine) -> Result<ExitCode, Error> {
        let folder = Folder::new(&self.output)?;
        let data = match &self.from {
            Some(file) => read(file)?,
            None => self.measure(run_line),
        };
        let page = folder.write(&data)?;
        writeln!(stdout(), "{}", page.display())?;
        Ok(match sound(&data) {
            _ if data.interrupted && self.from.is_none() => slat_cli::interrupt::status(),
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Every step, until all are done or Ctrl-C is pressed.
    fn measure(&self, run_line: RunLine) -> Data {
        let machine = Machine::detect();
        let steps = report_commands::all(self.quick);
        // Where it cannot be seen, a line for each step is, and what benches say goes nowhere.
        let lines = !bar::is_quiet() && !stderr().is_terminal();
        let bar =
            bar::bar(Some(steps.len() as u64), "[{bar:20}] {pos} of {len}, {elapsed}  {prefix}  {wide_msg}");
        bar.enable_steady_tick(Duration::from_millis(200));
        bar::listen(Some(bar.clone()));
        let began = Instant::now();
        let mut parts = Vec::new();
        for (nth, step) in steps.iter().enumerate() {
            let command = step.command();
            bar.set_position(nth as u64);
            bar.set_message("");
            bar.set_prefix(command.clone());
            if lines {
                eprintln!("{} of {}: slat {command}", nth + 1, steps.len());
            }
            let began = Instant::now();
            let outcome = step.clone().run(run_line);
            // A step that was interrupted before it had a figure is no part.
            if !(interrupt::asked() && matches!(outcome, report_data::Outcome::Failed(_))) {
                parts.push(Part { command, seconds: began.elapsed().as_secs_f64(), outcome });
            }
            if interrupt::asked() {
                break;
            }
        }
        bar::listen(None);
        bar.finish_and_clear();
        Data {
            slat: slat_cli::VERSION.to_owned(),
            machine,
            quick: self.quick,
            interrupted: parts.len() < steps.len(),
            seconds: began.elapsed().as_secs_f64(),
            parts,
        }
    }
}

/// Whether every check holds, and every ratio names what it divides by what.
fn sound(data: &Data) -> bool {
    data.checks().all(|(_, check)| check.ok) && page::ratios_without_sides(data).is_empty()
}

fn read(file: &Path) -> Result<Data, Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::Usage(format!("--from {}: {error}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(&error))?;
    serde_json::from_str(&text).map_err(|error| wrong(&error))
}
