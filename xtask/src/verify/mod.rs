//! `check`, `verify` and `nightly`: three tiers of checks, and the evidence of each check.
//!
//! A check is a row of [`steps`]: a name and command lines, each in some tiers, with a budget and a time limit. Tests
//! print their executions in lines that begin with `EXECUTIONS`, and mistakes, made and found, in lines that begin with
//! `BUG` and `SEEDED` ([`evidence`]). The tables of both are printed at the end; `proof/verdicts/mistakes.md` has the
//! same tables, and must name the same mistakes.
//!
//! It fails if a command fails or exceeds its limit, if a tool that must explore reports nothing, or if a tool of this
//! tier has not found one of its mistakes. The nightly tier has every tool. All steps run before it reports. The
//! results of the last nightly run are kept in `proof/verdicts/nightly.md` ([`kept`]).

mod evidence;
pub mod kept;
pub mod steps;

use crate::outcome::{Outcome, misuse};
use crate::process::{bounded, tail, was_ended};
use anyhow::{Result, bail, ensure};
use evidence::Evidence;
use kept::Kept;
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
    /// Write proof/verdicts/mistakes.md; for nightly, whole or with --only seeded-bugs
    #[arg(long)]
    docs: bool,
}

/// The requested checks.
struct Request<'a> {
    tier: Tier,
    /// A step's name, or [`SEEDED_BUGS`]; `None` for all.
    only: Option<&'a str>,
}

impl<'a> Request<'a> {
    fn of(tier: Tier, args: &'a Args) -> Result<Self> {
        let request = Self { tier, only: args.only.as_deref() };
        let steps = STEPS.iter().filter(|step| step.of(tier).next().is_some());
        let names: Vec<&str> = steps.map(|step| step.name).chain([SEEDED_BUGS]).collect();
        if request.only.is_some_and(|only| !names.contains(&only)) {
            misuse(&format!("a step of this tier is one of: {}", names.join(" ")))?;
        }
        if args.docs && !(tier == Tier::Nightly && request.demands_mistakes()) {
            misuse(&format!("--docs is for `nightly`, whole or with --only {SEEDED_BUGS}"))?;
        }
        Ok(request)
    }

    /// Returns whether the tools of this tier must find all of their mistakes.
    fn demands_mistakes(&self) -> bool {
        self.tier != Tier::Quick && self.only.is_none_or(|only| only == SEEDED_BUGS)
    }

    /// Returns the lines of a step to run.
    fn lines(&self, step: &Step) -> Vec<&'static Line> {
        let wants =
            |only, line: &Line| if only == SEEDED_BUGS { !line.tools.is_empty() } else { step.name == only };
        step.of(self.tier).filter(|line| self.only.is_none_or(|only| wants(only, line))).collect()
    }

    /// Returns the tools to run.
    fn tools(&self) -> Vec<&'static str> {
        STEPS.iter().flat_map(|step| self.lines(step)).flat_map(|line| line.tools).copied().collect()
    }
}

pub fn run(tier: Tier, args: &Args) -> Outcome {
    let request = Request::of(tier, args)?;
    let (mut evidence, mut failures, mut times) = (Evidence::default(), Vec::new(), String::new());
    let (mut kept, mut logs, folder) = (Kept::read(), 0, Path::new("target/verify"));
    fs::create_dir_all(folder)?;
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
            if let Err(failure) = run_line(&log, line, &mut evidence) {
                println!("{failure}");
                failures.push(format!("{}: {failure}", step.name));
            }
        }
        let took = time(began.elapsed(), step.budget(tier));
        println!("-- {}: {took}", step.name);
        writeln!(times, "  {:<40} {took}", step.name)?;
        if tier == Tier::Nightly {
            // After each step, so that an interrupted run keeps its results.
            kept.note(step.name, failures.len() == failures_before, began.elapsed())?;
        }
    }
    println!("\n{}", evidence.executions());
    if !evidence.mistakes.is_empty() {
        // Long output: only for a terminal, or on request.
        if request.only == Some(SEEDED_BUGS) || std::io::stdout().is_terminal() {
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
        println!("{}", kept.summary());
    }
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    ensure!(failures.is_empty(), "failures: {}", failures.len());
    Ok(())
}

/// Formats the time of a step and its budget. More than the budget is reported, and is no failure.
fn time(took: Duration, budget: Duration) -> String {
    let over = if took > budget { ", OVER" } else { "" };
    format!("{}s (budget {}s{over})", took.as_secs(), budget.as_secs())
}

const SHOWN: usize = 60;

