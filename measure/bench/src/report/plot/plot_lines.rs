//! Lines: one for each policy, with a marker at each figure.

use crate::report::plot::plot_frame::{Axis, Canvas, Drawing, Key};
use maud::{Markup, html};

/// A line.
pub struct Line {
    pub name: String,
    pub look: Look,
    pub points: Vec<(f64, f64)>,
}

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// The n-th line: colour, dashes and marker.
    Nth(usize),
    /// Points alone, in the n-th colour: figures of another source.
    Rings(usize),
    /// A line with no markers, in the n-th colour, and the area below it.
    Area(usize),
}

/// The figures of all lines.
pub fn values(lines: &[Line]) -> impl Iterator<Item = f64> + '_ {
    lines.iter().flat_map(|line| line.points.iter().map(|point| point.1))
}

const COLOURS: usize = 6;
const DASHES: [&str; COLOURS] = ["none", "7 4", "2 4", "10 3 2 3", "4 3", "1 3"];

/// The n-th colour.
fn colour(nth: usize) -> String {
    format!("var(--s{})", nth % COLOURS)
}

/// Lines on two axes.
pub fn lines(axes: (&Axis, &Axis), all: &[Line]) -> Drawing {
    let key = |line: &Line| Key { sign: sign(line.look), name: line.name.clone() };
    // One line alone is named by the title.
    let keys: Vec<Key> = if all.len() > 1 { all.iter().map(key).collect() } else { Vec::new() };
    let canvas = Canvas::new(axes.1, &keys);
    let inside = html! {
        (canvas.axes(axes.0, axes.1))
        @for line in all { (drawn(&canvas, axes, line)) }
    };
    Drawing { keys, inside }
}

fn drawn(canvas: &Canvas, (x, y): (&Axis, &Axis), line: &Line) -> Markup {
    let places = places(canvas, (x, y), line);
    let marker = |nth: usize, &((x_at, y_at), point): &Placed| {
        (marker(nth, x_at, y_at), format!("{}, {}: {}", line.name, (x.tick)(point.0), (y.tick)(point.1)))
    };
    html! {
        @match line.look {
            Look::Nth(nth) => {
                path class="data" stroke=(colour(nth)) stroke-dasharray=(DASHES[nth % COLOURS]) d=(path(&places)) {}
                @for (marker, title) in places.iter().map(|place| marker(nth, place)) {
                    g class="dot" fill=(colour(nth)) { path d=(marker) { title { (title) } } }
                }
            }
            Look::Rings(nth) => {
                @for (marker, title) in places.iter().map(|place| marker(nth, place)) {
                    path class="ring" stroke=(colour(nth)) d=(marker) { title { (title) } }
                }
            }
            Look::Area(nth) => {
                @if let (Some(first), Some(last)) = (places.first(), places.last()) {
                    path class="under" fill=(colour(nth))
                        d={ (path(&places)) "L" (last.0.0) " " (canvas.bottom) "H" (first.0.0) "z" } {}
                }
                path class="data thin" stroke=(colour(nth)) d=(path(&places)) {}
            }
        }
    }
}

/// A place, and the figures that it stands for.
type Placed = ((f64, f64), (f64, f64));

/// The points of a line that have a place.
fn places(canvas: &Canvas, (x, y): (&Axis, &Axis), line: &Line) -> Vec<Placed> {
    let place = |&point: &(f64, f64)| Some((canvas.place(x.scale.at(point.0)?, y.scale.at(point.1)?), point));
    line.points.iter().filter_map(place).collect()
}

fn path(places: &[Placed]) -> String {
    let step = |(nth, ((x, y), _)): (usize, &Placed)| format!("{}{x} {y}", if nth == 0 { "M" } else { "L" });
    // One point is a line of no length: with round ends it is a dot.
    let alone = if places.len() == 1 { "h0" } else { "" };
    places.iter().enumerate().map(step).collect::<String>() + alone
}

/// A marker around a point. Each line has another.
fn marker(nth: usize, x: f64, y: f64) -> String {
    match nth % COLOURS {
        0 => format!("M{} {y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        1 => format!("M{} {}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x} {}l4.6 8h-9.2z", y - 5.0),
        3 => format!("M{x} {}l5 5l-5 5l-5 -5z", y - 5.0),
        4 => format!("M{x} {}l4.6 -8h-9.2z", y + 5.0),
        _ => format!("M{} {}l3 3l3 -3l2 2l-3 3l3 3l-2 2l-3 -3l-3 3l-2 -2l3 -3l-3 -3z", x - 3.0, y - 5.0),
    }
}

fn sign(look: Look) -> Markup {
    match look {
        Look::Nth(nth) => html! {
            path class="data" stroke=(colour(nth)) stroke-dasharray=(DASHES[nth % COLOURS]) d="M-11 0H11" {}
            path class="dot" fill=(colour(nth)) d=(marker(nth, 0.0, 0.0)) {}
        },
        Look::Rings(nth) => html! {
            path class="ring" stroke=(colour(nth)) d=(marker(nth, 5.0, 0.0)) {}
        },
        Look::Area(nth) => html! {
            path class="data" stroke=(colour(nth)) d="M-8 0H11" {}
        },
    }
}
