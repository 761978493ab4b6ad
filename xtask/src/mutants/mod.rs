//! `mutants`: makes each mistake of `proof/mistakes/`, and runs the test that must find it.
//!
//! The sources know of no mistake. A record ([`record`]) says which text of which file a mistake replaces, and which test
//! of which tool must then fail. All mistakes are built at once, into one copy of the workspace ([`copy`]), where a
//! variable chooses one:
//!
//! ```text
//! find                           if mistake(NAME) { replace } else { find }
//! order!(begin.stamp, Acquire)   if mistake("begin.stamp") { Relaxed } else { Acquire }
//! fence!(held.publish)           if !mistake("held.publish") { fence(SeqCst) }
//! ```
//!
//! [`mod@run`] builds the tests of each tool there, and runs the test of each record: without a mistake, when it must pass,
//! and with its mistake.

pub mod copy;
pub mod record;
mod run;
mod tried;

use crate::outcome::Outcome;
use crate::process::on_every_processor;
use anyhow::{Context as _, bail, ensure};
use copy::Copied;
use record::{Mistake, Seen, Tool, mistakes};
use run::Programs;
use std::collections::BTreeSet;

#[derive(clap::Args)]
pub struct Args {
    /// Only mistakes whose name begins with this
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Only the mistakes of these tools
    #[arg(long, value_name = "TOOL", value_delimiter = ',')]
    tool: Vec<Tool>,
    /// Run all tests of the tools with each mistake, or with Loom, and name those that fail
    #[arg(long, requires = "only")]
    anywhere: bool,
    /// Make another mistake: replace this line of this file, and run the tests that are responsible for it
    #[arg(long, num_args = 3, value_names = ["FILE", "LINE", "REPLACEMENT"], conflicts_with_all = ["only", "tool", "anywhere"])]
    r#try: Vec<String>,
}

/// Checks the records against the sources, as `cargo xtask house` does.
pub fn check() -> Outcome {
    let (mistakes, sources) = (mistakes()?, copy::sources()?);
    copy::mutated(&sources, &mistakes).map(drop)
}

/// Finds the mistakes that a fuzzer must find. Returns the path of that fuzzer.
pub fn fuzzer() -> anyhow::Result<String> {
    let (mistakes, tool) = (mistakes()?, Tool::Fuzz);
    let programs = found(&mistakes, |_, seen| seen.tool == tool)?;
    programs.of_tool(tool).context("no mistake is for the fuzzer")
}

pub fn run(args: &Args) -> Outcome {
    if let [file, line, replacement] = &args.r#try[..] {
        let line = line.parse().with_context(|| format!("{line} is no number of a line"))?;
        return tried::run(file, line, replacement);
    }
    let mistakes = mistakes()?;
    if args.anywhere {
        let tools = if args.tool.is_empty() { &[Tool::Loom][..] } else { &args.tool };
        let wanted: Vec<_> = mistakes.iter().filter(|mistake| mistake.name.starts_with(&args.only)).collect();
        ensure!(!wanted.is_empty(), "no mistake's name begins with {}", args.only);
        return tried::anywhere(Copied::of(&mistakes)?, wanted, tools);
    }
    let is_wanted = |mistake: &Mistake, seen: &Seen| {
        mistake.name.starts_with(&args.only) && (args.tool.is_empty() || args.tool.contains(&seen.tool))
    };
    if !mistakes.iter().any(|mistake| mistake.seen.as_ref().is_ok_and(|seen| is_wanted(mistake, seen))) {
        bail!("{}", none(&mistakes, args));
    }
    found(&mistakes, is_wanted).map(drop)
}

/// Returns why no mistake is made.
fn none(mistakes: &[Mistake], args: &Args) -> String {
    let named = || mistakes.iter().filter(|mistake| mistake.name.starts_with(&args.only));
    let unseen = || named().find_map(|mistake| Some((mistake, mistake.seen.as_ref().err()?)));
    let tools: BTreeSet<Tool> =
        named().filter_map(|mistake| Some(mistake.seen.as_ref().ok()?.tool)).collect();
    match (tools.first(), unseen()) {
        (Some(tool), _) => format!("the mistakes whose name begins with {:?} are for {tool}", args.only),
        (None, Some((Mistake { name, .. }, why))) => format!("no test misses the ordering {name}: {why}"),
        (None, None) => format!("no mistake's name begins with {:?}", args.only),
    }
}

/// Makes some of the mistakes, each of which its test must find. Returns the programs.
fn found(mistakes: &[Mistake], is_wanted: impl Fn(&Mistake, &Seen) -> bool) -> anyhow::Result<Programs> {
    let seen = mistakes.iter().filter_map(|mistake| Some((mistake, mistake.seen.as_ref().ok()?)));
    // The list is whole whatever is run: `verify` compares it with `proof/verdicts/mistakes.md`.
    for (Mistake { name, what, .. }, seen) in seen.clone() {
        println!("BUG {name} {} {what}", seen.tool);
    }
    let wanted: Vec<(&Mistake, &Seen)> = seen.filter(|(mistake, seen)| is_wanted(mistake, seen)).collect();
    ensure!(!wanted.is_empty(), "no mistake has that name, or that tool");
    let programs = Programs::build(Copied::of(mistakes)?, wanted.iter().map(|(_, seen)| *seen))?;
    let tests: BTreeSet<&Seen> = wanted.iter().map(|(_, seen)| *seen).collect();
    on_every_processor(&Vec::from_iter(tests), |seen| programs.passes(seen))?;
    on_every_processor(&wanted, |(mistake, seen)| {
        let executions = programs.find(&mistake.name, seen);
        let executions = executions.with_context(|| format!("{} ({})", mistake.name, mistake.what))?;
        if executions > 0 {
            println!("SEEDED {} {} {executions}", mistake.name, seen.tool);
        }
        Ok(())
    })?;
    Ok(programs)
}
