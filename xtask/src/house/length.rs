//! A file is one idea: more than 450 lines are two. Integration tests may be longer.

use super::Finding;
use super::source::Source;

const MOST: usize = 450;

/// Findings of one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let test = source.path.components().any(|part| part.as_os_str() == "tests");
    let lines = source.lines.len();
    if test || lines <= MOST {
        Vec::new()
    } else {
        vec![source.finding(MOST, format!("{lines} lines, over {MOST}"))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_may_be_long() {
        let found = |path, lines| check(&Source::new(path, &"\n".repeat(lines))).len();
        assert_eq!(
            [found("a/src/b.rs", 450), found("a/src/b.rs", 451), found("a/tests/b.rs", 451)],
            [0, 1, 0]
        );
    }
}
