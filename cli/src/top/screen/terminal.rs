//! Takes the terminal for a screen and restores it: at the end, on an error, and before a panic's message is printed.

use super::ansi::Ansi;
use super::keys::{Key, keys};
use parking_lot::Mutex;
use ratatui_core::layout::Size;
use ratatui_core::terminal::{Frame, Terminal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, ErrorKind::Interrupted, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::panic;
use std::time::Duration;

/// The terminal that is in use, and its modes before.
static TAKEN: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The terminal.
pub struct Screen<W: Write> {
    terminal: Terminal<Ansi<W>>,
    open: fn() -> W,
    /// The source of keys.
    tty: File,
    size: Size,
}

impl<W: Write> Screen<W> {
    /// Takes the terminal behind `open`.
    pub fn take(open: fn() -> W) -> io::Result<Self>
    where
        W: 'static,
    {
        let stdin = io::stdin();
        let tty = if stdin.is_terminal() {
            File::from(stdin.as_fd().try_clone_to_owned()?)
        } else {
            File::open("/dev/tty")?
        };
        let before = tcgetattr(&tty)?;
        let mut raw = before.clone();
        raw.make_raw();
        *TAKEN.lock() = Some((tty.try_clone()?, before));
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |why| {
            give_back(open);
            hook(why);
        }));
        let taken = (|| {
            tcsetattr(&tty, OptionalActions::Now, &raw)?;
            let mut out = open();
            out.write_all(b"\x1b[?1049h").and_then(|()| out.flush())?;
            let mut terminal = Terminal::new(Ansi::new(out, tty.try_clone()?))?;
            terminal.hide_cursor()?;
            let size = terminal.size()?;
            Ok(Self { terminal, open, tty, size })
        })();
        taken.inspect_err(|_| give_back(open))
    }

    /// Draws. Returns false if a panic has restored the terminal.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<bool> {
        if TAKEN.lock().is_none() {
            return Ok(false);
        }
        self.terminal.draw(draw)?;
        Ok(true)
    }

    /// Waits for keys up to `patience`; `None` if the terminal is gone.
    pub fn keys(&mut self, most: Duration) -> Option<Vec<Key>> {
        let mut ready = [PollFd::new(&self.tty, PollFlags::IN)];
        // A signal may end the wait early.
        let _ = poll(&mut ready, most.try_into().ok().as_ref());
        let events = ready[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            return None;
        }
        let mut bytes = [0; 256];
        if !events.contains(PollFlags::IN) {
            return Some(Vec::new());
        }
        match self.tty.read(&mut bytes) {
            Ok(0) => None,
            Ok(length) => Some(keys(&bytes[..length])),
            Err(error) => (error.kind() == Interrupted).then(Vec::new),
        }
    }

    /// Returns whether the terminal's size has changed since the last call.
    pub fn resized(&mut self) -> io::Result<bool> {
        let size = self.terminal.size()?;
        Ok(std::mem::replace(&mut self.size, size) != size)
    }

    /// Redraws everything next time: another program may have written to the terminal.
    pub fn clear(&mut self) -> io::Result<()> {
        // `clear` would ask the terminal for its cursor, and fail without an answer.
        self.terminal.resize(self.size.into())
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        give_back(self.open);
    }
}

fn give_back<W: Write>(open: fn() -> W) {
    let taken = TAKEN.lock().take();
    if let Some((tty, before)) = taken {
        // The terminal may be gone.
        let _ = tcsetattr(&tty, OptionalActions::Now, &before);
        let mut out = open();
        let _ = out.write_all(b"\x1b[?1049l\x1b[?25h").and_then(|()| out.flush());
    }
}
