//! A ratatui backend that writes ECMA-48 sequences, which all current terminals support.
//!
//! ratatui's own backends add a library with 21 crates: a fifth of the command's dependencies.

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use rustix::termios::tcgetwinsize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind::Unsupported, Write};

/// A terminal behind `out`. [`Backend::flush`] writes the whole drawing at once.
pub struct Ansi<W> {
    out: W,
    tty: File,
    drawn: String,
}

impl<W> Ansi<W> {
    /// A terminal of the size of `tty`.
    pub fn new(out: W, tty: File) -> Self {
        Self { out, tty, drawn: String::new() }
    }

    fn at(&mut self, Position { x, y }: Position) {
        let _ = write!(self.drawn, "\x1b[{};{}H", y + 1, x + 1);
    }

    fn style(&mut self, cell: &Cell) {
        self.drawn.push_str("\x1b[0m");
        for (modifier, number) in [(Modifier::BOLD, 1), (Modifier::DIM, 2), (Modifier::REVERSED, 7)] {
            if cell.modifier.contains(modifier) {
                let _ = write!(self.drawn, "\x1b[{number}m");
            }
        }
        // A screen uses the terminal's colours by number only.
        for (colour, ground) in [(cell.fg, 38), (cell.bg, 48)] {
            if let Color::Indexed(number) = colour {
                let _ = write!(self.drawn, "\x1b[{ground};5;{number}m");
            }
        }
    }
}

impl<W: Write> Backend for Ansi<W> {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, cells: I) -> io::Result<()> {
        let mut before: Option<(u16, u16, &Cell)> = None;
        for (x, y, cell) in cells {
            if before.is_none_or(|(before, line, _)| (before + 1, line) != (x, y)) {
                self.at(Position { x, y });
            }
            let same =
                |other: &Cell| (other.fg, other.bg, other.modifier) == (cell.fg, cell.bg, cell.modifier);
            if before.is_none_or(|(_, _, before)| !same(before)) {
                self.style(cell);
            }
            self.drawn.push_str(cell.symbol());
            before = Some((x, y, cell));
        }
        self.drawn.push_str("\x1b[0m");
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.drawn.push_str("\x1b[?25l");
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.drawn.push_str("\x1b[?25h");
        Ok(())
    }

    /// A terminal may not answer a query. No screen of this program queries one.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Err(Unsupported.into())
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.at(position.into());
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, what: ClearType) -> io::Result<()> {
        self.drawn.push_str(match what {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(&self.tty)?;
        Ok(Size::new(size.ws_col, size.ws_row))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.out.write_all(self.drawn.as_bytes()).and_then(|()| self.out.flush());
        self.drawn.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_their_place_and_their_style() {
        let mut ansi = Ansi::new(Vec::new(), File::open("/dev/null").unwrap());
        let cell = |symbol, fg, modifier| {
            let mut cell = Cell::new(symbol);
            (cell.fg, cell.modifier) = (fg, modifier);
            cell
        };
        let bold =
            [cell("a", Color::Indexed(6), Modifier::BOLD), cell("b", Color::Indexed(6), Modifier::BOLD)];
        let plain = cell("c", Color::Reset, Modifier::empty());
        ansi.draw([(3, 1, &bold[0]), (4, 1, &bold[1]), (5, 1, &plain), (0, 2, &plain)].into_iter()).unwrap();
        ansi.flush().unwrap();
        let expected = "\x1b[2;4H\x1b[0m\x1b[1m\x1b[38;5;6mab\x1b[0mc\x1b[3;1Hc\x1b[0m";
        assert_eq!(String::from_utf8(ansi.out).unwrap(), expected);
        assert!(ansi.drawn.is_empty());
    }
}
