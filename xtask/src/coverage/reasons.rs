//! Why lines are not run by any test, as a file says it: `path: what — why`, one to a line, `#` for remarks.
//!
//! *What* is `fn name`, for the whole of a function, or a piece of the line itself. *Path* is `*` for any file.

use crate::house::source::Source;
use std::path::Path;

struct Reason {
    path: String,
    what: String,
    why: String,
}

pub struct Reasons(Vec<Reason>);

impl Reasons {
    pub fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let reason = |line: &str| {
            let (place, why) = line.split_once(" — ")?;
            let (path, what) = place.split_once(": ")?;
            Some(Reason { path: path.to_owned(), what: what.to_owned(), why: why.to_owned() })
        };
        lines
            .map(|line| reason(line).ok_or_else(|| format!("not `path: what — why`: {line}")))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Why the line with this index is not run.
    pub fn of(&self, source: &Source, index: usize) -> Option<&str> {
        self.0.iter().find(|reason| reason.covers(source, index)).map(|reason| reason.why.as_str())
    }

    /// Those that speak of nothing in `sources`.
    pub fn idle(&self, sources: &[Source]) -> Vec<String> {
        let speaks = |reason: &Reason| {
            sources.iter().any(|source| (0..source.lines.len()).any(|index| reason.covers(source, index)))
        };
        let idle = self.0.iter().filter(|reason| !speaks(reason));
        idle.map(|reason| format!("{}: {}", reason.path, reason.what)).collect()
    }
}

impl Reason {
    fn covers(&self, source: &Source, index: usize) -> bool {
        if self.path != "*" && Path::new(&self.path) != source.path {
            return false;
        }
        match self.what.strip_prefix("fn ") {
            Some(name) => function_around(source, index) == Some(name),
            None => source.lines[index].contains(&self.what),
        }
    }
}

/// The name of the function that the line with this index belongs to: the nearest above that begins further left, or on
/// the line itself.
fn function_around(source: &Source, index: usize) -> Option<&str> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let own = indent(&source.lines[index]);
    source.lines[..=index].iter().enumerate().rev().find_map(|(at, line)| {
        // The closing brace of a function stands where its first line does.
        let around =
            at == index || indent(line) < own || (indent(line) == own && source.lines[index].trim() == "}");
        let after = line.split_once("fn ").filter(|_| around && !line.trim_start().starts_with("//"))?.1;
        Some(&after[..after.find(['(', '<'])?])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "impl A {\n    fn one(&self) {\n        a();\n        if b {\n            c();\n        }\n    }\n\n\
                        \x20   const fn two<T>() {\n        d();\n    }\n}";

    #[test]
    fn a_reason_covers_a_function_or_a_line() {
        let source = Source::new("a.rs", CODE);
        let reasons =
            Reasons::read("# why\n\na.rs: fn one — never\n*: d( — elsewhere\nb.rs: fn two — no\n").unwrap();
        let why: Vec<_> = (0..source.lines.len()).map(|index| reasons.of(&source, index)).collect();
        let never = Some("never");
        assert_eq!(why[..7], [None, never, never, never, never, never, never]);
        assert_eq!(why[7..], [None, None, Some("elsewhere"), None, None]);
    }

    #[test]
    fn a_reason_for_nothing_is_told() {
        let reasons = Reasons::read("a.rs: fn gone — x\na.rs: a() — y").unwrap();
        assert_eq!(reasons.idle(&[Source::new("a.rs", CODE)]), ["a.rs: fn gone"]);
        assert!(Reasons::read("a.rs: fn gone").is_err());
    }
}
