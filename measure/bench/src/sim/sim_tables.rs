//! A [`SimReport`] for people: tables, numbers of vCPUs down, policies across.

use crate::figure_text::plain;
use crate::sim::sim_report::{Row, SimReport, Swept};
use crate::threads::bench_report::Settings;
use slat_machine::costs::{Costs, Field};
use std::collections::BTreeSet;
use std::fmt;

/// Cache lines shown for each policy.
const LINES: usize = 3;

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "slat sim {}: simulated, not measured ({})", self.sim, slat_series::name(&self.series))?;
        writeln!(f, "{}", Settings(&self.params))?;
        self.figures(f)?;
        self.shares(f)?;
        self.lines(f)?;
        self.swept(f)?;
        self.against(f)?;
        self.costs(f)?;
        self.verdict(f)
    }
}

impl SimReport {
    /// One table: what `cell` says of each row.
    fn table(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        cell: impl Fn(&Row) -> Option<String>,
    ) -> fmt::Result {
        let policies = self.policies();
        let mut lines = vec![columns("vCPUs", policies.iter().map(ToString::to_string))];
        for rows in self.rows.chunk_by(|a, b| (a.vcpus, &a.case) == (b.vcpus, &b.case)) {
            let of = |policy: &&str| rows.iter().find(|row| row.policy == **policy).and_then(&cell);
            let cells = policies.iter().map(|policy| of(policy).unwrap_or_else(|| "-".into()));
            let comma = if rows[0].case.is_empty() { "" } else { ", " };
            lines.push(columns(&format!("{}{comma}{}", rows[0].vcpus, rows[0].case), cells));
        }
        section(f, title, &lines)
    }

    fn figures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = BTreeSet::new();
        let names = self.rows.iter().flat_map(|row| &row.figures).filter(|figure| seen.insert(&*figure.name));
        for of in names {
            let title = format!("{}, {}", of.name, of.unit);
            self.table(f, &title, |row| {
                let (at, figure) =
                    row.figures.iter().enumerate().find(|(_, figure)| figure.name == of.name)?;
                let more = if row.unfinished && at < 2 { "more than " } else { "" };
                Some(format!("{more}{}", plain(figure.value)))
            })?;
        }
        Ok(())
    }

    /// Where the time goes: waiting, flushes, kicks.
    fn shares(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table(f, "waiting for locks and cache lines, % of the vCPUs' time", |row| {
            Some(format!("{:.1}", 100.0 * row.waiting))
        })?;
        if self.rows.iter().any(|row| row.flushes + row.kicks > 0) {
            self.table(f, "flushes / kicks", |row| Some(format!("{} / {}", row.flushes, row.kicks)))?;
        }
        Ok(())
    }

    fn lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.rows.last() else { return Ok(()) };
        let (most, case) = (last.vcpus, &last.case);
        let mut lines = vec![];
        for row in self.rows.iter().filter(|row| (row.vcpus, &row.case) == (most, case)) {
            for line in row.lines.iter().take(LINES) {
                let share =
                    100.0 * line.waited_ns as f64 / (row.wall_ns * u64::from(row.vcpus)).max(1) as f64;
                lines.push(vec![
                    row.policy.to_string(),
                    format!("{share:.2}%"),
                    line.transfers.to_string(),
                    line.name.clone(),
                    line.site.clone(),
                ]);
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        let comma = if case.is_empty() { "" } else { ", " };
        let what = "share of time waited, transfers, content, place";
        section(f, &format!("hottest cache lines with {most} vCPUs{comma}{case}: {what}"), &lines)
    }

    fn swept(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.sweep.first() else { return Ok(()) };
        let of = first.rows.first().map_or(0, |row| row.vcpus);
        let head = first.rows.iter().map(|row| row.policy.to_string()).chain(["ranking".into()]);
        let mut lines = vec![columns("cost", head)];
        lines.extend(self.sweep.iter().map(|Swept { cost, factor, rows, ranking_holds }| {
            let verdict = if *ranking_holds { "holds" } else { "CHANGES" };
            let cells = rows.iter().map(|row| plain(row.value)).chain([verdict.into()]);
            columns(&format!("{cost} x {factor}"), cells)
        }));
        section(f, &format!("uncertain costs changed, {of} vCPUs"), &lines)
    }

    fn against(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.against_series.is_empty() {
            return Ok(());
        }
        let mut lines = vec![columns("", ["series", "simulated", "", ""].map(str::to_owned))];
        lines.extend(self.against_series.iter().map(|row| {
            let verdict = match (row.fitted, row.reproduced) {
                (true, true) => "fitted",
                (true, false) => "NOT FITTED",
                (false, true) => "reproduced",
                (false, false) => "NOT REPRODUCED",
            };
            vec![
                row.what.clone(),
                format!("{} {}", plain(row.published), row.unit),
                plain(row.simulated),
                verdict.to_owned(),
                row.detail.clone(),
            ]
        }));
        section(f, &format!("against the {} series", slat_series::name(&self.series)), &lines)
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |field: &Field| {
            let value = format!("{} {}", plain(self.costs[field.name]), field.unit);
            vec![
                field.name.to_owned(),
                value,
                self.costs_from[field.name].to_string(),
                field.about.to_owned(),
            ]
        };
        section(f, "costs of operations", &Costs::FIELDS.iter().map(line).collect::<Vec<_>>())
    }

    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        let failed: Vec<_> = self.checks.iter().filter(|check| !check.ok).collect();
        for check in &failed {
            writeln!(f, "FAILED {}: {}", check.name, check.detail)?;
        }
        writeln!(f, "checks: {} of {} hold", self.checks.len() - failed.len(), self.checks.len())
    }
}

/// A table below its title.
fn section(f: &mut fmt::Formatter<'_>, title: &str, lines: &[Vec<String>]) -> fmt::Result {
    write!(f, "\n{title}\n{}", Grid(lines))
}

/// A line of a table.
fn columns(first: &str, rest: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(rest).collect()
}

/// Cells below each other: numbers to the right, words to the left.
pub struct Grid<'l>(pub &'l [Vec<String>]);

impl fmt::Display for Grid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = |at: usize| self.0.iter().filter_map(move |line| line.get(at));
        let most = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let numeric = |at| column(at).any(|cell| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-'));
        let widths: Vec<_> = (0..most)
            .map(|at| (column(at).map(|cell| cell.chars().count()).max().unwrap_or(0), numeric(at)))
            .collect();
        for line in self.0 {
            let cells = line.iter().zip(&widths).map(|(cell, &(width, right))| {
                if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            writeln!(f, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}
