//! Source files, with code apart from comments and text, and findings in them. The separation is approximate.

use anyhow::Result;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A violation of a rule: the file, its line, counted from 1, and the message.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{}:{line}: {what}", path.display())]
pub struct Finding {
    pub path: PathBuf,
    pub line: usize,
    pub what: String,
}

/// A file.
pub struct Source {
    /// Relative to the repository's root.
    pub path: PathBuf,
    /// Its whole lines, with comments.
    pub lines: Vec<String>,
    /// The same lines without comments and without the inside of string literals.
    pub code: Vec<String>,
}

impl Source {
    pub fn new(path: impl Into<PathBuf>, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let code = lines.iter().map(|line| code(line)).collect();
        Self { path: path.into(), lines, code }
    }

    /// Makes a finding at the line with this index.
    pub fn finding(&self, index: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line: index + 1, what: what.into() }
    }

    /// Returns the number of lines before the unit tests at the end of the file; all lines without such tests.
    fn tests_begin(&self) -> usize {
        let begins = |index: &usize| {
            let code = self.code[*index].trim();
            let next = self.code[index + 1..].iter().find(|code| !code.is_empty());
            code.starts_with("#[cfg(")
                && code.contains("test")
                && !code.contains("not(test")
                && next.is_some_and(|next| next.contains("mod ") && next.ends_with('{'))
        };
        (0..self.code.len()).find(begins).unwrap_or(self.code.len())
    }

    /// Returns the number of lines that are not tests; 0 for a file of tests.
    pub fn own(&self) -> usize {
        let is_tests = |part: &str| part.trim_end_matches(".rs").rsplit('_').next() == Some("tests");
        let tests = self.path.iter().any(|part| is_tests(&part.to_string_lossy()));
        if tests { 0 } else { self.tests_begin() }
    }

    /// Returns the number of shipped lines of the engine; 0 for another file.
    pub fn shipped(&self) -> usize {
        let ships = self.path.starts_with("slat/src") || self.path.starts_with("crates/slots/src");
        if ships { self.own() } else { 0 }
    }

    /// Returns the findings of `wrong` for the first `lines` lines of code.
    pub fn find(&self, lines: usize, mut wrong: impl FnMut(usize, &str) -> Option<String>) -> Vec<Finding> {
        let code = self.code[..lines].iter().enumerate();
        code.filter_map(|(index, code)| Some(self.finding(index, wrong(index, code)?))).collect()
    }

    /// Returns whether `mark` is on the line with this index, or on one of the `reach` lines before it.
    pub fn marked(&self, index: usize, reach: usize, mark: &str) -> bool {
        self.lines[index.saturating_sub(reach)..=index].iter().any(|line| line.contains(mark))
    }
}

/// Reads the files below `folder` with this name ending, except build outputs. Does not use git's list, which a
/// checkout may lack.
pub fn read_all(folder: &Path, end: &str) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources.extend(read_all(&path, end)?);
        } else if name.ends_with(end) {
            sources.push(Source::new(path.strip_prefix(".").unwrap_or(&path), &fs::read_to_string(&path)?));
        }
    }
    Ok(sources)
}

/// Returns a line without its comment and without the contents of its string literals. Literals of several lines count
/// as code.
fn code(line: &str) -> String {
    let (mut code, mut in_text) = (String::new(), false);
    let mut rest = line.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '\\' => _ = rest.next(),
            '"' if !in_text && code.ends_with('\'') && rest.peek() == Some(&'\'') => {}
            '"' => in_text = !in_text,
            '/' if !in_text && rest.peek() == Some(&'/') => break,
            _ if !in_text => code.push(char),
            _ => {}
        }
    }
    code
}

/// Returns a path without `.` and `..`.
pub fn without_dots(path: &Path) -> PathBuf {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = parts.pop(),
            Component::CurDir => {}
            _ => parts.push(part),
        }
    }
    parts.into_iter().collect()
}

/// Identifiers and numbers.
pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|char: char| !char.is_alphanumeric() && char != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_distinguished_from_comments_and_text() {
        for (line, expected) in [
            ("let a = 1; // danger", "let a = 1; "),
            ("/// danger {", ""),
            (r#"print("danger { \" // not a comment", b);"#, "print(, b);"),
            (r#"if c == '"' { danger {"#, "if c == '' { danger {"),
        ] {
            assert_eq!(code(line), expected, "{line}");
        }
    }
}
