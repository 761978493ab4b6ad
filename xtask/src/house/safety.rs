//! Whoever writes `unsafe` says in a `SAFETY:` comment, close by, who guarantees what.

use super::Finding;
use super::source::Source;

/// Lines before the block in which the comment may begin.
const REACH: usize = 6;

/// Findings of one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let unsafes = source.code.iter().enumerate().filter(|(_, code)| {
        code.split_once("unsafe ").is_some_and(|(_, what)| what.starts_with('{') || what.starts_with("impl"))
    });
    unsafes
        .filter(|&(index, _)| !source.marked(index, REACH, "SAFETY:"))
        .map(|(index, _)| source.finding(index, format!("unsafe without SAFETY: within {REACH} lines")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_needs_its_comment_close_by() {
        let found = |text: &str| check(&Source::new("a.rs", text)).len();
        assert_eq!(found("let a = unsafe { b() };"), 1);
        assert_eq!(found("// SAFETY: b is kind.\nlet a = unsafe { b() };"), 0);
        assert_eq!(found(&format!("// SAFETY: far away\n{}unsafe impl Send for A {{}}", "\n".repeat(6))), 1);
        assert_eq!(found("unsafe fn a();"), 0, "its caller is the one to argue");
    }
}
