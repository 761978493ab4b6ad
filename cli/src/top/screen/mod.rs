//! The screen of `slat top`.
//!
//! | file | contents |
//! |---|---|
//! | `terminal` | takes the terminal, and restores it at the end, also after a panic |
//! | `ansi`, `keys` | the terminal's output and input |
//! | `state` | the state that keys change |
//! | `history` | the last sample, its rates, and the past |
//! | `look` | colours and glyphs that this terminal has |
//! | `view` | the layout, by the size of the terminal |
//! | `panels` | faults, flushes, memory, ages, vCPUs |
//! | `heat` | guest memory from left to right, the past downwards |
//! | `help` | the help text |
//!
//! The drawing depends only on a history and a state, and goes to a buffer of any size. The tests draw into such
//! buffers.

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

use super::options::{End, Wanted};
use super::source::{Item, Source};
use crate::error::Error;
use history::History;
use look::Look;
use ratatui_core::terminal::Frame;
use state::{Action, State};
use std::io::Write;
use std::time::Duration;
use terminal::Screen;

/// The longest time until a key takes effect.
const TURN: Duration = Duration::from_millis(40);

/// Draws each sample on the terminal behind `open`, until the run ends or the user quits.
pub fn draw<W: Write + 'static>(
    source: &mut dyn Source,
    open: fn() -> W,
    wanted: Wanted,
) -> Result<End, Error> {
    let Some(first) = first(source)? else { return Ok(End::Lost) };
    let look = Look::of_terminal();
    let mut screen = Screen::take(open)?;
    let (mut history, mut state) = (History::default(), State::new(wanted.every));
    let (mut item, mut seen, mut changed) = (Some(first), 0, true);
    loop {
        match item {
            Some(Item::Lost) => return Ok(End::Lost),
            Some(Item::Sample(sample)) if sample.ended => return Ok(End::Run),
            Some(Item::Sample(sample)) => {
                seen += 1;
                // Samples during a pause are dropped; the next sample's sums include them.
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
        item = source.next(Duration::ZERO)?;
    }
}

/// Waits for the first sample before the terminal is changed.
fn first(source: &mut dyn Source) -> Result<Option<Item>, Error> {
    loop {
        match source.next(Duration::from_millis(100))? {
            Some(Item::Lost) => return Ok(None),
            Some(item) => return Ok(Some(item)),
            None if crate::interrupt::asked() => return Ok(None),
            None => {}
        }
    }
}
