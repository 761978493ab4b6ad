//! `house`: checks the rules that a program can check by reading the sources. It changes nothing.
//!
//! Each rule is a function from a source file, or all of them, to findings.

mod imports;
mod lines;
mod map;
mod numbers;
mod rules;
mod words;

use crate::outcome::Outcome;
use crate::source::{Finding, Source, read_all};
use anyhow::ensure;
use std::fs;
use std::path::Path;

/// A rule for one file.
type Rule = fn(&Source) -> Vec<Finding>;

const RULES: &[Rule] = &[
    rules::length,
    rules::safety,
    rules::order,
    rules::promises,
    rules::leftovers,
    rules::optional,
    numbers::check,
];

#[derive(clap::Args, Default)]
pub struct Args {
    /// Also print the number of code lines and of public functions of the engine
    #[arg(long)]
    lines: bool,
}

/// The chore: lists every finding, and fails if there is one. Also checks the records of mistakes against the sources.
pub fn run(args: &Args) -> Outcome {
    let sources = read_all(Path::new("."), ".rs")?;
    if args.lines {
        lines::print(&sources);
    }
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| sources.iter().flat_map(rule)).collect();
    let texts = read_all(Path::new("."), ".md")?;
    findings.extend(rules::tags(&sources, &texts));
    findings.extend(words::check(&sources, &texts, &words::others()?));
    findings.extend(texts.iter().flat_map(rules::links));
    findings.extend(texts.iter().flat_map(rules::leftovers));
    findings.extend(texts.iter().flat_map(map::paths));
    let manifests = map::manifests()?;
    findings.extend(map::rooms(&Source::new(map::MAP, &fs::read_to_string(map::MAP)?), &manifests));
    findings
        .extend(texts.iter().filter(|text| text.path == Path::new(rules::FEATURES)).flat_map(rules::rows));
    findings.extend(rules::words_of_documents(&texts));
    findings.extend(imports::check(&sources, &manifests)?);
    findings.extend(rules::inventory(&sources, &fs::read_to_string(rules::INVENTORY)?));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "findings: {}", findings.len());
    crate::mutants::check()?;
    println!("{} files keep the house rules", sources.len());
    Ok(())
}
