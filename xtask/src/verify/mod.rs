//! `check`, `verify` and `nightly`: what must hold, in three tiers, and what each check has shown.
//!
//! A check is a row of [`steps`]: a name and command lines, each in some tiers, with the time that it should take and the
//! time after which it is ended. What the tests explore they say in lines that begin with `EXECUTIONS`; which
//! mistakes can be made on purpose, and which were found, in lines that begin with `BUG` and `SEEDED` ([`evidence`]). At the
//! end stand the tables of both; the same tables are in `VERIFICATION.md`, and must name the same mistakes.
//!
//! It fails where a command fails or runs for too long, where a tool that must explore says nothing, and where a tool of
//! this tier has not found a mistake that is listed as that tool's. The nightly tier has every tool. Everything is run
//! before it says so. What the last nightly run showed is kept in `verification/nightly.md` ([`kept`]).

mod evidence;
mod kept;
pub mod steps;

use crate::process::{bounded, tail, was_ended};
use crate::{Outcome, misuse};
use evidence::Evidence;
use kept::Kept;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};
use steps::{Line, STEPS, Step, Tier};

/// The name for all lines that find mistakes.
const SEEDED_BUGS: &str = "seeded-bugs";

#[derive(clap::Args, Default)]
pub struct Args {
    /// Only this step; seeded-bugs is all that finds mistakes
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
    /// Write the tables of VERIFICATION.md; for nightly, whole or with --only seeded-bugs
    #[arg(long)]
    docs: bool,
}

/// What was asked for.
struct Request<'a> {
    tier: Tier,
    args: &'a Args,
}

impl<'a> Request<'a> {
    fn of(tier: Tier, args: &'a Args) -> Result<Self, Box<dyn Error>> {
        let request = Self { tier, args };
        let steps = STEPS.iter().filter(|step| step.of(tier).next().is_some());
        let names: Vec<&str> = steps.map(|step| step.name).chain([SEEDED_BUGS]).collect();
        if request.only().is_some_and(|only| !names.contains(&only)) {
            misuse(&format!("a step of this tier is one of: {}", names.join(" ")))?;
        }
        if args.docs && !(tier == Tier::Nightly && request.demands_mistakes()) {
            misuse(&format!("--docs is for `nightly`, whole or with --only {SEEDED_BUGS}"))?;
        }
        Ok(request)
    }

    /// A step's name, or [`SEEDED_BUGS`]; all, without.
    fn only(&self) -> Option<&str> {
        self.args.only.as_deref()
    }

    /// Whether every mistake must be found whose tool runs in this tier.
    fn demands_mistakes(&self) -> bool {
        self.tier != Tier::Quick && self.only().is_none_or(|only| only == SEEDED_BUGS)
    }

    /// What is run of a step.
    fn lines(&self, step: &Step) -> Vec<&'static Line> {
        let wants = |line: &&Line| match self.only() {
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

pub fn run(tier: Tier, args: &Args) -> Outcome {
    let request = Request::of(tier, args)?;
    let mut evidence = Evidence::default();
    let mut failures = Vec::new();
    let mut times = String::new();
    let mut kept = (tier == Tier::Nightly).then(Kept::read).transpose()?;
    let folder = Path::new("target/verify");
    fs::create_dir_all(folder)?;
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
            match run_line(&log, line, &mut evidence) {
                Ok(silent) => {
                    let said_nothing =
                        |tool| format!("{}: {tool} does not say what it has explored", step.name);
                    failures.extend(silent.into_iter().map(said_nothing));
                }
                Err(failure) => {
                    println!("{failure}");
                    failures.push(format!("{}: {failure}", step.name));
                }
            }
        }
        let took = time(began.elapsed(), step.budget(tier));
        println!("-- {}: {took}", step.name);
        writeln!(times, "  {:<40} {took}", step.name)?;
        if let Some(kept) = &mut kept {
            // After each step, so that a run that is cut short leaves what it has shown.
            kept.note(step.name, failures.len() == failures_before, began.elapsed())?;
        }
    }
    println!("\n{}", evidence.executions());
    if evidence.lists_mistakes() {
        // Long: for people who look at it, or have asked for it.
        if request.only() == Some(SEEDED_BUGS) || std::io::stdout().is_terminal() {
            println!("{}", evidence.mistakes());
        }
        fs::write(folder.join("mistakes.md"), evidence.mistakes())?;
        println!("each mistake, what found it, and how soon: target/verify/mistakes.md");
    }
    if args.docs {
        evidence.write_docs()?;
    }
    if request.demands_mistakes() {
        failures.extend(evidence.gaps(&request.tools()));
        failures.extend(evidence.differences().unwrap_or_else(|error| vec![error.to_string()]));
        println!("{}", evidence.verdict(&request.tools()));
    }
    fs::write(folder.join("times.txt"), &times)?;
    print!("{times}");
    if tier == Tier::Push {
        println!("{}", Kept::read()?.summary());
    }
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("failures: {}", failures.len()).into()) }
}

