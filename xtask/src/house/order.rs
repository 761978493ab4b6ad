//! In the engine, each ordering stronger than relaxed says in an `ORDER(name)` comment what must not move past what.
//! Imports, and tests beside the code, need not.

use super::Finding;
use super::source::Source;

/// Lines before the use in which the comment may begin.
const REACH: usize = 8;
const ORDERINGS: [&str; 4] = ["SeqCst", "Acquire", "Release", "AcqRel"];

/// Findings of one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let name = source.path.file_stem().unwrap_or_default().to_string_lossy();
    if !source.path.starts_with("slat/src") || name.ends_with("tests") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut importing = false;
    for (index, code) in source.code[..source.tests_begin()].iter().enumerate() {
        let code = code.trim();
        importing |= code.starts_with("use ") || code.starts_with("pub use ") || code.contains(") use ");
        let ordering = words(code).find(|word| ORDERINGS.contains(word));
        if let Some(ordering) = ordering
            && !importing
            && !source.marked(index, REACH, "ORDER(")
        {
            findings
                .push(source.finding(index, format!("{ordering} without ORDER(name) within {REACH} lines")));
        }
        importing &= !code.ends_with(';');
    }
    findings
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|char: char| !char.is_alphanumeric() && char != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orderings_say_what_they_order() {
        let found = |text: &str| check(&Source::new("slat/src/a.rs", text)).len();
        assert_eq!(found("a.load(Acquire);"), 1);
        assert_eq!(found("// ORDER(a): b before c.\na.load(Ordering::Acquire);"), 0);
        assert_eq!(found("a.load(Relaxed); a.acquire(); ReleaseDate"), 0);
        assert_eq!(found("use core::sync::atomic::{\n    Acquire,\n    Release,\n};\nfence(SeqCst);"), 1);
        assert_eq!(found("#[cfg(test)]\nmod tests {\n    a.load(Acquire);\n}"), 0);
    }

    #[test]
    fn only_the_engine_is_held_to_it() {
        let found = |path| check(&Source::new(path, "a.load(SeqCst);")).len();
        assert_eq!([found("slat/src/a.rs"), found("slat/src/a_tests.rs"), found("cli/src/a.rs")], [1, 0, 0]);
    }
}
