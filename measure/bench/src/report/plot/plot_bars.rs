//! Bars: one figure for each name, written beside it; and histograms, with marks where quantiles are.

use crate::report::plot::plot_frame::{Axis, Canvas, Drawing, HEIGHT, WIDTH, round, width};
use crate::report::plot::plot_scale::Scale;
use maud::html;

/// A bar.
pub struct Bar {
    pub name: String,
    pub value: f64,
    /// The label at its end.
    pub text: String,
}

/// Horizontal bars, on a logarithmic axis: figures that differ by thousands are all seen.
pub fn bars(axis: &str, all: &[Bar]) -> Drawing {
    let names = all.iter().map(|bar| width(&bar.name)).fold(0.0, f64::max);
    let texts = all.iter().map(|bar| width(&bar.text)).fold(0.0, f64::max);
    let most = all.iter().map(|bar| bar.value).filter(|value| value.is_finite()).fold(1.0, f64::max);
    let scale = Scale::log_between(0.5, most);
    let canvas = Canvas { left: 14.0 + names, top: 10.0, right: WIDTH - 20.0 - texts, bottom: HEIGHT - 32.0 };
    let pitch = (canvas.bottom - canvas.top) / all.len().max(1) as f64;
    let thick = round((pitch * 0.62).min(30.0));
    let inside = html! {
        @for (nth, bar) in all.iter().enumerate() {
            @let middle = round(canvas.top + (nth as f64 + 0.5) * pitch);
            @let (end, _) = canvas.place(scale.clamped(bar.value), 0.0);
            text class="title" x=(round(canvas.left - 8.0)) y=(middle + 4.0) text-anchor="end" { (bar.name) }
            path fill="var(--s0)" d={ "M" (round(canvas.left)) " " (round(middle - thick / 2.0)) "H" (end) "v" (thick) "H" (round(canvas.left)) "z" } {}
            text class="value" x=(round(end + 7.0)) y=(middle + 4.0) { (bar.text) }
        }
        path class="axis" d={ "M" (round(canvas.left)) " " (canvas.top) "V" (canvas.bottom) } {}
        (canvas.title_of_x(axis))
    };
    Drawing { keys: Vec::new(), inside }
}

/// A histogram: how many are up to each bound, from the bound before; and marks with names.
pub fn histogram((x, y): (&Axis, &Axis), buckets: &[(f64, f64, f64)], marks: &[(f64, String)]) -> Drawing {
    let canvas = Canvas { top: 34.0, ..Canvas::new(y, &[]) };
    let mut free = f64::NEG_INFINITY;
    let mut named = Vec::new();
    for (value, name) in marks {
        let Some(at) = x.scale.at(*value) else { continue };
        let (at, _) = canvas.place(at, 0.0);
        let half = width(name) / 2.0;
        // A name stays inside of the plot. Where two are too near, that of the second is left out; the table has it.
        let middle = at.min(canvas.right - half);
        let apart = middle - half >= free;
        free = if apart { middle + half + 4.0 } else { free };
        named.push((at, apart.then_some((round(middle), name))));
    }
    let inside = html! {
        (canvas.axes(x, y))
        @for &(from, to, count) in buckets {
            @let (left, top) = canvas.place(x.scale.clamped(from), y.scale.clamped(count));
            @let (right, _) = canvas.place(x.scale.clamped(to), 0.0);
            path fill="var(--s0)" d={ "M" (round(left + 0.5)) " " (canvas.bottom) "V" (top) "H" (round(right - 0.5)) "V" (canvas.bottom) "z" } {
                title { ((x.tick)(from)) " to " ((x.tick)(to)) ": " (count) }
            }
        }
        @for (at, name) in &named {
            path class="mark" d={ "M" (at) " " (canvas.top - 6.0) "V" (canvas.bottom) } {}
            @if let Some((middle, name)) = name {
                text class="value" x=(middle) y=(canvas.top - 12.0) text-anchor="middle" { (name) }
            }
        }
    };
    Drawing { keys: Vec::new(), inside }
}
