//! A file is one idea: more than 450 lines are two, and a page-table format is told in 145. Integration tests may be
//! longer.

use super::Finding;
use super::source::Source;

const MOST: usize = 450;
const FORMATS: (&str, usize) = ("slat/src/table/formats", 130);

/// Findings of one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let test = source.path.components().any(|part| part.as_os_str() == "tests");
    let lines = source.lines.len();
    let tests = source.path.file_name().is_some_and(|name| name == "tests.rs");
    let most = if source.path.starts_with(FORMATS.0) && !tests { FORMATS.1 } else { MOST };
    if test || lines <= most {
        Vec::new()
    } else {
        vec![source.finding(most, format!("{lines} lines, over {most}"))]
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
        let format = "slat/src/table/formats/b.rs";
        assert_eq!([found(format, 130), found(format, 131)], [0, 1]);
        assert_eq!(found("slat/src/table/formats/tests.rs", 136), 0);
    }
}
