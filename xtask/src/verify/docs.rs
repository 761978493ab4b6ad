//! The tables in `VERIFICATION.md`, between two markers: written by `--docs`, and held against the code afterwards.
//! How many executions it took changes with any change; which mistakes there are, and who finds them, must be true.

use super::evidence::Evidence;
use crate::Outcome;
use crate::table::cells;
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;

const FILE: &str = "VERIFICATION.md";
const BEGIN: &str = "<!-- what `cargo xtask nightly --docs` writes begins here -->";
const END: &str = "<!-- and ends here -->";

/// Puts the tables into the file.
pub fn write(evidence: &Evidence) -> Outcome {
    let text = fs::read_to_string(FILE)?;
    let (before, _, after) = parts(&text)?;
    Ok(fs::write(FILE, format!("{before}\n\n{}\n{}\n{after}", evidence.executions(), evidence.mistakes()))?)
}

/// Where the file's list of mistakes and the code's differ.
pub fn differences(evidence: &Evidence) -> Result<Vec<String>, Box<dyn Error>> {
    let text = fs::read_to_string(FILE)?;
    Ok(differences_in(parts(&text)?.1, evidence))
}

fn differences_in(tables: &str, evidence: &Evidence) -> Vec<String> {
    // | `name` | what is wrong | tool | executions |
    let rows = tables.lines().filter(|line| line.starts_with("| `")).filter_map(cells);
    let told: BTreeSet<(&str, &str)> = rows.map(|[name, _, tool]| (name, tool)).collect();
    let listed: BTreeSet<(&str, &str)> =
        evidence.listed().iter().map(|mistake| (mistake.name.as_str(), mistake.tool.as_str())).collect();
    let missing = listed.difference(&told).map(|(name, tool)| format!("{FILE}: no {name}, found by {tool}"));
    let unknown = told.difference(&listed).map(|(name, tool)| format!("{FILE}: {name} is none of {tool}'s"));
    missing.chain(unknown).collect()
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
        let evidence = |text: &str| {
            let mut evidence = Evidence::default();
            evidence.read(text);
            evidence
        };
        let now = evidence("BUG a-b Loom an a\nBUG c Fuzz a c\nSEEDED c Fuzz 4");
        assert_eq!(differences_in("", &now).len(), 2, "nothing is told yet");
        assert_eq!(differences_in(&now.mistakes(), &now), Vec::<String>::new());
        let later = evidence("BUG a-b Shuttle an a\nBUG c Fuzz a c");
        assert_eq!(differences_in(&now.mistakes(), &later).len(), 2, "a-b has another tool now");
    }
}
