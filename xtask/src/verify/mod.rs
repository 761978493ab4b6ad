//! `check`, `verify` and `nightly`: what must hold, in three tiers, and what each check has shown.
//!
//! A check is a row of [`steps`]: a name and command lines, each in some tiers, with the time that it should take and the
//! time after which it is ended ([`command`]). What the tests explore they say in lines that begin with `EXECUTIONS`; which
//! mistakes can be made on purpose, and which were found, in lines that begin with `BUG` and `SEEDED` ([`evidence`]). At the
//! end stand the tables of both; the same tables are in `VERIFICATION.md`, and must name the same mistakes ([`docs`]).
//!
//! It fails where a command fails or runs for too long, where a tool that must explore says nothing, and where a tool of
//! this tier has not found a mistake that is listed as that tool's. The nightly tier has every tool. Everything is run
//! before it says so. What the last nightly run showed is kept in `verification/nightly.md` ([`kept`]).

mod command;
mod docs;
mod evidence;
mod kept;
mod steps;
mod times;

use crate::Outcome;
use evidence::Evidence;
use kept::Kept;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;
use steps::{Line, STEPS, Step, Tier};
use times::Times;

/// The name for all lines that find mistakes.
const SEEDED_BUGS: &str = "seeded-bugs";

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    tier: Tier,
    /// A step's name, or [`SEEDED_BUGS`]; all, without.
    only: Option<String>,
    /// Whether the tables go into `VERIFICATION.md`.
    docs: bool,
}

impl Request {
    fn read(tier: Tier, args: &[String]) -> Result<Self, String> {
        let mut request = Self { tier, ..Self::default() };
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            match arg {
                "--docs" => request.docs = true,
                "--only" => request.only = Some(step_name(tier, args.next())?),
                _ => {
                    return Err(format!(
                        "usage: cargo xtask verify|nightly [--only STEP] [--docs], not {arg}"
                    ));
                }
            }
        }
        if request.docs && !(tier == Tier::Nightly && request.demands_mistakes()) {
            return Err(format!("--docs is for `nightly`, whole or with --only {SEEDED_BUGS}"));
        }
        Ok(request)
    }

    /// Whether every mistake must be found whose tool runs in this tier.
    fn demands_mistakes(&self) -> bool {
        self.tier != Tier::Quick && self.only.as_deref().is_none_or(|only| only == SEEDED_BUGS)
    }

    /// What is run of a step.
    fn lines(&self, step: &Step) -> Vec<&'static Line> {
        let wants = |line: &&Line| match self.only.as_deref() {
            None => true,
            Some(SEEDED_BUGS) => !line.tools.is_empty(),
            Some(name) => step.name == name,
        };
        step.of(self.tier).filter(wants).collect()
    }

    /// The tools that are run.
    fn tools(&self) -> Vec<&'static str> {
        STEPS.iter().flat_map(|step| self.lines(step)).flat_map(|line| line.tools).copied().collect()
    }
}

fn step_name(tier: Tier, given: Option<&str>) -> Result<String, String> {
    let steps = STEPS.iter().filter(|step| step.of(tier).next().is_some());
    let names: Vec<&str> = steps.map(|step| step.name).chain([SEEDED_BUGS]).collect();
    match given {
        Some(name) if names.contains(&name) => Ok(name.to_owned()),
        _ => Err(format!("a step of this tier is one of: {}", names.join(" "))),
    }
}

/// The chore `check`.
pub fn check(root: &Path) -> Outcome {
    perform(root, &Request { tier: Tier::Quick, ..Request::default() })
}

/// The chore `verify`.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    perform(root, &Request::read(Tier::Push, args)?)
}

/// The chore `nightly`.
pub fn nightly(root: &Path, args: &[String]) -> Outcome {
    perform(root, &Request::read(Tier::Nightly, args)?)
}

