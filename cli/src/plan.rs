//! `slat plan`: prints the engine's own table of what an invalidation does to a leaf entry, for each reason.

use crate::error::Error;
use serde::Serialize;
use slat::Level;
use slat::notify::plan::{Row, rows};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

/// Print what an invalidation does to a leaf, for each reason: the engine's own decisions
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status: 0 printed; 2 bad input.
Time: none. Memory: 10 MiB.")]
pub struct Plan {
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// One printed row.
#[derive(Serialize)]
struct Line {
    why: &'static str,
    when: &'static str,
    leaf: String,
    host: &'static str,
    edit: &'static str,
    tables: &'static str,
}

impl Line {
    fn of(row: &Row, leaf: String, host: &'static str) -> Self {
        Self {
            why: row.why.name(),
            when: if row.why.page_by_page() { "page by page" } else { "at begin" },
            leaf,
            host,
            edit: row.edit.name(),
            tables: if row.why.frees_tables() { "freed" } else { "stay" },
        }
    }
}

/// Merges the rows of one reason and leaf size where their text is equal.
fn lines(rows: &[Row], size: &str) -> Vec<Line> {
    let same = |rows: &[Row]| rows.iter().all(|row| row.edit.name() == rows[0].edit.name());
    let host = |rows: &[Row]| if rows.iter().any(|row| row.now.is_some()) { "any" } else { "" };
    if same(rows) {
        return vec![Line::of(&rows[0], format!("{size}any"), host(rows))];
    }
    rows.chunk_by(|a, b| a.writable == b.writable)
        .flat_map(|rows| {
            let leaf = format!("{size}{}", if rows[0].writable { "writable" } else { "read-only" });
            if same(rows) {
                return vec![Line::of(&rows[0], leaf, host(rows))];
            }
            let page = |row: &Row| row.now.map(|(same, _)| same);
            rows.chunk_by(|a, b| page(a) == page(b) && a.edit.name() == b.edit.name())
                .map(|rows| {
                    let host = match (rows[0].now, rows.len()) {
                        (None, _) => "none",
                        (Some((true, _)), 2) => "the same",
                        (Some((false, _)), 2) => "another",
                        (Some((true, false)), _) => "the same, read-only",
                        (Some((true, true)), _) => "the same, writable",
                        (Some((false, false)), _) => "another, read-only",
                        (Some((false, true)), _) => "another, writable",
                    };
                    Line::of(&rows[0], leaf.clone(), host)
                })
                .collect()
        })
        .collect()
}

impl Plan {
    /// Prints the plan.
    pub fn run(&self) -> Result<ExitCode, Error> {
        // The edit of a leaf of which a part changes follows from the rows of that part.
        let rows: Vec<_> = rows().into_iter().filter(|row| !row.part).collect();
        let mut lines: Vec<_> = rows
            .chunk_by(|a, b| a.why == b.why)
            .flat_map(|rows| {
                let sizes: Vec<_> = rows.chunk_by(|a, b| a.level == b.level).collect();
                let size = |level| match level {
                    _ if sizes.len() == 1 => "",
                    Level::K4 => "4K, ",
                    _ => "larger, ",
                };
                sizes.iter().flat_map(|rows| lines(rows, size(rows[0].level))).collect::<Vec<_>>()
            })
            .collect();
        lines.push(Line {
            why: "any",
            when: "",
            leaf: "part of a larger".into(),
            host: "",
            edit: "split, then the part as above",
            tables: "stay",
        });
        self.print(&lines, &mut io::stdout().lock())?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, lines: &[Line], out: &mut impl Write) -> io::Result<()> {
        if self.json {
            serde_json::to_writer(&mut *out, &BTreeMap::from([("plan", lines)]))?;
            return writeln!(out);
        }
        let cells = |line: &Line| {
            [line.why, line.when, &line.leaf, line.host, line.edit, line.tables].map(str::to_owned)
        };
        let head = ["why", "when", "leaf", "host's page now", "edit", "tables"].map(str::to_owned);
        let table: Vec<_> = std::iter::once(head).chain(lines.iter().map(cells)).collect();
        let width = |column: usize| table.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<_> = (0..6).map(width).collect();
        for row in &table {
            let padded: Vec<_> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(out, "{}", padded.join("  ").trim_end())?;
        }
        Ok(())
    }
}
