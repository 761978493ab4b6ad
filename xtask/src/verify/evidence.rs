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

use crate::Outcome;
use crate::table;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;

const FILE: &str = "VERIFICATION.md";
const BEGIN: &str = "<!-- what `cargo xtask nightly --docs` writes begins here -->";
const END: &str = "<!-- and ends here -->";

/// A mistake that can be made on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mistake {
    name: String,
    tool: String,
    what: String,
}

#[derive(Default)]
pub struct Evidence {
    mistakes: Vec<Mistake>,
    /// By name and tool, how many executions it took.
    found: BTreeMap<(String, String), u64>,
    /// By tool and what was explored.
    explored: BTreeMap<(String, String), u64>,
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
                let mistake = Mistake { name: (*name).to_owned(), tool: (*tool).to_owned(), what };
                if !self.mistakes.contains(&mistake) {
                    self.mistakes.push(mistake);
                }
                None
            }
            ("SEEDED", [name, tool, executions]) => {
                let executions = executions.parse().ok()?;
                self.found.entry(((*name).to_owned(), (*tool).to_owned())).or_insert(executions);
                Some((*tool).to_owned())
            }
            ("EXECUTIONS", [tool, what @ .., count]) if !what.is_empty() => {
                let count: u64 = count.parse().ok()?;
                *self.explored.entry(((*tool).to_owned(), what.join(" "))).or_default() += count;
                Some((*tool).to_owned())
            }
            _ => None,
        }
    }

    pub fn lists_mistakes(&self) -> bool {
        !self.mistakes.is_empty()
    }

    /// Executions until `mistake` was found by its own tool.
    fn executions_until(&self, mistake: &Mistake) -> Option<u64> {
        self.found.get(&(mistake.name.clone(), mistake.tool.clone())).copied()
    }

    /// The mistakes that any of `tools` must find.
    fn of_tools<'a>(&'a self, tools: &'a [&str]) -> impl Iterator<Item = &'a Mistake> {
        self.mistakes.iter().filter(|mistake| tools.contains(&mistake.tool.as_str()))
    }

    /// What is missing: mistakes that their tool, one of `tools`, has not found; and findings of mistakes that are not listed.
    pub fn gaps(&self, tools: &[&str]) -> Vec<String> {
        let mut gaps = Vec::new();
        if self.mistakes.is_empty() {
            gaps.push("no mistakes are listed".to_owned());
        }
        for mistake in self.of_tools(tools).filter(|mistake| self.executions_until(mistake).is_none()) {
            gaps.push(format!("{}: {} has not found it ({})", mistake.name, mistake.tool, mistake.what));
        }
        for (name, tool) in self.found.keys() {
            if !self.mistakes.iter().any(|mistake| mistake.name == *name && mistake.tool == *tool) {
                gaps.push(format!("{name}: found by {tool}, and listed nowhere as its"));
            }
        }
        gaps
    }

    /// How many mistakes of `tools` were found, and how many are left to other tools.
    pub fn verdict(&self, tools: &[&str]) -> String {
        let due = self.of_tools(tools).count();
        let found = self.of_tools(tools).filter(|mistake| self.executions_until(mistake).is_some()).count();
        match self.mistakes.len() - due {
            0 => format!("{found} of {due} seeded bugs found"),
            others => {
                format!("{found} of {due} seeded bugs found; {others} more are for `cargo xtask nightly`")
            }
        }
    }

    /// A table of what was explored without a fault, by tool.
    pub fn executions(&self) -> String {
        let mut tools: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for ((tool, _), count) in &self.explored {
            let (scenarios, executions) = tools.entry(tool).or_default();
            *scenarios += 1;
            *executions += count;
        }
        let rows = tools.iter().map(|(tool, (scenarios, executions))| {
            [(*tool).to_owned(), scenarios.to_string(), executions.to_string()]
        });
        table::write(["tool", "scenarios", "executions without a fault"], rows)
    }

    /// A table of the mistakes: which, what finds it, and after how many executions.
    pub fn mistakes(&self) -> String {
        let rows = self.mistakes.iter().map(|mistake| {
            let executions = self.executions_until(mistake).map(|executions| executions.to_string());
            let executions = executions.unwrap_or_else(|| "not found".to_owned());
            [format!("`{}`", mistake.name), mistake.what.clone(), mistake.tool.clone(), executions]
        });
        table::write(["mistake", "what is wrong", "found by", "executions"], rows)
    }

    /// Puts the tables into `VERIFICATION.md`.
    pub fn write_docs(&self) -> Outcome {
        let text = fs::read_to_string(FILE)?;
        let (before, _, after) = parts(&text)?;
        Ok(fs::write(FILE, format!("{before}\n\n{}\n{}\n{after}", self.executions(), self.mistakes()))?)
    }

    /// Where the list of mistakes in `VERIFICATION.md` and the code's differ.
    pub fn differences(&self) -> Result<Vec<String>, Box<dyn Error>> {
        Ok(self.differences_in(parts(&fs::read_to_string(FILE)?)?.1))
    }

    fn differences_in(&self, tables: &str) -> Vec<String> {
        // | `name` | what is wrong | tool | executions |
        let rows = tables.lines().filter(|line| line.starts_with("| `")).filter_map(table::cells);
        let told: BTreeSet<(&str, &str)> = rows.map(|[name, _, tool]| (name, tool)).collect();
        let names = self.mistakes.iter().map(|mistake| (mistake.name.as_str(), mistake.tool.as_str()));
        let listed: BTreeSet<(&str, &str)> = names.collect();
        let missing =
            listed.difference(&told).map(|(name, tool)| format!("{FILE}: no {name}, found by {tool}"));
        let unknown =
            told.difference(&listed).map(|(name, tool)| format!("{FILE}: {name} is none of {tool}'s"));
        missing.chain(unknown).collect()
    }
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
fn parts(text: &str) -> Result<(&str, &str, &str), String> {
    let markers = text.find(BEGIN).map(|at| at + BEGIN.len()).zip(text.find(END));
    let (from, to) = markers
        .filter(|(from, to)| from <= to)
        .ok_or_else(|| format!("{FILE}: the tables need these two lines, each alone: {BEGIN} {END}"))?;
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

    const LISTED: [&str; 2] = ["BUG a-b Loom an a without a b", "test t ... BUG c Fuzz a c"];

    const TOOLS: &[&str] = &["Loom", "Fuzz"];

    #[test]
    fn everything_found_is_no_gap() {
        let evidence = of(&[LISTED[0], LISTED[1], "SEEDED a-b Loom 7", "test x ... SEEDED c Fuzz 1", "ok"]);
        assert_eq!(evidence.gaps(TOOLS), Vec::<String>::new());
        assert_eq!(evidence.verdict(TOOLS), "2 of 2 seeded bugs found");
        let table = evidence.mistakes();
        assert!(table.contains("| `a-b`   | an a without a b | Loom     | 7          |"), "{table}");
    }

    #[test]
    fn what_another_tool_finds_is_not_found() {
        let evidence = of(&[LISTED[0], LISTED[1], "SEEDED a-b Shuttle 7", "SEEDED c Fuzz 1"]);
        assert_eq!(evidence.verdict(TOOLS), "1 of 2 seeded bugs found");
        assert_eq!(evidence.gaps(TOOLS).len(), 2, "a-b is not found, and Shuttle's is not listed");
        assert!(evidence.mistakes().contains("not found"));
    }

    #[test]
    fn only_the_tools_that_were_run_must_have_found_theirs() {
        let mut evidence = of(&[LISTED[0], LISTED[1]]);
        let heard = evidence.read(&[LISTED[0], "SEEDED c Fuzz 1"].join("\n"));
        assert_eq!(heard, ["Fuzz".to_owned()].into());
        assert_eq!(evidence.gaps(&["Fuzz"]), Vec::<String>::new());
        assert_eq!(evidence.gaps(TOOLS).len(), 1);
        assert!(evidence.verdict(&["Fuzz"]).starts_with("1 of 1 seeded bugs found; 1 more"));
    }

    #[test]
    fn nothing_listed_is_a_gap() {
        assert_eq!(of(&[]).gaps(TOOLS), ["no mistakes are listed"]);
    }

    #[test]
    fn executions_are_added_up_by_tool() {
        let evidence = of(&[
            "EXECUTIONS Model two vCPUs, one page 40",
            "EXECUTIONS Model three 2",
            "EXECUTIONS Loom x many",
            "EXECUTIONS Loom 3",
            "xEXECUTIONS Loom x 3",
        ]);
        assert!(evidence.executions().ends_with("| Model | 2         | 42                         |\n"));
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
        assert_eq!(now.differences_in(&now.mistakes()), Vec::<String>::new());
        let later = of(&["BUG a-b Shuttle an a", "BUG c Fuzz a c"]);
        assert_eq!(later.differences_in(&now.mistakes()).len(), 2, "a-b has another tool now");
    }
}
