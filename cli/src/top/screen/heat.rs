//! The map: guest memory from left to right, the present in the first row, the past below. Memory in use shows as a
//! column, moving use as a slope, memory that went cold as a fading trace.

use super::canvas::Canvas;
use super::history::History;
use super::look::Ink;
use super::state::{Shown, State};
use crate::sample::{AgesBy, Heat};
use crate::top::figure_text::{bytes, time};
use slat::PAGE_SIZE;

/// Columns of the time axis, where there is room.
const GUTTER: u16 = 8;

/// Draws a title, a time axis where there is room, and as many past rows as fit.
pub fn draw(canvas: &mut Canvas<'_>, history: &History, state: &State, bare: bool) {
    let (width, height) = (canvas.width(), canvas.height());
    let top = u16::from(!bare);
    let axis = u16::from(!bare && height >= 4);
    let gutter = if width >= 60 { GUTTER } else { 0 };
    if !bare {
        title(canvas, history, state, width - gutter);
    }
    let frames = history.now.heat.frames;
    if state.shown == Shown::Used && history.now.ages.by == AgesBy::Unknown {
        canvas.put(
            (0, top),
            "This format has no Accessed bits, and the run has no LRU: h shows more.",
            Ink::Label,
        );
        return;
    }
    let rows = height.saturating_sub(top + axis);
    for ((at_ms, heat), row) in history.maps.iter().zip(0..rows) {
        let y = top + row;
        if gutter > 0 && row % 4 == 0 {
            let ago = history.now.at_ms.saturating_sub(*at_ms);
            let text = if row == 0 { "now".into() } else { format!("-{}", time(ago)) };
            canvas.put((0, y), &format!("{text:>7}"), Ink::Label);
        }
        let (_, _, digits) = state.shown.of(heat);
        draw_row(canvas, (gutter, y), &Row { frames, heat, digits });
    }
    if axis > 0 {
        draw_axis(canvas, gutter, frames);
    }
}

fn title(canvas: &mut Canvas<'_>, history: &History, state: &State, columns: u16) {
    let per_column = history.now.heat.frames.saturating_mul(PAGE_SIZE) / u64::from(columns.max(1));
    let figure = format!("{} a column", bytes(per_column));
    let (name, [low, high], _) = state.shown.of(&history.now.heat);
    canvas.title(&format!("guest memory {} {name}", canvas.look.dot()), &figure);
    let legend = (low.len() + 13 + high.len()) as u16;
    let room = canvas.width().saturating_sub(legend + figure.len() as u16 + 4);
    if room < 30 {
        return;
    }
    let mut x = canvas.put((room, 0), &format!(" {low} "), Ink::Label);
    for warmth in 0..10 {
        let (glyph, style) = canvas.look.heat(warmth);
        x = canvas.put_styled((x, 0), glyph, style);
    }
    canvas.put((x, 0), &format!(" {high} "), Ink::Label);
}

/// One row, in a guest of `frames` frames.
struct Row<'h> {
    frames: u64,
    heat: &'h Heat,
    digits: &'h str,
}

fn draw_row(canvas: &mut Canvas<'_>, (x, y): (u16, u16), row: &Row<'_>) {
    let columns = canvas.width().saturating_sub(x);
    for column in 0..columns {
        if let Some(warmth) = row.warmth(column, columns) {
            let (glyph, style) = canvas.look.heat(warmth);
            canvas.put_styled((x + column, y), glyph, style);
        }
    }
}

impl Row<'_> {
    /// The warmth of a column: the mean of its mapped cells, rounded up.
    fn warmth(&self, column: u16, columns: u16) -> Option<u8> {
        let per_cell = self.heat.frames_per_cell.max(1);
        let edge = |column: u16| u128::from(self.frames) * u128::from(column) / u128::from(columns);
        let first = (edge(column) / u128::from(per_cell)) as usize;
        let last = (edge(column + 1).saturating_sub(1) / u128::from(per_cell)) as usize;
        let cells = self.digits.as_bytes().get(first..)?;
        let cells = &cells[..cells.len().min((last + 1).saturating_sub(first).max(1))];
        let warm: Vec<u32> = cells.iter().filter_map(|cell| char::from(*cell).to_digit(10)).collect();
        let sum: u32 = warm.iter().sum();
        (!warm.is_empty()).then(|| sum.div_ceil(warm.len() as u32) as u8)
    }
}

/// The address axis: labels at powers of two.
fn draw_axis(canvas: &mut Canvas<'_>, gutter: u16, frames: u64) {
    let columns = canvas.width().saturating_sub(gutter);
    let memory = u128::from(frames) * u128::from(PAGE_SIZE);
    let step = (memory / u128::from((columns / 10).max(1))).next_power_of_two();
    let mut address = 0;
    while address < memory {
        let x = gutter + (u128::from(columns) * address / memory) as u16;
        let text = if address == 0 { "0".into() } else { bytes(u64::try_from(address).unwrap_or(u64::MAX)) };
        let tick = if canvas.look.ascii { "|" } else { "╵" };
        // A clipped figure would read as another figure.
        if x + 1 + text.len() as u16 <= canvas.width() {
            canvas.put((x, canvas.height() - 1), &format!("{tick}{text}"), Ink::Label);
        }
        address += step;
    }
}
