//! `verify`: every check that this repository has, and what each has shown; `check`: the quick half.
//!
//! A check is a row of [`steps`]: a name and command lines, each with a bound in time ([`command`]). What the tests
//! explore they say in lines that begin with `EXECUTIONS`; which mistakes can be made on purpose, and which were found,
//! in lines that begin with `BUG` and `SEEDED` ([`evidence`]). At the end stand the tables of both; the same tables are
//! in `VERIFICATION.md`, and must name the same mistakes ([`docs`]).
//!
//! It fails where a command fails or runs for too long, where a tool that must explore says nothing, and where a
//! mistake is not found by the very tool that is there for it. Everything is run before it says so.

mod command;
mod docs;
mod evidence;
mod steps;

use crate::Outcome;
use evidence::Evidence;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;
use steps::{COUNTED, Line, STEPS, Step, UNCOUNTED};

/// The name for all steps that find mistakes.
const SEEDED_BUGS: &str = "seeded-bugs";

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    /// A step's name, or [`SEEDED_BUGS`]; all, without.
    only: Option<String>,
    /// Steps to leave out, where what they need cannot be had; then no mistake must be found.
    without: Vec<String>,
    quick: bool,
    /// Whether the tables go into `VERIFICATION.md`.
    docs: bool,
}

impl Request {
    fn read(args: &[String]) -> Result<Self, String> {
        let mut request = Self::default();
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            match arg {
                "--quick" => request.quick = true,
                "--docs" => request.docs = true,
                "--only" => request.only = Some(step_name(args.next())?),
                "--without" => request.without.push(step_name(args.next())?),
                _ => {
                    return Err(format!(
                        "usage: cargo xtask verify [--only STEP] [--without STEP] [--quick] [--docs], not {arg}"
                    ));
                }
            }
        }
        if request.docs && !request.demands_all() {
            return Err(format!("--docs needs everything, or --only {SEEDED_BUGS}"));
        }
        Ok(request)
    }

    /// Whether every mistake must be found.
    fn demands_all(&self) -> bool {
        !self.quick && self.without.is_empty() && self.only.as_deref().is_none_or(|only| only == SEEDED_BUGS)
    }

    fn wants(&self, step: &Step) -> bool {
        if self.without.iter().any(|name| name == step.name) {
            return false;
        }
        match self.only.as_deref() {
            None => step.name != UNCOUNTED || self.without.iter().any(|name| name == COUNTED),
            Some(SEEDED_BUGS) => step.seeded,
            Some(name) => step.name == name,
        }
    }

    fn lines(&self, step: &Step) -> &'static [Line] {
        if self.quick { step.quick } else { step.full }
    }
}

fn step_name(given: Option<&str>) -> Result<String, String> {
    let mut names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
    names.dedup();
    names.push(SEEDED_BUGS);
    match given {
        Some(name) if names.contains(&name) => Ok(name.to_owned()),
        _ => Err(format!("a step is one of: {}", names.join(" "))),
    }
}

/// The chore `verify`.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    perform(root, &Request::read(args)?)
}

/// The chore `check`.
pub fn check(root: &Path) -> Outcome {
    perform(root, &Request { quick: true, ..Request::default() })
}

fn perform(root: &Path, request: &Request) -> Outcome {
    let began = Instant::now();
    let mut evidence = Evidence::default();
    let mut failures = Vec::new();
    let folder = root.join("target/verify");
    std::fs::create_dir_all(&folder)?;
    let mut logs = 0;
    for step in STEPS.iter().filter(|step| request.wants(step) && !request.lines(step).is_empty()) {
        let now = Instant::now();
        println!("\n== {}: {}", step.name, step.about);
        let before = evidence.len();
        for line in request.lines(step) {
            logs += 1;
            let log = folder.join(format!("{logs:02}-{}.log", step.name));
            if let Err(failure) = command::run(root, &log, line, &mut evidence) {
                println!("{failure}");
                failures.push(format!("{}: {failure}", step.name));
            }
        }
        if step.explores && evidence.len() == before {
            failures.push(format!("{}: it does not say what it has explored", step.name));
        }
        println!("-- {}: {:.0} s", step.name, now.elapsed().as_secs_f64());
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
    if request.demands_all() {
        failures.extend(evidence.gaps());
        failures.extend(docs::differences(root, &evidence));
    }
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    println!("{:.0} s in all", began.elapsed().as_secs_f64());
    if request.demands_all() {
        println!("{}", evidence.verdict());
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("failures: {}", failures.len()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: &[&str]) -> Result<Request, String> {
        Request::read(&args.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_asked_for_is_read() {
        let only = |name: &str| Request { only: Some(name.to_owned()), ..Request::default() };
        assert_eq!(request(&[]), Ok(Request::default()));
        assert_eq!(request(&["--only", "loom"]), Ok(only("loom")));
        assert_eq!(request(&["--only", "loom", "--quick"]), Ok(Request { quick: true, ..only("loom") }));
        assert_eq!(
            request(&["--only", SEEDED_BUGS, "--docs"]),
            Ok(Request { docs: true, ..only(SEEDED_BUGS) })
        );
        let without = Request { without: vec!["gate".to_owned()], ..Request::default() };
        assert!(
            !without.demands_all() && !STEPS.iter().any(|step| step.name == "gate" && without.wants(step))
        );
        assert_eq!(request(&["--without", "gate"]), Ok(without));
        for wrong in [&["--only"] as &[_], &["--only", "lo"], &["--fast"], &["--quick", "--docs"], &["loom"]]
        {
            assert!(request(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_mistake_has_steps_that_look_for_it() {
        let seeded = request(&["--only", SEEDED_BUGS]).unwrap();
        let names: Vec<&str> = STEPS.iter().filter(|step| seeded.wants(step)).map(|step| step.name).collect();
        assert_eq!(names, ["history", "loom", "shuttle", "model", "fuzz", "worlds", "sanitize"]);
        assert!(seeded.demands_all() && !request(&["--quick"]).unwrap().demands_all());
    }
}
