//! Rules for one file.

use super::{Finding, Source};

/// A file is one idea: more than 450 lines are two, and a page-table format is told in 130. Integration tests may be
/// longer.
pub fn length(source: &Source) -> Vec<Finding> {
    let format = source.path.starts_with("slat/src/table/formats") && !source.path.ends_with("tests.rs");
    let most = if format { 130 } else { 450 };
    let lines = source.lines.len();
    if lines <= most || source.path.iter().any(|part| part == "tests") {
        return Vec::new();
    }
    vec![source.finding(most, format!("{lines} lines, over {most}"))]
}

/// Each `unsafe` has a `SAFETY:` comment, which begins close by and says who guarantees what. Clippy demands it where it looks:
/// not in what is built for another target, or with another `cfg`.
pub fn safety(source: &Source) -> Vec<Finding> {
    const REACH: usize = 6;
    source.find(source.code.len(), |index, code| {
        let (_, what) = code.split_once("unsafe ")?;
        let argued =
            !(what.starts_with('{') || what.starts_with("impl")) || source.marked(index, REACH, "SAFETY:");
        (!argued).then(|| format!("unsafe without SAFETY: within {REACH} lines"))
    })
}

/// In the engine, each ordering stronger than relaxed says in an `ORDER(name)` comment, which begins close by, what must not
/// move past what. Imports, and tests beside the code, need not.
pub fn order(source: &Source) -> Vec<Finding> {
    const REACH: usize = 8;
    let mut importing = false;
    source.find(source.shipped(), |index, code| {
        let begins = importing || ["use ", "pub use "].iter().any(|word| code.trim().starts_with(word));
        let imported = begins || code.contains(") use ");
        importing = imported && !code.trim().ends_with(';');
        let ordering = words(code).find(|word| ["SeqCst", "Acquire", "Release", "AcqRel"].contains(word))?;
        let said = imported || source.marked(index, REACH, "ORDER(");
        (!said).then(|| format!("{ordering} without ORDER(name) within {REACH} lines"))
    })
}

/// What is here works: no unwritten functions, no tests that are switched off.
pub fn promises(source: &Source) -> Vec<Finding> {
    source.find(source.code.len(), |_, code| {
        let broken =
            ["todo!(", "unimplemented!(", "#[ignore"].into_iter().find(|broken| code.contains(broken))?;
        Some(format!("{broken} is a promise, not code"))
    })
}

/// Identifiers and numbers.
pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|char: char| !char.is_alphanumeric() && char != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_may_be_long() {
        let found = |path, lines| length(&Source::new(path, &"\n".repeat(lines))).len();
        let files = [("a/src/b.rs", 450), ("a/src/b.rs", 451), ("a/tests/b.rs", 451)];
        assert_eq!(files.map(|(path, lines)| found(path, lines)), [0, 1, 0]);
        let format = "slat/src/table/formats/b.rs";
        assert_eq!([found(format, 130), found(format, 131)], [0, 1]);
        assert_eq!(found("slat/src/table/formats/tests.rs", 136), 0);
    }

    #[test]
    fn what_a_file_must_say_and_must_not_is_found() {
        let far = format!("// SAFETY: far away\n{}unsafe impl Send for A {{}}", "\n".repeat(6));
        let engine = "slat/src/a.rs";
        let cases: [(super::super::Rule, &str, &str, usize); 14] = [
            (safety, "a.rs", "let a = unsafe { b() };", 1),
            (safety, "a.rs", "// SAFETY: b is kind.\nlet a = unsafe { b() };", 0),
            (safety, "a.rs", &far, 1),
            // Its caller is the one to argue.
            (safety, "a.rs", "unsafe fn a();", 0),
            (order, engine, "a.load(Acquire);", 1),
            (order, engine, "// ORDER(a): b before c.\na.load(Ordering::Acquire);", 0),
            (order, engine, "a.load(Relaxed); a.acquire(); ReleaseDate", 0),
            (order, engine, "use core::sync::atomic::{\n    Acquire,\n    Release,\n};\nfence(SeqCst);", 1),
            (order, engine, "#[cfg(test)]\nmod tests {\n    a.load(Acquire);\n}", 0),
            (order, "slat/src/a_tests.rs", "a.load(SeqCst);", 0),
            (order, "cli/src/a.rs", "a.load(SeqCst);", 0),
            (promises, "a.rs", "fn a() { todo!() }\n#[ignore = \"slow\"]\nunimplemented!(\"b\")", 3),
            (promises, "a.rs", "// todo!() is not for us", 0),
            (promises, "a.rs", "let a = \"#[ignore\";", 0),
        ];
        for (rule, path, text, findings) in cases {
            assert_eq!(rule(&Source::new(path, text)).len(), findings, "{path}: {text}");
        }
    }
}
