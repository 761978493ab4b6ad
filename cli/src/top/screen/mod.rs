//! The terminal: what is drawn, and what keys do.
//!
//! | file | idea |
//! |---|---|
//! | `terminal` | taken at the start, given back whatever happens |
//! | `ansi`, `keys` | what is written to it, and read from it |
//! | `state` | what keys change |
//! | `history` | what has been seen: rates now, faults and maps of the past |
//! | `look` | colours and glyphs that this terminal has |
//! | `view` | what goes where, by the size of the terminal |
//! | `panels` | faults, flushes, memory, ages, vCPUs |
//! | `heat` | guest memory from left to right, the past downwards |
//! | `help` | what it all means |
//!
//! Everything is drawn from a history and a state, into a buffer of any size: there is nothing else to know, and so
//! nothing else to test.

mod ansi;
mod canvas;
mod heat;
mod help;
mod history;
mod keys;
mod look;
mod panels;
mod state;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use super::source::{Source, Told};
use super::{End, Wanted};
use crate::error::Error;
use history::History;
use look::Look;
use ratatui_core::terminal::Frame;
use state::{Action, State};
use std::io::Write;
use std::time::Duration;
use terminal::Screen;

/// How long a key may wait for its effect.
const TURN: Duration = Duration::from_millis(40);

/// Draws each sample on the terminal that `open` writes to, until the run ends or the user quits.
pub fn draw<W: Write + 'static>(
    source: &mut dyn Source,
    open: fn() -> W,
    wanted: Wanted,
) -> Result<End, Error> {
    let Some(first) = first(source)? else { return Ok(End::Lost) };
    let look = Look::of_terminal();
    let mut screen = Screen::take(open)?;
    let (mut history, mut state) = (History::default(), State::new(wanted.every));
    let (mut told, mut seen, mut changed) = (Some(first), 0, true);
    loop {
        match told {
            Some(Told::Lost) => return Ok(End::Lost),
            Some(Told::Sample(sample)) if sample.ended => return Ok(End::Run),
            Some(Told::Sample(sample)) => {
                seen += 1;
                // While it is paused time goes on: what is missed is in the next sample's sums.
                if !state.paused {
                    history.add(*sample);
                    changed = true;
                }
            }
            None => {}
        }
        let draw =
            |frame: &mut Frame<'_>| view::draw(&history, &state, look, frame.area(), frame.buffer_mut());
        if std::mem::take(&mut changed) && !screen.draw(draw)? {
            return Ok(End::Enough);
        }
        assert!(!wanted.sabotaged, "as asked");
        if wanted.most.is_some_and(|most| seen >= most) {
            return Ok(End::Enough);
        }
        let Some(keys) = screen.keys(TURN) else { return Ok(End::Interrupted) };
        if crate::interrupt::asked() {
            return Ok(End::Interrupted);
        }
        changed |= screen.resized()? || !keys.is_empty();
        for key in keys {
            match state.key(key) {
                Action::None => {}
                Action::Interval(every) => source.set_interval(every)?,
                Action::Redraw => screen.clear()?,
                Action::Quit => return Ok(End::Enough),
                Action::Interrupt => return Ok(End::Interrupted),
            }
        }
        told = source.next(Duration::ZERO)?;
    }
}

/// Who has nothing to say is found out before the terminal is touched.
fn first(source: &mut dyn Source) -> Result<Option<Told>, Error> {
    loop {
        match source.next(Duration::from_millis(100))? {
            Some(Told::Lost) => return Ok(None),
            Some(told) => return Ok(Some(told)),
            None if crate::interrupt::asked() => return Ok(None),
            None => {}
        }
    }
}
