//! What tests say that they have shown, in three kinds of lines, and the tables made of them:
//!
//! ```text
//! EXECUTIONS <Tool> <what was explored> <how many>       explored, and nothing was wrong
//! BUG <name> <Tool> <what is wrong>                      a mistake that can be made on purpose, and who must find it
//! SEEDED <name> <Tool> <executions>                      it was made, and found by the last of so many executions
//! ```
//! A test harness may have begun the line with words of its own.
//!
//! The tables stand in `VERIFICATION.md`, between two markers: written by `--docs`, and held against the code afterwards.
//! How many executions it took changes with any change; which mistakes there are, and who finds them, must be true.

use super::kept::{cells, table};
use crate::Outcome;
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const FILE: &str = "VERIFICATION.md";
const BEGIN: &str = "<!-- what `cargo xtask nightly --docs` writes begins here -->";
const END: &str = "<!-- and ends here -->";

/// A name and a tool.
type Key = (String, String);

#[derive(Default)]
pub struct Evidence {
    /// Mistakes that can be made on purpose, and the tool of each, as they were listed; and what is wrong then.
    pub mistakes: Vec<(Key, String)>,
    /// How many executions it took to find a mistake.
    found: BTreeMap<Key, u64>,
    /// By tool, and what it explored.
    explored: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Evidence {
    /// Adds what a command said; most lines say nothing here. Returns the tools that have explored, or found, anything.
    pub fn read(&mut self, text: &str) -> BTreeSet<String> {
        text.lines().filter_map(said).filter_map(|(kind, rest)| self.note(kind, rest)).collect()
    }

    fn note(&mut self, kind: &str, rest: &str) -> Option<String> {
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (kind, &words[..]) {
            ("BUG", [name, tool, _, ..]) => {
                let what = rest.splitn(3, ' ').nth(2).unwrap_or_default().trim().to_owned();
                let mistake = (key(name, tool), what);
                if !self.mistakes.contains(&mistake) {
                    self.mistakes.push(mistake);
                }
                None
            }
            ("SEEDED", [name, tool, executions]) => {
                self.found.entry(key(name, tool)).or_insert(executions.parse().ok()?);
                Some((*tool).to_owned())
            }
            ("EXECUTIONS", [tool, what @ .., count]) if !what.is_empty() => {
                let count: u64 = count.parse().ok()?;
                let explored = self.explored.entry((*tool).to_owned()).or_default();
                *explored.entry(what.join(" ")).or_default() += count;
                Some((*tool).to_owned())
            }
            _ => None,
        }
    }

    /// The mistakes that any of `tools` must find, and whether it has.
    fn due<'a>(&'a self, tools: &'a [&str]) -> impl Iterator<Item = (&'a Key, &'a str, bool)> {
        let due = self.mistakes.iter().filter(|((_, tool), _)| tools.contains(&tool.as_str()));
        due.map(|(key, what)| (key, what.as_str(), self.found.contains_key(key)))
    }

    /// What is missing: mistakes that their tool, one of `tools`, has not found; and findings of mistakes that are not listed.
    pub fn gaps(&self, tools: &[&str]) -> Vec<String> {
        if self.mistakes.is_empty() {
            return vec!["no mistakes are listed".to_owned()];
        }
        let missed = self.due(tools).filter(|(.., found)| !found);
        let missed = missed.map(|((name, tool), what, _)| format!("{name}: not found by {tool} ({what})"));
        let unlisted = self.found.keys().filter(|found| !self.mistakes.iter().any(|(key, _)| key == *found));
        let unlisted = unlisted.map(|(name, tool)| format!("{name}: found by {tool}, and not listed as its"));
        missed.chain(unlisted).collect()
    }

    /// How many mistakes of `tools` were found, and how many are left to other tools.
    pub fn verdict(&self, tools: &[&str]) -> String {
        let (due, found) = (self.due(tools).count(), self.due(tools).filter(|(.., found)| *found).count());
        let text = format!("{found} of {due} seeded bugs found");
        match self.mistakes.len() - due {
            0 => text,
            others => format!("{text}; {others} more are for `cargo xtask nightly`"),
        }
    }

    /// A table of what was explored without a fault, by tool.
    pub fn executions(&self) -> String {
        let rows = self.explored.iter().map(|(tool, explored)| {
            [tool.clone(), explored.len().to_string(), explored.values().sum::<u64>().to_string()]
        });
        table(["tool", "scenarios", "executions without a fault"], rows)
    }

    /// A table of the mistakes: which, what finds it, and after how many executions.
    pub fn mistakes(&self) -> String {
        let rows = self.mistakes.iter().map(|(key, what)| {
            let executions = self.found.get(key).map_or("not found".to_owned(), u64::to_string);
            [format!("`{}`", key.0), what.clone(), key.1.clone(), executions]
        });
        table(["mistake", "what is wrong", "found by", "executions"], rows)
    }

    /// Puts the tables into `VERIFICATION.md`.
    pub fn write_docs(&self) -> Outcome {
        let text = fs::read_to_string(FILE)?;
        let (before, _, after) = parts(&text)?;
        Ok(fs::write(FILE, format!("{before}\n\n{}\n{}\n{after}", self.executions(), self.mistakes()))?)
    }

    /// Where the list of mistakes in `VERIFICATION.md` and the code's differ.
    pub fn differences(&self) -> Result<Vec<String>> {
        Ok(self.differences_in(parts(&fs::read_to_string(FILE)?)?.1))
    }

