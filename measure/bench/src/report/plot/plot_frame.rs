//! The frame around what is drawn: axes with their titles and ticks, the legend, and a description in words.

use crate::report::plot::plot_scale::Scale;
use maud::{Markup, html};

/// Units of the view box. A plot is between 340 and 520 pixels wide, so letters have nearly their size.
pub const WIDTH: f64 = 440.0;
pub const HEIGHT: f64 = 310.0;
const RIGHT: f64 = WIDTH - 14.0;
const BOTTOM: f64 = HEIGHT - 48.0;
/// About what a letter takes.
const LETTER: f64 = 6.7;

/// The width of a text, about.
pub fn width(text: &str) -> f64 {
    LETTER * text.chars().count() as f64
}

/// An axis.
pub struct Axis {
    /// Its quantity, with the unit.
    pub title: String,
    pub scale: Scale,
    /// How a tick is written.
    pub tick: fn(f64) -> String,
    /// Where ticks are, if not at round figures.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// With ticks at round figures.
    pub fn new(title: impl Into<String>, scale: Scale, tick: fn(f64) -> String) -> Self {
        Self { title: title.into(), scale, tick, ticks: Vec::new() }
    }

    fn places(&self) -> Vec<f64> {
        if self.ticks.is_empty() { self.scale.ticks(6) } else { self.ticks.clone() }
    }
}

/// An entry of the legend: its sign, drawn around a point, and its name.
pub struct Key {
    pub sign: Markup,
    pub name: String,
}

/// The drawing, and the legend above it.
pub struct Drawing {
    pub keys: Vec<Key>,
    /// Between the axes, and these.
    pub inside: Markup,
}

impl Drawing {
    /// The whole plot.
    pub fn svg(&self, title: &str, about: &str) -> Markup {
        let title = title.replace('`', "");
        html! {
            svg class="plot" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label={ (title) ". " (about) } {
                title { (title) }
                desc { (about) }
                @for ((row, x), key) in rows(&self.keys).into_iter().zip(&self.keys) {
                    g transform={ "translate(" (round(x)) " " (14 + 20 * row) ")" } {
                        (key.sign)
                        text x="17" y="4" { (key.name) }
                    }
                }
                (self.inside)
            }
        }
    }
}

/// Where to draw.
pub struct Canvas {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Canvas {
    /// Room for the ticks of this vertical axis, and this legend.
    pub fn new(y: &Axis, keys: &[Key]) -> Self {
        let rows = rows(keys).last().map_or(0, |(row, _)| row + 1);
        let left = 34.0 + y.places().into_iter().map(|tick| width(&(y.tick)(tick))).fold(0.0, f64::max);
        Self { left, top: 14.0 + 20.0 * rows as f64, right: RIGHT, bottom: BOTTOM }
    }

    /// The place of what is so far along the horizontal axis, and so far up.
    pub fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (round(self.left + x * (self.right - self.left)), round(self.bottom - y * (self.bottom - self.top)))
    }

    /// Both axes, with a grid for the vertical one.
    pub fn axes(&self, x: &Axis, y: &Axis) -> Markup {
        let middle = round(f64::midpoint(self.top, self.bottom));
        html! {
            @for tick in y.places() {
                @let (_, at) = self.place(0.0, y.scale.clamped(tick));
                path class="grid" d={ "M" (self.left) " " (at) "H" (self.right) } {}
                text x=(self.left - 7.0) y=(at + 4.0) text-anchor="end" { ((y.tick)(tick)) }
            }
            @for tick in self.apart(x) {
                @let (at, _) = self.place(x.scale.clamped(tick), 0.0);
                path class="axis" d={ "M" (at) " " (self.bottom) "v5" } {}
                text x=(at) y=(self.bottom + 19.0) text-anchor="middle" { ((x.tick)(tick)) }
            }
            path class="axis" d={ "M" (self.left) " " (self.bottom) "H" (self.right) } {}
            (self.title_of_x(&x.title))
            text class="title" x="14" y=(middle) text-anchor="middle" transform={ "rotate(-90 14 " (middle) ")" } { (y.title) }
        }
    }

    /// The quantity on the horizontal axis.
    pub fn title_of_x(&self, title: &str) -> Markup {
        let middle = round(f64::midpoint(self.left, self.right));
        html! { text class="title" x=(middle) y=(HEIGHT - 9.0) text-anchor="middle" { (title) } }
    }

    /// Ticks of the horizontal axis whose names do not touch.
    fn apart(&self, x: &Axis) -> Vec<f64> {
        let mut free = f64::NEG_INFINITY;
        let mut kept = Vec::new();
        for tick in x.places() {
            let (at, _) = self.place(x.scale.clamped(tick), 0.0);
            let half = width(&(x.tick)(tick)) / 2.0;
            if at - half >= free && at + half <= WIDTH {
                free = at + half + 8.0;
                kept.push(tick);
            }
        }
        kept
    }
}

/// The row of the legend, and the place in it, of each entry.
fn rows(keys: &[Key]) -> Vec<(usize, f64)> {
    let (mut row, mut x) = (0, 16.0);
    let mut places = Vec::new();
    for key in keys {
        let width = 34.0 + width(&key.name);
        if x > 16.0 && x + width > WIDTH {
            (row, x) = (row + 1, 16.0);
        }
        places.push((row, x));
        x += width;
    }
    places
}

/// To a tenth, which is less than a pixel.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