/// How long a step took, beside what it should take. More than that is reported, and is no failure.
fn time(took: Duration, budget: Duration) -> String {
    let over = if took > budget { ", OVER" } else { "" };
    format!("{}s (budget {}s{over})", took.as_secs(), budget.as_secs())
}

const SHOWN: usize = 60;

/// Runs `line`, keeps what it says in `log`, and adds what it shows to `evidence`. Returns those of its tools that have
/// said nothing. An error says all that there is to say.
fn run_line(log: &Path, line: &Line, evidence: &mut Evidence) -> Result<Vec<&'static str>, Box<dyn Error>> {
    let variables = line.environment.iter().map(|(name, value)| format!("{name}='{value}' "));
    println!("$ {}{}", variables.collect::<String>(), line.words);
    let file = File::create(log)?;
    let mut words = line.words.split_whitespace();
    let mut command = bounded(line.bound, words.next().unwrap_or_default());
    command.args(words).envs(line.environment.iter().copied()).env("CARGO_TERM_COLOR", "never");
    let status = command.stdout(file.try_clone()?).stderr(file).status()?;
    let text = fs::read(log)?;
    let text = String::from_utf8_lossy(&text);
    let heard = evidence.read(&text);
    if status.success() {
        return Ok(line.tools.iter().filter(|tool| !heard.contains(**tool)).copied().collect());
    }
    println!("    {}", tail(&text, SHOWN).replace('\n', "\n    "));
    let why = if was_ended(status) { format!("not over after {} s", line.bound) } else { status.to_string() };
    Err(format!("{}: {why}; all that it said is in {}", line.words, log.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn args(only: Option<&str>, docs: bool) -> Args {
        Args { only: only.map(str::to_owned), docs }
    }

    #[test]
    fn a_tier_has_its_steps_and_the_night_the_tables() {
        let good = |tier, only, docs| Request::of(tier, &args(only, docs)).is_ok();
        assert!(good(Tier::Push, None, false) && good(Tier::Push, Some("loom"), false));
        assert!(good(Tier::Nightly, Some(SEEDED_BUGS), true));
        assert!(!good(Tier::Push, Some("lo"), false) && !good(Tier::Push, None, true));
        assert!(!good(Tier::Push, Some("coverage"), false), "that is for the night");
        assert!(!good(Tier::Nightly, Some("loom"), true));
    }

    #[test]
    fn every_tool_looks_for_its_mistakes_at_night_and_all_but_the_sanitizers_on_a_push() {
        let tools = |tier| {
            let tools = Request::of(tier, &args(Some(SEEDED_BUGS), false)).unwrap().tools();
            tools.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
        };
        let push = "Explore Fuzz History Host Inject Load Loom Model Shuttle Unit Worlds";
        assert_eq!(tools(Tier::Push), push);
        assert_eq!(tools(Tier::Nightly), push.replace("Shuttle", "Sanitizer Shuttle"));
        assert!(!Request { tier: Tier::Quick, args: &args(None, false) }.demands_mistakes());
    }

    #[test]
    fn a_step_over_its_budget_is_reported() {
        let seconds = Duration::from_secs;
        assert_eq!(time(seconds(42), seconds(60)), "42s (budget 60s)");
        assert_eq!(time(seconds(61), seconds(60)), "61s (budget 60s, OVER)");
    }

    const LINE: Line =
        Line { tiers: &[], environment: &[], words: "", tools: &["Loom", "Model"], budget: 1, bound: 60 };

    fn run_here(name: &str, words: &'static str) -> Result<Vec<&'static str>, String> {
        let log = std::env::temp_dir().join(format!("slat-verify-{name}-{}", std::process::id()));
        let outcome = run_line(&log, &Line { words, ..LINE }, &mut Evidence::default());
        fs::remove_file(&log).unwrap();
        outcome.map_err(|error| error.to_string())
    }

    #[test]
    fn a_tool_that_says_nothing_is_told() {
        assert_eq!(run_here("echo", "echo EXECUTIONS Loom a 3"), Ok(vec!["Model"]));
    }

    #[test]
    fn failures_are_told() {
        assert!(run_here("fails", "false").unwrap_err().contains("exit status: 1"));
        assert!(run_here("missing", "no-such-command-at-all").unwrap_err().contains("exit status: 127"));
    }
}