/// Runs `line`, writes its output to `log`, and adds its evidence to `evidence`. The error has the full reason.
fn run_line(log: &Path, line: &Line, evidence: &mut Evidence) -> Outcome {
    let variables = line.environment.iter().map(|(name, value)| format!("{name}='{value}' "));
    let words = format!("{}{}", variables.collect::<String>(), line.words);
    let is_inside = !line.folder.is_empty();
    println!("$ {}", if is_inside { format!("(cd {} && {words})", line.folder) } else { words });
    let file = File::create(log)?;
    let mut words = line.words.split_whitespace();
    let mut command = bounded(line.bound, words.next().unwrap_or_default());
    command.args(words).envs(line.environment.iter().copied()).env("CARGO_TERM_COLOR", "never");
    if is_inside {
        command.current_dir(line.folder);
    }
    let status = command.stdout(file.try_clone()?).stderr(file).status()?;
    let text = fs::read(log)?;
    let text = String::from_utf8_lossy(&text);
    let heard = evidence.read(&text);
    if status.success() {
        let silent: Vec<_> = line.tools.iter().filter(|tool| !heard.contains(**tool)).copied().collect();
        ensure!(silent.is_empty(), "nothing is said of what was explored by {}", silent.join(", "));
        return Ok(());
    }
    println!("    {}", tail(&text, SHOWN).replace('\n', "\n    "));
    let why = if was_ended(status) { format!("not over after {} s", line.bound) } else { status.to_string() };
    bail!("{}: {why}{}; all that it said is in {}", line.words, failed_tests(&text), log.display())
}

/// Returns the names of failed tests, and their panic messages, for logs that keep only the end of a report.
fn failed_tests(text: &str) -> String {
    let is_name = |line: &&str| line.starts_with("test ") && line.ends_with(" ... FAILED");
    let mut said = Vec::new();
    for name in text.lines().filter(is_name).filter_map(|line| line.split(' ').nth(1)) {
        let lines = text.lines().skip_while(|line| !line.starts_with(&format!("thread '{name}' ")));
        let panic: Vec<_> = lines.take(3).take_while(|line| !line.starts_with("stack ")).collect();
        said.push(format!("\n    {name}: {}", panic.join(" ")));
    }
    said.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_tier_has_its_steps_and_the_night_the_tables() {
        let args = |only: Option<&str>, docs| Args { only: only.map(str::to_owned), docs };
        let good = |tier, only, docs| Request::of(tier, &args(only, docs)).is_ok();
        assert!(good(Tier::Push, None, false) && good(Tier::Push, Some("loom"), false));
        assert!(good(Tier::Nightly, Some(SEEDED_BUGS), true));
        assert!(!good(Tier::Push, Some("lo"), false) && !good(Tier::Push, None, true));
        assert!(!good(Tier::Push, Some("coverage"), false), "that is for the night");
        assert!(!good(Tier::Nightly, Some("loom"), true));
    }

    #[test]
    fn every_tool_looks_for_its_mistakes_at_night_and_all_but_miri_and_the_sanitizers_on_a_push() {
        let tools = |tier| {
            let tools = Request { tier, only: Some(SEEDED_BUGS) }.tools();
            tools.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
        };
        let push =
            "Explore Fuzz History Host Inject Kvm Load Loom Model Oracle Pager Shared Shuttle Unit Worlds";
        assert_eq!(tools(Tier::Push), push);
        assert_eq!(
            tools(Tier::Nightly),
            push.replace("Model", "Miri Model").replace("Shared", "Sanitizer Shared")
        );
        assert!(!Request { tier: Tier::Quick, only: None }.demands_mistakes());
    }

    #[test]
    fn a_step_over_its_budget_is_reported() {
        let seconds = Duration::from_secs;
        assert_eq!(time(seconds(42), seconds(60)), "42s (budget 60s)");
        assert_eq!(time(seconds(61), seconds(60)), "61s (budget 60s, OVER)");
    }

    #[test]
    fn a_failed_test_is_named_with_its_message() {
        let text = "test one ... ok\ntest two ... FAILED\n\nthread 'two' (7) panicked at a.rs:1:\nsix became 7\nstack backtrace:\n";
        assert_eq!(failed_tests(text), "\n    two: thread 'two' (7) panicked at a.rs:1: six became 7");
        assert_eq!(failed_tests("test one ... ok\n"), "");
    }

    #[test]
    fn a_line_runs_in_its_folder() {
        let log = std::env::temp_dir().join(format!("slat-verify-folder-{}", std::process::id()));
        let is_there = |folder| {
            let words = "test -e verify/steps.rs";
            let line = Line { tiers: &[], environment: &[], folder, words, tools: &[], budget: 1, bound: 60 };
            run_line(&log, &line, &mut Evidence::default()).is_ok()
        };
        assert!(is_there("src") && !is_there(""));
        fs::remove_file(&log).unwrap();
    }

    #[test]
    fn a_failed_line_and_a_tool_without_output_are_reported() {
        let log = std::env::temp_dir().join(format!("slat-verify-{}", std::process::id()));
        for (words, says) in [
            ("echo EXECUTIONS Loom a 3", "explored by Model"),
            ("false", "exit status: 1"),
            ("no-such-command-at-all", "exit status: 127"),
        ] {
            let tools = &["Loom", "Model"];
            let line = Line { tiers: &[], environment: &[], folder: "", words, tools, budget: 1, bound: 60 };
            let why = run_line(&log, &line, &mut Evidence::default()).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
        }
        fs::remove_file(&log).unwrap();
    }
}
