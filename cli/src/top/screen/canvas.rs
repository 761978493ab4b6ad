//! A rectangle of the screen with its own coordinates. Text that does not fit is clipped.
//!
//! It puts text and bars into ratatui's buffer. ratatui's widgets would be a crate for two functions.

use super::look::{Ink, Look};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

/// The rectangle.
pub struct Canvas<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
    pub look: Look,
}

impl<'b> Canvas<'b> {
    pub fn new(buffer: &'b mut Buffer, area: Rect, look: Look) -> Self {
        let area = area.intersection(buffer.area);
        Self { buffer, area, look }
    }

    pub fn width(&self) -> u16 {
        self.area.width
    }

    pub fn height(&self) -> u16 {
        self.area.height
    }

    /// A part of this rectangle from a corner, clipped to it.
    pub fn part(&mut self, (x, y): (u16, u16), (width, height): (u16, u16)) -> Canvas<'_> {
        let (x, y) = (self.area.x.saturating_add(x), self.area.y.saturating_add(y));
        let area = Rect::new(x, y, width, height).intersection(self.area);
        Canvas { buffer: self.buffer, area, look: self.look }
    }

    /// Writes text from a cell to the right. Returns the column after it.
    pub fn put(&mut self, (x, y): (u16, u16), text: &str, ink: Ink) -> u16 {
        self.put_styled((x, y), text, self.look.style(ink))
    }

    pub fn put_styled(&mut self, (x, y): (u16, u16), text: &str, style: Style) -> u16 {
        if x >= self.area.width || y >= self.area.height {
            return x;
        }
        let room = usize::from(self.area.width - x);
        // Resets the cell first.
        let style = Style::reset().patch(style);
        let (end, _) = self.buffer.set_stringn(self.area.x + x, self.area.y + y, text, room, style);
        end - self.area.x
    }

    /// Writes right-aligned text, if there is room.
    pub fn put_right(&mut self, y: u16, text: &str, ink: Ink) {
        let wide = text.chars().count() as u16;
        if wide <= self.area.width {
            self.put((self.area.width - wide, y), text, ink);
        }
    }

    /// Writes named figures one after the other. A figure that does not fit whole is left out.
    pub fn put_figures(&mut self, (x, y): (u16, u16), figures: &[(&str, String)]) {
        let mut x = x;
        for (name, figure) in figures {
            let between = u16::from(!name.is_empty());
            let wide = (name.chars().count() + figure.chars().count()) as u16 + between;
            if u32::from(x) + u32::from(wide) > u32::from(self.area.width) {
                return;
            }
            x = self.put((x, y), name, Ink::Label) + between;
            x = self.put((x, y), figure, Ink::Figure) + 2;
        }
    }

    /// The first line of a panel: its name, a line, and a figure at the right.
    pub fn title(&mut self, name: &str, figure: &str) {
        let rule = self.look.rule().repeat(usize::from(self.area.width));
        self.put((0, 0), &rule, Ink::Rule);
        self.put((0, 0), &format!("{name} "), Ink::Title);
        let wide = figure.chars().count() as u16 + 1;
        if wide > 1 && name.chars().count() as u16 + 1 + wide <= self.area.width {
            self.put_right(0, &format!(" {figure}"), Ink::Figure);
        }
    }

    /// A bar of `share` of `width` columns.
    pub fn bar(&mut self, (x, y): (u16, u16), width: u16, share: f64, ink: Ink) {
        // A share above zero shows at least one glyph.
        let eighths = (share.clamp(0.0, 1.0) * f64::from(width) * 8.0).round().max(f64::from(share > 0.0));
        self.bar_styled((x, y), width, eighths, self.look.style(ink));
    }

    /// A bar of this many eighths of a column, in a space of `width` columns.
    pub fn bar_styled(&mut self, (x, y): (u16, u16), width: u16, eighths: f64, style: Style) {
        for column in 0..width {
            let here = (eighths as usize).saturating_sub(usize::from(column) * 8);
            self.put_styled((x + column, y), self.look.bar(here), style);
        }
    }

    /// Clears the rectangle.
    pub fn clear(&mut self) {
        let blank = " ".repeat(usize::from(self.area.width));
        for y in 0..self.area.height {
            self.put_styled((0, y), &blank, Style::reset());
        }
    }
}
