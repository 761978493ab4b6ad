//! Tables in Markdown.

use std::fmt::Write as _;

/// A table with columns as wide as their widest cell.
pub fn write<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = [head.map(str::to_owned)].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        // Writing to a string does not fail.
        for (cell, width) in row.iter().zip(widths) {
            _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in widths {
                _ = write!(text, "|{:-<1$}", "", width + 2);
            }
            text.push_str("|\n");
        }
    }
    text
}

/// The cells of a line that is a table's row, and has so many or more; its line of dashes is none. Code is without its marks.
pub fn cells<const N: usize>(line: &str) -> Option<[&str; N]> {
    let cells = line.strip_prefix('|')?.split('|').map(|cell| cell.trim().trim_matches('`'));
    let cells: Vec<&str> = cells.take(N).collect();
    cells.try_into().ok().filter(|cells: &[&str; N]| !cells[0].starts_with("--"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let text = write(["what", "n"], [["`a-b`", "7"], ["c", "12,000"]].map(|row| row.map(str::to_owned)));
        assert_eq!(text.lines().nth(2), Some("| `a-b` | 7      |"));
        let rows: Vec<[&str; 2]> = text.lines().filter_map(cells).collect();
        assert_eq!(rows, [["what", "n"], ["a-b", "7"], ["c", "12,000"]]);
        assert_eq!((cells::<9>("| a | b |"), cells::<1>("words")), (None, None));
    }
}
