//! Benches that are one program in both worlds (`sim/benches`), here on this machine's threads: each policy against slat's, which
//! is the last one, in interleaved rounds.

use super::harness::{Series, rounds};
use super::machine::Machine;
use super::report::{Check, Report, Row, params};
use super::{About, Asked, Bench, Program};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_machine::Costs;
use slat_threads::benches::{ALL, Bench as Shared, OnThreads, Point, Policy, Setting, Threads as Runs, Work};

/// All of them.
pub fn programs() -> impl Iterator<Item = Box<dyn Program>> {
    ALL.iter().filter_map(|bench| match bench.about().threads {
        OnThreads::Common(runs) => Some(Box::new(Threads(*bench, runs)) as Box<dyn Program>),
        _ => None,
    })
}

/// A bench as a program.
struct Threads(&'static dyn Shared, Runs);

#[derive(Debug, Args)]
struct Flags {
    /// Numbers of vCPUs to measure with, a thread each
    #[arg(short, long, value_name = "N,…", default_value = "1,2", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Vec<u32>,
    /// Guests leave, hosts work and zero pages, each for as long as `slat sim` takes by default; else the engine works alone
    #[arg(long)]
    as_simulated: bool,
}

impl Program for Threads {
    fn about(&self) -> About {
        let (about, Runs { takes, ci, quick, full }) = (self.0.about(), self.1);
        About { takes, ci, quick, full, ..About::of(about.name, about.series) }
    }

    fn flags(&self, command: Command) -> Command {
        Flags::augment_args(command).about(self.0.about().asks)
    }

    fn parse(&self, matches: &ArgMatches) -> Result<Box<dyn Bench + Send>, clap::Error> {
        Ok(Box::new(Typed { bench: self.0, flags: Flags::from_arg_matches(matches)? }))
    }
}

struct Typed {
    bench: &'static dyn Shared,
    flags: Flags,
}

impl Bench for Typed {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let Flags { vcpus, as_simulated } = &self.flags;
        let (machine, policies) = (Machine::detect(), self.bench.policies());
        let (mut rows, mut checks) = (Vec::new(), Vec::new());
        for &vcpus in vcpus {
            say(format_args!("{vcpus} vCPUs: {} rounds of {} policies", asked.runs, policies.len()));
            let points = rounds(asked.runs as usize, policies, |&policy| {
                let work = if *as_simulated { Work::default() } else { Work::none() };
                let setting = Setting { costs: &Costs::SERVER, vcpus, policy, quick: false, seed: 1, work };
                self.bench.run(&setting).map_err(Error::Machine)
            })?;
            rows.extend(self.rows(vcpus, policies, &points));
            checks.extend(
                policies.iter().zip(&points).flat_map(|(policy, points)| checks_of(*policy, vcpus, points)),
            );
        }
        let params = params! { "as_simulated": as_simulated, "runs": asked.runs };
        Ok(Report { params, rows, checks, ..Report::of(self.bench.name(), machine) })
    }
}

impl Typed {
    /// Each figure of each other policy against slat's.
    fn rows(&self, vcpus: u32, policies: &[Policy], points: &[Vec<Point>]) -> Vec<Row> {
        let Some((slat, others)) = points.split_last() else { return Vec::new() };
        let series = |points: &[Point], name| {
            let value = |point: &Point| Some(point.figures.iter().find(|figure| figure.name == name)?.value);
            points.iter().map(value).collect::<Option<Vec<_>>>().map(Series::new)
        };
        let row = |name, unit, (policy, before): (&Policy, &Vec<Point>)| {
            let params = params! { "vcpus": vcpus, "figure": name };
            let row = Row::compare(policy.name(), params, unit, &series(before, name)?, &series(slat, name)?);
            Some(row.answering(self.bench.about().series))
        };
        let figures = slat[0].figures.iter();
        figures
            .flat_map(|of| policies.iter().zip(others).filter_map(move |other| row(of.name, of.unit, other)))
            .collect()
    }
}

/// The checks of one policy. A check holds if it held in all rounds.
fn checks_of(policy: Policy, vcpus: u32, points: &[Point]) -> Vec<Check> {
    let worst = |nth: usize| {
        let mut all = points.iter().filter_map(|point| point.checks.get(nth));
        let first = all.next()?;
        let check = all.find(|check| !check.ok).filter(|_| first.ok).unwrap_or(first);
        let name = format!("{}, {vcpus} vCPUs: {}", policy.name(), check.name);
        Some(Check { name, ok: check.ok, detail: check.detail.clone() })
    };
    (0..).map_while(worst).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_bench_compares_each_policy_with_the_last() {
        let bench = slat_threads::benches::by_name("pre-fault").unwrap();
        let typed = Typed { bench, flags: Flags { vcpus: vec![2], as_simulated: false } };
        let report = typed.report(Asked::ONCE).unwrap();
        let names: Vec<_> = report.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["exclusive", "read-write", "exclusive", "read-write"]);
        assert!(
            report.checks.len() == 6 && report.checks.iter().all(|check| check.ok),
            "{:?}",
            report.checks
        );
    }

    #[test]
    fn a_check_that_fails_once_fails() {
        let bench = slat_threads::benches::by_name("pre-fault").unwrap();
        let policy = bench.policies()[0];
        let setting =
            Setting { costs: &Costs::SERVER, vcpus: 1, policy, quick: true, seed: 1, work: Work::none() };
        let mut points = vec![bench.run(&setting).unwrap(); 3];
        assert!(checks_of(policy, 1, &points).iter().all(|check| check.ok));
        points[1].checks[0].ok = false;
        assert_eq!(
            checks_of(policy, 1, &points).iter().map(|check| check.ok).collect::<Vec<_>>(),
            [false, true]
        );
    }
}
