//! What is here works: no unwritten functions, no tests that are switched off.

use super::Finding;
use super::source::Source;

const BROKEN: [&str; 3] = ["todo!(", "unimplemented!(", "#[ignore"];

/// Findings of one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let lines = source.code.iter().enumerate();
    let found = lines.filter_map(|(index, code)| {
        let broken = BROKEN.iter().find(|broken| code.contains(**broken))?;
        Some(source.finding(index, format!("{broken} is a promise, not code")))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_found_in_code_only() {
        let found = |text: &str| check(&Source::new("a.rs", text)).len();
        assert_eq!(found("fn a() { todo!() }\n#[ignore = \"slow\"]\nunimplemented!(\"b\")"), 3);
        assert_eq!(found("// todo!() is not for us\nlet a = \"#[ignore\";"), 0);
    }
}
