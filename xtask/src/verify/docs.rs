//! The tables in `VERIFICATION.md`, between two markers: written by `--docs`, and held against the code afterwards.
//! How many executions it took changes with any change; which mistakes there are, and who finds them, must be true.

use super::evidence::Evidence;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const FILE: &str = "VERIFICATION.md";
const BEGIN: &str = "<!-- what `cargo xtask nightly --docs` writes begins here -->";
const END: &str = "<!-- and ends here -->";

/// Puts the tables into the file below `root`.
pub fn write(root: &Path, evidence: &Evidence) -> Result<(), String> {
    let path = root.join(FILE);
    let text = fs::read_to_string(&path).map_err(|error| format!("{FILE}: {error}"))?;
    let tables = format!("{}\n{}", evidence.executions(), evidence.mistakes());
    let text = replaced(&text, &tables).ok_or_else(no_place)?;
    fs::write(&path, text).map_err(|error| format!("{FILE}: {error}"))
}

/// Where the file's list of mistakes and the code's differ.
pub fn differences(root: &Path, evidence: &Evidence) -> Vec<String> {
    let text = match fs::read_to_string(root.join(FILE)) {
        Ok(text) => text,
        Err(error) => return vec![format!("{FILE}: {error}")],
    };
    let Some((_, inside, _)) = parts(&text) else { return vec![no_place()] };
    let told = rows(inside);
    let listed: BTreeSet<(&str, &str)> =
        evidence.listed().iter().map(|mistake| (mistake.name.as_str(), mistake.tool.as_str())).collect();
    let missing = listed.difference(&told).map(|(name, tool)| format!("{FILE}: no {name}, found by {tool}"));
    let unknown = told.difference(&listed).map(|(name, tool)| format!("{FILE}: {name} is none of {tool}'s"));
    missing.chain(unknown).collect()
}

fn no_place() -> String {
    format!("{FILE}: the tables need these two lines, each alone: {BEGIN} {END}")
}

/// The text before the tables with its marker, the tables, and the marker with the text after them.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let from = text.find(BEGIN)? + BEGIN.len();
    let to = from + text[from..].find(END)?;
    Some((&text[..from], &text[from..to], &text[to..]))
}

fn replaced(text: &str, tables: &str) -> Option<String> {
    let (before, _, after) = parts(text)?;
    Some(format!("{before}\n\n{tables}\n{after}"))
}

/// Name and tool in each row that begins with a mistake's name.
fn rows(tables: &str) -> BTreeSet<(&str, &str)> {
    tables.lines().filter_map(row).collect()
}

/// `| `name` | what is wrong | tool | executions |`
fn row(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("| `")?.split_once('`')?;
    Some((name, rest.split('|').nth(2)?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(lines: &[&str]) -> Evidence {
        Evidence::of(&lines.join("\n"))
    }

    #[test]
    fn what_is_written_is_what_is_told() {
        let root = std::env::temp_dir().join(format!("slat-docs-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join(FILE), format!("# Title\n{BEGIN}\nold\n{END}\nafter\n")).unwrap();
        let now = evidence(&["BUG a-b Loom an a", "BUG c Fuzz a c", "SEEDED c Fuzz 4"]);
        assert_eq!(differences(&root, &now).len(), 2, "nothing is told yet");
        write(&root, &now).unwrap();
        write(&root, &now).unwrap();
        let text = fs::read_to_string(root.join(FILE)).unwrap();
        assert!(
            text.starts_with("# Title\n") && text.ends_with("\nafter\n") && !text.contains("old"),
            "{text}"
        );
        assert_eq!(differences(&root, &now), Vec::<String>::new());
        let later = evidence(&["BUG a-b Shuttle an a", "BUG c Fuzz a c"]);
        assert_eq!(differences(&root, &later).len(), 2, "a-b has another tool now");
        fs::write(root.join(FILE), "# Title\n").unwrap();
        assert!(write(&root, &now).is_err() && differences(&root, &now).len() == 1);
        fs::remove_dir_all(&root).unwrap();
        assert!(write(&root, &now).is_err() && differences(&root, &now).len() == 1);
    }
}
