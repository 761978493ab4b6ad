//! `--try`, a mistake that has no record yet; and `--anywhere`, every test that finds a mistake.

use super::copy::{Copied, Sources, sources};
use super::record::{Mistake, Tool};
use super::run::{Kind, Program, Programs};
use crate::outcome::Outcome;
use anyhow::{Context as _, Result, bail, ensure};
use std::path::Path;

/// Replaces a line of a file, and runs every test of the tools that are responsible for it.
pub fn run(file: &str, line: usize, replacement: &str) -> Outcome {
    let package = file.trim_start_matches("crates/").split('/').next().unwrap_or_default();
    let responsible = responsible(package, file)?;
    let copied = replaced(file, line, replacement)?;
    let (mut programs, mut is_found) = (Programs::of(copied), false);
    for &kind in responsible {
        let program = Program { package: package.to_owned(), kind };
        is_found |= told(kind, &programs.failed(&program, &filter(kind, file), "")?);
    }
    ensure!(is_found, "no tool found it");
    Ok(())
}

/// Runs all tests of some tools with each mistake.
pub fn anywhere<'m>(
    copied: Copied,
    mistakes: impl IntoIterator<Item = &'m Mistake>,
    tools: &[Tool],
) -> Outcome {
    let mut programs = Programs::of(copied);
    for mistake in mistakes {
        println!("{}: {}", mistake.name, mistake.what);
        for &tool in tools {
            let (kind, package) =
                (Kind::of(tool), mistake.seen.as_ref().map_or("slat", |seen| &seen.package));
            let package = tool.package().unwrap_or(package);
            let program = Program { package: package.to_owned(), kind };
            let filter = match kind {
                Kind::Loom => "loom_tests",
                Kind::Shuttle => "shuttle_tests",
                _ => "",
            };
            told(kind, &programs.failed(&program, filter, &mistake.name)?);
        }
    }
    Ok(())
}

/// Prints the failed tests. Returns whether there are any.
fn told(kind: Kind, failed: &[String]) -> bool {
    println!("  {kind}: {}", if failed.is_empty() { "passed" } else { "found it" });
    for test in failed {
        println!("    {test}");
    }
    !failed.is_empty()
}

fn replaced(file: &str, line: usize, replacement: &str) -> Result<Copied> {
    let new = replacing(&sources()?, file, line, replacement)?;
    Copied::write(|path| (path == file).then(|| new.clone().into_bytes()))
}

/// Returns a source with another line in the place of one.
fn replacing(sources: &Sources, file: &str, line: usize, replacement: &str) -> Result<String> {
    let text = sources.get(file).with_context(|| format!("no source is called {file}"))?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    let old = lines.get_mut(line.wrapping_sub(1)).with_context(|| format!("{file} has no line {line}"))?;
    ensure!(*old != replacement, "line {line} of {file} is this already:\n{old}");
    println!("-{old}\n+{replacement}");
    *old = replacement;
    Ok(lines.join("\n"))
}

/// Returns the programs whose tests are responsible for a file.
fn responsible(package: &str, file: &str) -> Result<&'static [Kind]> {
    Ok(match package {
        "slat" => &[Kind::Lib, Kind::Test("engine"), Kind::Loom, Kind::Shuttle],
        "mm" => &[Kind::Lib, Kind::Test("mm"), Kind::Test("load")],
        "slots" | "migrate" => &[Kind::Lib],
        "kvm" => &[Kind::Test("kvm")],
        "pager" => &[Kind::Lib, Kind::Test("pager")],
        _ => bail!("{file} is of no package that has mistakes: slat, slots, mm, migrate, pager, kvm"),
    })
}

/// The loom tests of the file's own folder, if it has some; they take minutes otherwise.
fn filter(kind: Kind, file: &str) -> String {
    let path = Path::new(file.trim_start_matches("slat/src/")).with_extension("");
    let folders = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty());
    let tested =
        folders.into_iter().find(|folder| Path::new("slat/src").join(folder).join("loom_tests.rs").exists());
    match (kind, tested) {
        (Kind::Loom, Some(folder)) => folder.to_string_lossy().replace('/', "::"),
        (Kind::Loom, None) => "loom_tests".to_owned(),
        (Kind::Shuttle, _) => "shuttle_tests".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line that `CONTRIBUTING.md` takes as an example is in the sources.
    #[test]
    fn the_example_of_the_guide_is_a_line_that_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let guide = text("CONTRIBUTING.md");
        let words = guide.split_once("mutants --try ").unwrap().1;
        let [file, line] = words.splitn(3, ' ').take(2).collect::<Vec<_>>()[..] else { panic!("{words}") };
        let source = text(file);
        let line = source.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap();
        assert!(line.contains("order!(hint.end, Release)"), "{line}");
        assert!(guide.contains(line.trim()), "the guide shows this line as its example:\n{line}");
    }

    #[test]
    fn a_line_is_replaced_by_another_one() {
        let sources: Sources = [("a.rs".to_owned(), "f();\ng();\n".to_owned())].into();
        assert_eq!(replacing(&sources, "a.rs", 2, "h();").unwrap(), "f();\nh();\n");
        for (file, line, text, why) in [
            ("b.rs", 1, "h();", "no source is called b.rs"),
            ("a.rs", 0, "h();", "has no line 0"),
            ("a.rs", 4, "h();", "has no line 4"),
            ("a.rs", 1, "f();", "is this already"),
        ] {
            let refused = replacing(&sources, file, line, text).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
