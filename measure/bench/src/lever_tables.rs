//! Fills a [`Grid`] with the figures of a result, and writes it. The chapter of benchmarks and the report begin with these tables.

use crate::levers::{Cell, Grid, Params};
use crate::threads::bench_report::Row;
use crate::threads::samples::factor_interval;
use serde::Serialize;
use std::fmt::{self, Write as _};

/// A figure of a grid: the median of its rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Of the rounds.
    pub median: f64,
    /// Of each round.
    #[serde(skip)]
    pub samples: Vec<f64>,
    /// How much less it is than the first column's; none of the first.
    pub factor: Option<f64>,
    /// The factor's interval includes 1, so that the difference lies inside the spread. Too few samples have no interval.
    pub inside_spread: bool,
}

impl Figure {
    /// Behind a factor that lies inside the spread.
    pub fn sign(&self) -> &'static str {
        if self.inside_spread { " ≈" } else { "" }
    }
}

/// Whether the medians of these samples may as well be equal: with 95 of 100 their factor's interval includes 1. Fewer than three have none.
pub fn is_inside_spread(one: &[f64], other: &[f64]) -> bool {
    one.len().min(other.len()) >= 3 && {
        let [least, most] = factor_interval(one, other);
        least <= 1.0 && most >= 1.0
    }
}

impl Grid {
    /// Its figures in the rows of one run, by row and column. A figure is missing where the run did not take it.
    pub fn fill(&self, result: &[Row]) -> Vec<Vec<Option<Figure>>> {
        let fill = |&(_, params, unit): &(_, Params, &str)| {
            let mut first: Option<(f64, Vec<f64>)> = None;
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
                let Some((median_of_first, of_first)) = &first else {
                    first = Some((median, samples.clone()));
                    return Some(Figure { median, samples, factor: None, inside_spread: false });
                };
                let factor = Some(median_of_first / median).filter(|factor| factor.is_finite());
                let inside_spread = factor.is_some() && is_inside_spread(of_first, &samples);
                Some(Figure { median, samples, factor, inside_spread })
            });
            figures.collect()
        };
        self.rows.iter().map(fill).collect()
    }

    /// The figures that do not win against the first column: a sentence for each column that has such figures.
    pub fn no_gain(&self, filled: &[Vec<Option<Figure>>]) -> Vec<String> {
        let of = |(at, (name, _)): (usize, &(&'static str, Cell))| {
            let lost = self.rows.iter().zip(filled).filter_map(|((row, ..), figures)| {
                let figure = figures.get(at)?.as_ref()?;
                figure.factor.is_some_and(|factor| factor < GAINS).then_some(*row)
            });
            let lost: Vec<&str> = lost.collect();
            match lost.len() {
                0 => None,
                all if all == self.rows.len() => Some(format!("No gain by *{name}*.")),
                _ => Some(format!("No gain by *{name}*: {}.", lost.join("; "))),
            }
        };
        self.columns.iter().enumerate().filter_map(of).collect()
    }
}

/// A factor below this is printed as less than 1.
const GAINS: f64 = 0.995;

/// Writes the grids of a result as Markdown; `show` prints a median with its samples. A figure that the result lacks is a dash.
pub fn markdown(
    text: &mut String,
    grids: &[Grid],
    rows: &[Row],
    show: impl Fn(f64, &[f64]) -> String,
) -> fmt::Result {
    for grid in grids {
        let heads: Vec<_> = grid.columns.iter().map(|(name, _)| *name).collect();
        let line = "---|".repeat(heads.len());
        write!(text, "\n{}\n\n| | {} |\n|---|{line}", grid.what, heads.join(" | "))?;
        let filled = grid.fill(rows);
        for ((name, _, unit), figures) in grid.rows.iter().zip(&filled) {
            let unit: &str = if *unit == "us" { "µs" } else { unit };
            write!(text, "\n| {name}, {unit} |")?;
            for figure in figures {
                let Some(figure) = figure else {
                    text.write_str(" – |")?;
                    continue;
                };
                write!(text, " {}", show(figure.median, &figure.samples))?;
                if let Some(factor) = figure.factor {
                    write!(text, "; {factor:.2}×{}", figure.sign())?;
                }
                text.write_str(" |")?;
            }
        }
        write!(text, "\n\n{}\n", grid.says)?;
        for loses in grid.no_gain(&filled) {
            write!(text, "\n{loses}\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::bench_report::params;
    use crate::threads::samples::Series;

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
        assert_eq!((factors(0), factors(1)), (vec![None, Some(2.0)], vec![None, Some(0.5)]));
    }

    #[test]
    fn rows_that_do_not_win_are_named() {
        let rows = [row(1, 6.0, 3.0), row(2, 8.0, 16.0)];
        assert_eq!(GRID.no_gain(&GRID.fill(&rows)), ["No gain by *none*: 2 vCPUs."]);
        assert!(GRID.no_gain(&GRID.fill(&rows[..1])).is_empty());
    }

    /// Figures come from rows: the text beside a table has none.
    #[test]
    fn the_text_of_a_grid_has_no_factor_and_no_time() {
        let has_figure = |says: &str| {
            let words: Vec<&str> = says.split_whitespace().collect();
            let unit = |word: &str| {
                ["×", "%", "ns", "µs", "us", "ms", "s"].contains(&word.trim_matches(['.', ',', ';', ':']))
            };
            words.windows(2).any(|two| two[0].ends_with(|c: char| c.is_ascii_digit()) && unit(two[1]))
        };
        let grids = crate::scenarios::ALL.iter().flat_map(|scenario| scenario.measured.levers);
        assert!(grids.clone().count() > 8);
        assert_eq!(grids.map(|grid| grid.says).find(|says| has_figure(says)), None);
        assert!(
            has_figure("it is 7.00 × as quick") && has_figure("it takes 3 ms, mostly"),
            "negative control"
        );
    }

    #[test]
    fn a_difference_inside_the_spread_has_a_sign() {
        let noisy = |shift: f64| Series::new([1.0, 9.0, 5.0, 4.0, 6.0].map(|one| one + shift).to_vec());
        let of = |slat: &Series| {
            let row = Row::compare("x", params! { "vcpus": 1 }, "ms", &noisy(0.0), slat);
            GRID.fill(&[row])[0][1].clone().unwrap().sign()
        };
        assert_eq!((of(&noisy(0.1)), of(&noisy(100.0))), (" ≈", ""));
    }

    #[test]
    fn a_figure_that_a_result_lacks_is_a_dash() {
        let mut text = String::new();
        markdown(&mut text, &[GRID], &[row(2, 8.0, 4.0)], |median, _| median.to_string()).unwrap();
        assert!(text.contains("| 1 vCPU, ms | – | – |\n| 2 vCPUs, ms | 8 | 4; 2.00× |"), "{text}");
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