fn perform(root: &Path, request: &Request) -> Outcome {
    let mut evidence = Evidence::default();
    let mut failures = Vec::new();
    let mut times = Times::default();
    let mut kept = (request.tier == Tier::Nightly).then(|| Kept::read(root)).transpose()?;
    let folder = root.join("target/verify");
    std::fs::create_dir_all(&folder)?;
    let mut logs = 0;
    for step in STEPS {
        let lines = request.lines(step);
        if lines.is_empty() {
            continue;
        }
        let (began, failures_before) = (Instant::now(), failures.len());
        println!("\n== {}: {}", step.name, step.about);
        for line in lines {
            logs += 1;
            let log = folder.join(format!("{logs:02}-{}.log", step.name));
            match command::run(root, &log, line, &mut evidence) {
                Ok(silent) => failures.extend(
                    silent
                        .iter()
                        .map(|tool| format!("{}: {tool} does not say what it has explored", step.name)),
                ),
                Err(failure) => {
                    println!("{failure}");
                    failures.push(format!("{}: {failure}", step.name));
                }
            }
        }
        println!("{}", times.add(step.name, began.elapsed(), step.budget(request.tier)));
        if let Some(kept) = &mut kept {
            // After each step, so that a run that is cut short leaves what it has shown.
            kept.note(root, step.name, failures.len() == failures_before, began.elapsed())?;
        }
    }
    println!("\n{}", evidence.executions());
    if !evidence.listed().is_empty() {
        // Long: for people who look at it, or have asked for it.
        if request.only.as_deref() == Some(SEEDED_BUGS) || std::io::stdout().is_terminal() {
            println!("{}", evidence.mistakes());
        }
        std::fs::write(folder.join("mistakes.md"), evidence.mistakes())?;
        println!("each mistake, what found it, and how soon: target/verify/mistakes.md");
    }
    if request.docs {
        docs::write(root, &evidence)?;
    }
    if request.demands_mistakes() {
        failures.extend(evidence.gaps(&request.tools()));
        failures.extend(docs::differences(root, &evidence));
        println!("{}", evidence.verdict(&request.tools()));
    }
    std::fs::write(folder.join("times.txt"), times.to_string())?;
    print!("{times}");
    if request.tier == Tier::Push {
        println!("{}", Kept::read(root)?.summary());
    }
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("failures: {}", failures.len()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tier: Tier, args: &[&str]) -> Result<Request, String> {
        Request::read(tier, &args.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_asked_for_is_read() {
        let only = |tier, name: &str| Request { tier, only: Some(name.to_owned()), docs: false };
        assert_eq!(request(Tier::Push, &[]), Ok(Request::default()));
        assert_eq!(request(Tier::Push, &["--only", "loom"]), Ok(only(Tier::Push, "loom")));
        assert_eq!(
            request(Tier::Nightly, &["--only", SEEDED_BUGS, "--docs"]),
            Ok(Request { docs: true, ..only(Tier::Nightly, SEEDED_BUGS) })
        );
        for wrong in [&["--only"] as &[_], &["--only", "lo"], &["--fast"], &["loom"], &["--docs"]] {
            assert!(request(Tier::Push, wrong).is_err(), "{wrong:?}");
        }
        assert!(request(Tier::Push, &["--only", "coverage"]).is_err(), "that is for the night");
        assert!(request(Tier::Nightly, &["--only", "loom", "--docs"]).is_err());
    }

    #[test]
    fn every_tool_looks_for_its_mistakes_at_night_and_all_but_the_sanitizers_on_a_push() {
        let tools = |tier| {
            let mut tools = request(tier, &["--only", SEEDED_BUGS]).unwrap().tools();
            tools.sort_unstable();
            tools.dedup();
            tools
        };
        let push =
            ["Explore", "Fuzz", "History", "Inject", "Load", "Loom", "Model", "Shuttle", "Unit", "Worlds"];
        assert_eq!(tools(Tier::Push), push);
        let night = [
            "Explore",
            "Fuzz",
            "History",
            "Inject",
            "Load",
            "Loom",
            "Model",
            "Sanitizer",
            "Shuttle",
            "Unit",
            "Worlds",
        ];
        assert_eq!(tools(Tier::Nightly), night);
        assert!(!Request { tier: Tier::Quick, ..Request::default() }.demands_mistakes());
    }
}
