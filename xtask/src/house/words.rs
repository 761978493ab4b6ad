//! Plain words: comments and texts begin with a noun or a verb, name their actors, and argue their `unsafe`.
//!
//! The rules hold for all of the repository.

use super::{Finding, Source};
use anyhow::Result;
use std::path::Path;

/// Words that begin a relative clause without a noun.
const CLAUSES: [&str; 4] = ["What", "One that", "The one", "Those"];

/// Words that name no actor.
const NO_ACTORS: [&str; 13] = [
    "whoever",
    "whomever",
    "whom",
    "nobody",
    "nobody's",
    "somebody",
    "somebody's",
    "anybody",
    "anyone",
    "someone",
    "everybody",
    "everyone",
    "those who",
];

/// Phrases of a `SAFETY:` comment that leave out what the caller promises.
const EMPTY_PROMISES: [&str; 3] = ["caller's word", "callers' word", "says the caller"];

/// The file that names the words.
const OWN: &str = file!();

/// Checks all sources, the documents, and the other texts.
pub fn check(sources: &[Source], documents: &[Source], others: &[Source]) -> Vec<Finding> {
    let all = sources.iter().chain(documents).chain(others);
    let found =
        all.clone().flat_map(clauses).chain(all.flat_map(actors)).chain(sources.iter().flat_map(promises));
    found.filter(|finding| finding.path != Path::new(OWN)).collect()
}

/// Reads the texts beside sources and documents: manifests, headers and scripts.
pub fn others() -> Result<Vec<Source>> {
    let ends = [".toml", ".h", ".c", ".sh", "run"].map(|end| super::read_all(Path::new("."), end));
    Ok(ends.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// No comment begins with one of [`CLAUSES`], nor a text that a program prints.
fn clauses(source: &Source) -> Vec<Finding> {
    let is_prose = source.path.extension().is_some_and(|end| end == "md");
    find(source, |line| {
        let text = if is_prose { None } else { comment(line) };
        let clause = text.map_or_else(|| literals(line).find_map(clause), clause).filter(|_| !is_prose)?;
        Some(format!("a text begins with \"{clause}\": begin with a noun or a verb"))
    })
}

/// Returns the word of [`CLAUSES`] with which this text begins.
fn clause(text: &str) -> Option<&'static str> {
    let text = text.trim_start_matches([' ', '*', '-', '|', '>', '/']);
    CLAUSES.into_iter().find(|clause| text.strip_prefix(clause).is_some_and(|rest| rest.starts_with(' ')))
}

/// Returns the text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//", "/*", "* ", "# "].into_iter().find_map(|mark| line.strip_prefix(mark))
}

/// Returns the literals of a line of code.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

/// Each text names its actors: the thread, the vCPU, the caller.
fn actors(text: &Source) -> Vec<Finding> {
    find(text, |line| {
        let line = line.to_ascii_lowercase();
        let words = line.split(|c: char| !c.is_ascii_alphabetic() && c != '\'');
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let has = |actor: &&str| {
            let actor: Vec<&str> = actor.split(' ').collect();
            words.windows(actor.len()).any(|words| words == actor)
        };
        Some(format!("\"{}\" names no actor", NO_ACTORS.into_iter().find(has)?))
    })
}

/// A `SAFETY:` comment says what the caller promises, not that the caller gives its word.
fn promises(source: &Source) -> Vec<Finding> {
    let mut in_safety = false;
    find(source, |line| {
        let text = comment(line).unwrap_or_default();
        in_safety = text.contains("SAFETY:") || (in_safety && !text.is_empty());
        let is_empty = in_safety && EMPTY_PROMISES.iter().any(|word| text.contains(word));
        is_empty.then(|| "SAFETY: say what the caller promises".to_owned())
    })
}

fn find(source: &Source, mut wrong: impl FnMut(&str) -> Option<String>) -> Vec<Finding> {
    let lines = source.lines.iter().enumerate();
    lines.filter_map(|(at, line)| Some(source.finding(at, wrong(line)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        rule(&Source::new(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_text_that_begins_with_a_relative_clause_is_found() {
        for (path, text, found) in [
            ("a.rs", "//! What it is.\n/// * The one that is\n    // Those of b", vec![1, 2, 3]),
            ("a.rs", "/// **What is kept.** More.\n/// | One that waits |", vec![1, 2]),
            ("a.rs", "#[arg(help = \"What maps\")]\nprintln!(\"{a}\", \"Those of {b}\");", vec![1, 2]),
            ("a.h", "/* What it is.\n * Those of b */", vec![1, 2]),
            ("Cargo.toml", "# What is built\ndescription = \"What is fuzzed\"", vec![1, 2]),
            (
                "a.rs",
                "/// Says what it is. The ones.\nlet a = What::new(); // b\nlet b = \"what is\";",
                vec![],
            ),
            ("a.rs", "let a = b == \"The one\";\n#[test]\nfn What() {}", vec![]),
            ("a.md", "What is it?\n* \"What is it?\"", vec![]),
        ] {
            assert_eq!(lines(clauses, path, text), found, "{text}");
        }
    }

    #[test]
    fn words_that_name_no_actor_are_found() {
        for (text, found) in [
            ("a\n// Nobody waits.\n/// for those who do\n", vec![2, 3]),
            ("// whoever, whomever\n// nobody's\n", vec![1, 2]),
            ("// thosewho, bodyguards, and those whose\n", vec![]),
        ] {
            assert_eq!(lines(actors, "a.md", text), found, "{text}");
        }
    }

    #[test]
    fn a_safety_comment_without_a_reason_is_found() {
        let wrong = "// SAFETY: a is mapped,\n// which is the caller's word.\nb();";
        assert_eq!(lines(promises, "a.rs", wrong), [2]);
        assert_eq!(lines(promises, "a.rs", "// SAFETY: mapped, says the caller."), [1]);
        let right = "// SAFETY: the caller promises that a is mapped.\n\n// The caller's word: 64 bits.\n";
        assert_eq!(lines(promises, "a.rs", right), [0; 0]);
    }
}
