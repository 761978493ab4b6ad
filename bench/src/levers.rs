//! What brings what: tables of one figure in which a column, or a row, changes one thing and no other.
//!
//! slat answers a patch series with the idea of the series and with ideas of its own. A ratio between the kernel's way before the series
//! and slat's way now mixes them. A [`Grid`] takes them apart: its cells are figures of one run, and the factor beside a
//! cell is against the first column of its row. `BENCHMARKS.md` and the report begin with these tables.

use crate::bench::report::{Report, Row};
use serde_json::Value;
use std::fmt::{self, Write as _};

/// Parameters that tell a row of a result from others of the same name.
pub type Params = &'static [(&'static str, &'static str)];

/// One table.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// What is measured.
    pub what: &'static str,
    /// One way to do it each: its name, and where its figure is. The first is what the others are compared with.
    pub columns: &'static [(&'static str, Cell)],
    /// One setting each: its name, the parameters of its rows, and their unit.
    pub rows: &'static [(&'static str, Params, &'static str)],
    /// What the table shows, and which idea is whose.
    pub says: &'static str,
}

/// Where a figure is in a result.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    row: &'static str,
    baseline: bool,
    params: Params,
}

impl Cell {
    /// The baseline of the row of this name.
    pub const fn baseline(row: &'static str) -> Self {
        Self { row, baseline: true, params: &[] }
    }

    /// slat's figure in the row of this name.
    pub const fn slat(row: &'static str) -> Self {
        Self { row, baseline: false, params: &[] }
    }

    /// Of the row with these parameters, too.
    #[must_use]
    pub const fn with(self, params: Params) -> Self {
        Self { params, ..self }
    }
}

/// A figure of a grid: the median of its rounds.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Of the rounds.
    pub median: f64,
    /// Of each round.
    pub samples: Vec<f64>,
    /// How much less it is than the first column's.
    pub factor: Option<f64>,
}

impl Grid {
    /// Its figures in the rows of one run, by row and column. A figure is missing where the run did not take it.
    pub fn fill(&self, result: &[Row]) -> Vec<Vec<Option<Figure>>> {
        let fill = |&(_, params, unit): &(_, Params, &str)| {
            let mut first = None;
            let figures = self.columns.iter().map(|(_, cell)| {
                let is = |row: &&Row| {
                    row.unit == unit && row.is(cell.row, params) && row.is(cell.row, cell.params)
                };
                let row = result.iter().find(is)?;
                let (median, samples) = if cell.baseline {
                    (row.baseline?, row.baseline_samples.clone().unwrap_or_default())
                } else {
                    (row.slat, row.slat_samples.clone())
                };
                let factor = Some(*first.get_or_insert(median) / median).filter(|factor| factor.is_finite());
                Some(Figure { median, samples, factor })
            });
            figures.collect()
        };
        self.rows.iter().map(fill).collect()
    }
}

/// Writes the grids of a result that was kept as JSON, as Markdown; `show` prints a median with its samples.
///
/// # Panics
/// Where the result is no report, or lacks a figure.
pub fn markdown(grids: &[Grid], result: &Value, show: impl Fn(f64, &[f64]) -> String) -> String {
    let report: Report = serde_json::from_value(result.clone()).expect("a report");
    let mut text = String::new();
    write(&mut text, grids, &report.rows, show).expect("a string takes all");
    text
}

fn write(
    text: &mut String,
    grids: &[Grid],
    rows: &[Row],
    show: impl Fn(f64, &[f64]) -> String,
) -> fmt::Result {
    for grid in grids {
        let heads: Vec<_> = grid.columns.iter().map(|(name, _)| *name).collect();
        let line = "---|".repeat(heads.len());
        write!(text, "\n{}\n\n| | {} |\n|---|{line}", grid.what, heads.join(" | "))?;
        for ((name, _, unit), figures) in grid.rows.iter().zip(grid.fill(rows)) {
            write!(text, "\n| {name}, {unit} |")?;
            for (at, figure) in figures.iter().enumerate() {
                let figure = figure.as_ref().unwrap_or_else(|| panic!("{}: no {name}", grid.what));
                let factor = figure.factor.filter(|_| at > 0);
                let factor = factor.map_or(String::new(), |factor| format!("; {factor:.2} ×"));
                write!(text, " {}{factor} |", show(figure.median, &figure.samples))?;
            }
        }
        write!(text, "\n\n{}\n", grid.says)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::harness::Series;
    use crate::bench::report::params;

    const GRID: Grid = Grid {
        what: "a pass",
        columns: &[("lock", Cell::baseline("x")), ("none", Cell::slat("x"))],
        rows: &[("1 vCPU", &[("vcpus", "1")], "ms"), ("2 vCPUs", &[("vcpus", "2")], "ms")],
        says: "",
    };

    fn row(vcpus: u32, baseline: f64, slat: f64) -> Row {
        let series = |figure: f64| Series::new(vec![figure]);
        Row::compare("x", params! { "vcpus": vcpus }, "ms", &series(baseline), &series(slat))
    }

    #[test]
    fn a_factor_is_against_the_first_column_of_its_own_row() {
        let filled = GRID.fill(&[row(1, 6.0, 3.0), row(2, 8.0, 16.0)]);
        let factors = |at: usize| filled[at].iter().map(|f| f.as_ref()?.factor).collect::<Vec<_>>();
        assert_eq!((factors(0), factors(1)), (vec![Some(1.0), Some(2.0)], vec![Some(1.0), Some(0.5)]));
    }

    #[test]
    fn a_run_of_other_settings_lacks_figures() {
        let filled = GRID.fill(&[row(2, 8.0, 16.0)]);
        assert!(filled[0].iter().all(Option::is_none) && filled[1].iter().all(Option::is_some));
        let other = Row { unit: "us".into(), ..row(1, 6.0, 3.0) };
        assert!(
            GRID.fill(&[other]).iter().flatten().all(Option::is_none),
            "a figure of another unit is another"
        );
    }
}
