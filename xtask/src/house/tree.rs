//! The README draws the repository as a tree; every folder in it exists.

use super::Finding;
use std::io;
use std::path::{Path, PathBuf};

/// Findings of the README below `root`; none without one.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let readme = Path::new("README.md");
    let text = match std::fs::read_to_string(root.join(readme)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let missing = folders(&text).into_iter().filter(|(_, folder)| !root.join(folder).is_dir());
    let finding = |(index, folder): (usize, PathBuf)| Finding {
        path: readme.to_owned(),
        line: index + 1,
        what: format!("no folder {}", folder.display()),
    };
    Ok(missing.map(finding).collect())
}

/// Folders drawn in `text`, with the index of their line: `├── a/  b/  what they are for`.
/// Each level of the drawing is four characters wide.
fn folders(text: &str) -> Vec<(usize, PathBuf)> {
    let mut found = Vec::new();
    let mut above: Vec<String> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some((drawing, names)) = line.split_once("── ") else {
            // A drawing ends where its lines do; the next starts at the root.
            if !line.starts_with(['│', ' ']) {
                above.clear();
            }
            continue;
        };
        above.truncate(drawing.chars().count() / 4);
        for name in names.split_whitespace().map_while(|name| name.strip_suffix('/')) {
            found.push((index, above.iter().chain([&name.to_owned()]).collect()));
        }
        let first = names.split_whitespace().next().unwrap_or_default();
        above.push(first.trim_end_matches('/').to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_found_at_their_depth() {
        let text = "slat/\n├── README.md   what/ it is\n├── a/          words\n│   └── src/\n│       ├── b.rs   c\n\
                    │       └── d/     deep\n└── e/  f/      two\n";
        let expected = [(2, "a"), (3, "a/src"), (5, "a/src/d"), (6, "e"), (6, "f")];
        assert_eq!(folders(text), expected.map(|(index, folder)| (index, PathBuf::from(folder))));
    }
}
