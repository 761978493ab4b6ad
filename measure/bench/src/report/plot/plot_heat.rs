//! A map of cells: time to the right, memory downwards, a shade for each age.
//!
//! Cells of one shade are one path, and neighbours in a row are one rectangle: some ten thousand cells are some ten
//! kilobytes.

use crate::report::plot::plot_frame::{Axis, Canvas, Drawing, Key, round};
use maud::html;

/// The shades, from the hottest: up to which age, and how that is called.
pub const SHADES: [(f32, &str); 7] = [
    (0.5, "0"),
    (1.5, "1"),
    (3.5, "2–3"),
    (7.5, "4–7"),
    (15.5, "8–15"),
    (31.5, "16–31"),
    (f32::INFINITY, "32+"),
];

/// The shade of an age.
pub fn shade(age: f32) -> usize {
    SHADES.iter().position(|(upto, _)| age < *upto).unwrap_or(SHADES.len() - 1)
}

/// Columns of cells from left to right, each from the bottom up; a cell with no age is left out.
pub fn heat((x, y): (&Axis, &Axis), columns: &[Vec<Option<f32>>]) -> Drawing {
    let key = |(nth, (_, name)): (usize, &(f32, &str))| Key {
        sign: html! { path fill={ "var(--h" (nth) ")" } d="M-3 -7h15v13h-15z" {} },
        name: (*name).to_owned(),
    };
    let none = Key { sign: html! { path class="axis" d="M-3 -6.5h14v12h-14z" {} }, name: "not there".into() };
    let keys: Vec<Key> = SHADES.iter().enumerate().map(key).chain([none]).collect();
    let canvas = Canvas::new(y, &keys);
    let paths = paths(&canvas, columns);
    let inside = html! {
        (canvas.axes(x, y))
        @for (nth, path) in paths.iter().enumerate() {
            @if !path.is_empty() {
                path fill={ "var(--h" (nth) ")" } shape-rendering="crispEdges" d=(path) {}
            }
        }
    };
    Drawing { keys, inside }
}

/// For each shade, its cells.
fn paths(canvas: &Canvas, columns: &[Vec<Option<f32>>]) -> [String; SHADES.len()] {
    use std::fmt::Write as _;
    let mut paths = [const { String::new() }; SHADES.len()];
    let rows = columns.first().map_or(0, Vec::len);
    let wide = (canvas.right - canvas.left) / columns.len().max(1) as f64;
    let high = (canvas.bottom - canvas.top) / rows.max(1) as f64;
    for row in 0..rows {
        let shades: Vec<Option<usize>> =
            columns.iter().map(|column| column.get(row).copied().flatten().map(shade)).collect();
        let mut at = 0;
        for run in shades.chunk_by(|a, b| a == b) {
            if let Some(shade) = run[0] {
                let (x, y) = (canvas.left + at as f64 * wide, canvas.bottom - (row + 1) as f64 * high);
                let (wide, high) = (round(run.len() as f64 * wide), round(high + 0.05));
                // Writing to a string cannot fail.
                let _ = write!(paths[shade], "M{} {}h{wide}v{high}h-{wide}z", round(x), round(y));
            }
            at += run.len();
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_shade_are_one_rectangle() {
        let columns = vec![vec![Some(0.0), None], vec![Some(0.4), Some(40.0)], vec![Some(2.0), Some(33.0)]];
        let paths = paths(&Canvas { left: 0.0, top: 0.0, right: 30.0, bottom: 20.0 }, &columns);
        let cells = paths.map(|path| path.matches('M').count());
        assert_eq!(cells, [1, 0, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn every_age_has_a_shade() {
        assert_eq!([0.0, 1.0, 3.0, 5.0, 9.0, 20.0, 1e9].map(shade), [0, 1, 2, 3, 4, 5, 6]);
    }
}