    fn differences_in(&self, tables: &str) -> Vec<String> {
        // | `name` | what is wrong | tool | executions |
        let rows = tables.lines().filter(|line| line.starts_with("| `")).filter_map(cells);
        let told: BTreeSet<Key> = rows.map(|[name, _, tool]| key(name, tool)).collect();
        let listed: BTreeSet<Key> = self.mistakes.iter().map(|(key, _)| key.clone()).collect();
        let missing = listed.difference(&told).map(|(name, tool)| format!("{FILE}: no {name} of {tool}'s"));
        let unknown = told.difference(&listed).map(|(name, tool)| format!("{FILE}: {name} is not {tool}'s"));
        missing.chain(unknown).collect()
    }
}

fn key(name: &str, tool: &str) -> Key {
    (name.to_owned(), tool.to_owned())
}

/// The kind of a line, and what follows it.
fn said(line: &str) -> Option<(&'static str, &str)> {
    ["BUG", "SEEDED", "EXECUTIONS"].into_iter().find_map(|kind| {
        let at = line.find(kind)?;
        let alone = line[..at].chars().next_back().is_none_or(char::is_whitespace);
        let rest = line[at + kind.len()..].strip_prefix(' ')?;
        alone.then_some((kind, rest))
    })
}

/// The text before the tables with its marker, the tables, and the marker with the text after them.
fn parts(text: &str) -> Result<(&str, &str, &str)> {
    let markers = text.find(BEGIN).map(|at| at + BEGIN.len()).zip(text.find(END));
    let (from, to) = markers
        .filter(|(from, to)| from <= to)
        .with_context(|| format!("{FILE}: the tables need these two lines, each alone: {BEGIN} {END}"))?;
    Ok((&text[..from], &text[from..to], &text[to..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Evidence {
        let mut evidence = Evidence::default();
        evidence.read(&lines.join("\n"));
        evidence
    }

    const LISTED: &str = "BUG a-b Loom an a without a b\ntest t ... BUG c Fuzz a c";
    const TOOLS: &[&str] = &["Loom", "Fuzz"];
    const NO_GAPS: Vec<String> = Vec::new();

    #[test]
    fn everything_found_is_no_gap() {
        let evidence = of(&[LISTED, "SEEDED a-b Loom 7", "test x ... SEEDED c Fuzz 1", "ok"]);
        assert_eq!(evidence.gaps(TOOLS), NO_GAPS);
        assert_eq!(evidence.verdict(TOOLS), "2 of 2 seeded bugs found");
        let table = evidence.mistakes();
        assert!(table.contains("| `a-b`   | an a without a b | Loom     | 7          |"), "{table}");
    }

    #[test]
    fn what_another_tool_finds_or_nobody_lists_is_a_gap() {
        let evidence = of(&[LISTED, "SEEDED a-b Shuttle 7", "SEEDED c Fuzz 1"]);
        assert_eq!(evidence.verdict(TOOLS), "1 of 2 seeded bugs found");
        assert_eq!(evidence.gaps(TOOLS).len(), 2, "a-b is not found, and Shuttle's is not listed");
        assert!(evidence.mistakes().contains("not found"));
        assert_eq!(of(&[]).gaps(TOOLS), ["no mistakes are listed"]);
    }

    #[test]
    fn only_the_tools_that_were_run_must_have_found_theirs() {
        let mut evidence = of(&[LISTED]);
        let heard = evidence.read(&[LISTED, "SEEDED c Fuzz 1"].join("\n"));
        assert_eq!(heard, ["Fuzz".to_owned()].into());
        assert_eq!((evidence.gaps(&["Fuzz"]), evidence.gaps(TOOLS).len()), (NO_GAPS, 1));
        assert!(evidence.verdict(&["Fuzz"]).starts_with("1 of 1 seeded bugs found; 1 more"));
    }

    #[test]
    fn executions_are_added_up_by_tool() {
        let scenarios = "EXECUTIONS Model two vCPUs, one page 40\nEXECUTIONS Model three 2";
        let none = "EXECUTIONS Loom x many\nEXECUTIONS Loom 3\nxEXECUTIONS Loom x 3";
        let table = of(&[scenarios, none]).executions();
        assert!(table.ends_with("| Model | 2         | 42                         |\n"), "{table}");
    }

    #[test]
    fn the_tables_stand_between_two_markers() {
        let text = format!("# Title\n{BEGIN}\nold\n{END}\nafter\n");
        let (before, tables, after) = parts(&text).unwrap();
        assert!(before.ends_with(BEGIN) && after.starts_with(END));
        assert_eq!((tables, format!("{before}{tables}{after}")), ("\nold\n", text.clone()));
        assert!(parts("# Title\n").is_err() && parts(&format!("{END}{BEGIN}")).is_err());
    }

    #[test]
    fn what_is_written_is_what_is_told() {
        let now = of(&["BUG a-b Loom an a", "BUG c Fuzz a c", "SEEDED c Fuzz 4"]);
        assert_eq!(now.differences_in("").len(), 2, "nothing is told yet");
        assert_eq!(now.differences_in(&now.mistakes()), NO_GAPS);
        let later = of(&["BUG a-b Shuttle an a", "BUG c Fuzz a c"]);
        assert_eq!(later.differences_in(&now.mistakes()).len(), 2, "a-b has another tool now");
    }
}
