//! Plots, as SVG that a page can hold or a file can be.
//!
//! | file | idea |
//! |---|---|
//! | `scale` | from figures to places, and where ticks are |
//! | `canvas` | the frame, the axes with their titles, the legend |
//! | `lines` | lines with markers; steps; series' own points beside them |
//! | `bars` | bars with their figures; a histogram |
//! | `heat` | a map of coloured cells |
//! | `plot.css` | the colours of both schemes |
//!
//! Colours are variables of the style sheet, so a plot follows the reader's scheme. No two lines differ by colour alone:
//! each has a dash pattern and a marker, too. What is no finite number is not drawn.

mod bars;
mod canvas;
mod heat;
mod lines;
mod scale;

pub use bars::{Bar, bars, histogram};
pub use canvas::{Axis, Drawing};
pub use heat::{SHADES, heat, shade};
pub use lines::{Line, Look, lines, values};
pub use scale::Scale;

use maud::{Markup, PreEscaped, html};

/// The style sheet of the plots; a plot in a file of its own contains it.
pub const STYLE: &str = include_str!("plot.css");

/// A plot in a file of its own.
pub fn file(svg: &Markup) -> String {
    let style = html! { style { (PreEscaped(STYLE)) } };
    let opened = svg.0.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    match opened.find('>') {
        Some(end) => format!("{}{}{}\n", &opened[..=end], style.0, &opened[end + 1..]),
        None => opened,
    }
}
