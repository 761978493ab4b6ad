//! The registry: the kept results of each [`Scenario`], and the commands that CI and the report run of it.

use crate::levers::Grid;
use crate::scenario::{Headline, Scenario};
use crate::scenarios::ALL;

/// A file of `measure/results/`.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name, without what it says of the machine.
    pub file: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Arguments of `slat bench` that made it.
    pub command: String,
    /// The lines of the README that are in it.
    pub headlines: &'static [Headline],
    /// Tables that show the contribution of each idea.
    pub levers: &'static [Grid],
}

impl Scenario {
    /// The clocks that it runs by.
    pub fn runs_in(&self) -> &'static str {
        if self.is_simulated() { "real threads, virtual time" } else { "real threads" }
    }

    /// Its results in `measure/results/`.
    pub fn kept(&self) -> impl Iterator<Item = Kept> + use<> {
        let (name, measured) = (self.name, self.measured);
        let first =
            Some((name, measured.question, measured.kept)).filter(|(_, question, _)| !question.is_empty());
        let all = first.into_iter().chain(measured.variants.iter().copied());
        all.map(move |(file, question, args)| Kept {
            file,
            question,
            command: command(name, args),
            headlines: if file == name { measured.headlines } else { &[] },
            levers: if file == name { measured.levers } else { &[] },
        })
    }
}

/// All kept results, in the order of the scenarios.
pub fn kept() -> impl Iterator<Item = Kept> {
    ALL.iter().flat_map(|scenario| scenario.kept())
}

/// A name with arguments, if there are any.
pub fn command(name: &str, args: &str) -> String {
    format!("{name} {args}").trim_end().to_owned()
}

/// A caller of benches.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Who {
    /// The runs of CI
    Ci,
    /// `slat report --quick`
    Quick,
    /// `slat report`
    Report,
    /// The simulations of `slat report`
    Simulated,
}

impl Who {
    /// The commands of a bench.
    pub fn commands(self, row: &Scenario) -> Vec<String> {
        let args = match self {
            Self::Ci => row.measured.ci,
            Self::Quick => row.measured.quick,
            Self::Report => row.measured.full,
            Self::Simulated => {
                let is_run = row.is_simulated() && row.simulated.reported;
                return is_run.then(|| format!("sim {}", row.name)).into_iter().collect();
            }
        };
        args.iter().map(|args| format!("bench {}", command(row.name, args))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Measured;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_has_one_row_and_every_row_is_whole() {
        let names: BTreeSet<_> = ALL.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ALL.len());
        for Scenario { name, asks, measured, .. } in ALL {
            let Measured { ci, quick, full, takes, .. } = measured;
            assert!([ci, quick, full].iter().all(|runs| !runs.is_empty()), "{name} is left out somewhere");
            assert!(ci.iter().all(|words| !words.contains("--runs")), "{name}: CI runs each once");
            assert!(takes.iter().all(|text| text.contains(char::is_numeric)), "{name}");
            assert!(asks.len() > 20, "{name} asks nothing");
        }
    }

    #[test]
    fn virtual_time_has_the_scenarios_with_columns() {
        let simulated = ALL.iter().filter(|row| row.is_simulated()).map(|row| row.name);
        assert!(simulated.eq(slat_sim::scenarios::ALL.iter().map(|row| row.name)));
        assert!(slat_sim::scenarios::ALL.iter().all(|row| row.is_simulated()));
        assert!(ALL.iter().any(|row| row.runs_in() == "real threads"));
    }
}
