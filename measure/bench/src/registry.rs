//! Every bench, one row each. `slat bench`, `slat sim`, `slat sim validate`, `slat report`, the book's chapter of benchmarks and CI
//! iterate these rows, so none of them has a list of its own.
//!
//! | a bench that is | its file has its program and its row, `ABOUT` | its line is in |
//! |---|---|---|
//! | one program, for real threads and for virtual time | `measure/sim/src/benches/NAME.rs` | `ALL` in the `mod.rs` beside it |
//! | a program for real threads, or flags and rows of one for both | `measure/bench/src/bench/NAME/mod.rs` | `programs` in the `mod.rs` above it |
//!
//! `slat bench` and `slat sim` run one program under one name.

pub use crate::bench::Program;
use crate::bench::programs;
use crate::levers::Grid;
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use slat_series::PatchSeries;
use slat_sim::benches::Bench as Simulated;
use std::sync::LazyLock;

/// What is known of a program for real threads without a run.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// As the command line calls it.
    pub name: &'static str,
    /// The series that it answers.
    pub series: PatchSeries,
    /// Time and peak of resident memory with all flags as they stand.
    pub takes: [&'static str; 2],
    /// Counted rounds by default.
    pub runs: &'static str,
    /// What its section of the chapter of benchmarks asks; empty where no result is kept.
    pub question: &'static str,
    /// The arguments of the kept result.
    pub kept: &'static str,
    /// Further results that are kept: name, question, arguments.
    pub variants: &'static [(&'static str, &'static str, &'static str)],
    /// Its lines in the README.
    pub headlines: &'static [Headline],
    /// What brings what.
    pub levers: &'static [Grid],
    /// Arguments of each run in CI, where its checks count and its times do not.
    pub ci: &'static [&'static str],
    /// Arguments of each run of `slat report --quick`.
    pub quick: &'static [&'static str],
    /// Arguments of each run of `slat report`.
    pub full: &'static [&'static str],
}

impl About {
    /// One of which nothing is kept and nothing is reported.
    pub const fn of(name: &'static str, series: PatchSeries) -> Self {
        let (takes, runs, question, kept) = (["1 min", "1 GiB"], "5", "", "");
        Self {
            name,
            series,
            takes,
            runs,
            question,
            kept,
            variants: &[],
            headlines: &[],
            levers: &[],
            ci: &[],
            quick: &[],
            full: &[],
        }
    }
}

/// A line of the README: what was measured, and which row of the kept result has it.
#[derive(Clone, Copy, Debug)]
pub struct Headline {
    /// What was measured.
    pub what: &'static str,
    /// What the baseline is.
    pub against: &'static str,
    /// The name of the row.
    pub row: &'static str,
    /// Parameters that tell it from rows of the same name.
    pub params: &'static [(&'static str, &'static str)],
}

/// A file of `measure/results/`.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name, without what it says of the machine.
    pub file: &'static str,
    /// What it answers.
    pub question: &'static str,
    /// Arguments of `slat bench` that made it.
    pub command: String,
    /// The lines of the README that are in it.
    pub headlines: &'static [Headline],
    /// What brings what in it.
    pub levers: &'static [Grid],
}

static PROGRAMS: LazyLock<Vec<Program>> = LazyLock::new(programs);

/// All of them: as the chapter of benchmarks has them, then those that are one program.
pub fn all() -> &'static [Program] {
    &PROGRAMS
}

impl Program {
    /// What `slat sim` runs.
    pub(crate) fn simulated(&self) -> Option<&'static dyn Simulated> {
        slat_sim::benches::by_name(self.about.name)
    }

    /// Where it runs.
    pub fn runs_in(&self) -> &'static str {
        match self.simulated() {
            None => "real threads",
            Some(_) => "real threads, virtual time",
        }
    }

    /// Its results in `measure/results/`.
    pub fn kept(&self) -> impl Iterator<Item = Kept> {
        let About { name, question, kept, variants, headlines, levers, .. } = self.about;
        let first = Some((name, question, kept)).filter(|_| !question.is_empty());
        let all = first.into_iter().chain(variants.iter().copied());
        all.map(move |(file, question, args)| Kept {
            file,
            question,
            command: command(name, args),
            headlines: if file == name { headlines } else { &[] },
            levers: if file == name { levers } else { &[] },
        })
    }
}

/// A name with arguments, if there are any.
pub(crate) fn command(name: &str, args: &str) -> String {
    format!("{name} {args}").trim_end().to_owned()
}

/// What is chosen by the name of a bench: a subcommand for each.
pub(crate) trait ByName: Sized {
    /// The subcommands.
    fn commands() -> Vec<Command>;
    /// What was typed behind a name; none where no bench has that name.
    fn parse(name: &str, matches: &ArgMatches) -> Option<Result<Self, clap::Error>>;
}

/// [`ByName`], as a part of clap's tree.
pub(crate) struct Chosen<T>(pub Box<T>);

impl<T: ByName> Subcommand for Chosen<T> {
    fn augment_subcommands(command: Command) -> Command {
        let mut commands = T::commands();
        commands.sort_by_key(|command| command.get_name().to_owned());
        command.subcommands(commands)
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        T::commands().iter().any(|command| command.get_name() == name)
    }
}

impl<T: ByName> FromArgMatches for Chosen<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let parsed = matches.subcommand().and_then(|(name, matches)| T::parse(name, matches));
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        parsed.unwrap_or_else(|| Err(missing())).map(|chosen| Self(Box::new(chosen)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_bench_has_one_row_and_every_row_what_it_takes() {
        let names: BTreeSet<_> = all().iter().map(|row| row.about.name).collect();
        assert_eq!(names.len(), all().len());
        assert!(slat_sim::benches::ALL.iter().all(|bench| names.contains(bench.name())));
        for Program { about, .. } in all() {
            let About { name, ci, quick, full, takes, .. } = about;
            assert!([ci, quick, full].iter().all(|runs| !runs.is_empty()), "{name} is left out somewhere");
            assert!(ci.iter().all(|words| !words.contains("--runs")), "{name}: CI runs each once");
            assert!(takes.iter().all(|text| text.contains(char::is_numeric)), "{name}");
        }
    }

    #[test]
    fn a_row_names_where_its_bench_runs() {
        let of = |name: &str| all().iter().find(|row| row.about.name == name).unwrap().runs_in();
        assert_eq!(of("migrate"), "real threads");
        for name in [
            "pre-fault",
            "invalidate",
            "zap",
            "host-faults",
            "demand-paging",
            "access-tracking-perf",
            "memslot-perf",
            "numa-balancing",
            "ksm-perf",
        ] {
            assert_eq!(of(name), "real threads, virtual time");
        }
    }
}
