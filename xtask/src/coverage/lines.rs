//! lcov's text: `SF:` begins a file, `DA:line,count` is a line of it that has code.

use super::Counts;
use std::path::{Path, PathBuf};

/// Counts by file, relative to `root`.
pub fn read(text: &str, root: &Path) -> Counts {
    let mut counts = Counts::new();
    let mut file = PathBuf::new();
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let path = Path::new(path);
            file = path.strip_prefix(root).unwrap_or(path).into();
        } else if let Some((line, count)) = line.strip_prefix("DA:").and_then(numbers) {
            *counts.entry(file.clone()).or_default().entry(line).or_default() += count;
        }
    }
    counts
}

fn numbers(text: &str) -> Option<(usize, u64)> {
    let (line, count) = text.split_once(',')?;
    Some((line.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_by_file() {
        let counts = read(
            "SF:/r/a/b.rs\nFN:3,f\nDA:3,0\nDA:4,18\nDA:x\nend_of_record\nSF:/r/c.rs\nDA:1,1\n",
            Path::new("/r"),
        );
        let expected = [("a/b.rs", vec![(3, 0), (4, 18)]), ("c.rs", vec![(1, 1)])];
        assert_eq!(counts, expected.map(|(path, lines)| (path.into(), lines.into_iter().collect())).into());
    }
}
