//! Plots, as SVG that a page can hold or a file can be.
//!
//! | file | idea |
//! |---|---|
//! | `plot_scale` | from figures to places, and where ticks are |
//! | `plot_frame` | the frame, the axes with their titles, the legend |
//! | `plot_lines` | lines with markers; steps; series' own points beside them |
//! | `plot_bars` | bars with their figures; a histogram |
//! | `plot_heat` | a map of coloured cells |
//! | `plot.css` | the colours of both schemes |
//!
//! Colours are variables of the style sheet, so a plot follows the reader's scheme. No two lines differ by colour alone:
//! each has a dash pattern and a marker, too. A value that is no finite number is not drawn.

mod plot_bars;
mod plot_frame;
mod plot_heat;
mod plot_lines;
mod plot_scale;

pub use plot_bars::{Bar, bars, histogram};
pub use plot_frame::{Axis, Drawing};
pub use plot_heat::{SHADES, heat, shade};
pub use plot_lines::{Line, Look, lines, values};
pub use plot_scale::Scale;

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
