//! The terminal, taken for a screen and given back whatever happens: at the end, on an error, and when any thread panics,
//! before it says why.

use ratatui_core::terminal::{Frame, Terminal};
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Whether the terminal is a screen now.
// ORDER(screen): SeqCst: whoever takes it back finds it taken once. It happens twice in a lifetime.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// See the module's header.
pub struct Screen<W: Write> {
    terminal: Terminal<CrosstermBackend<W>>,
    open: fn() -> W,
    /// Where keys come from, if it is not standard input.
    keys: Option<File>,
}

impl<W: Write> Screen<W> {
    /// Takes the terminal that `open` writes to.
    pub fn take(open: fn() -> W) -> io::Result<Self>
    where
        W: 'static,
    {
        crate::interrupt::hear_all();
        enable_raw_mode()?;
        // ORDER(screen): see above.
        TAKEN.store(true, SeqCst);
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |why| {
            give_back(open);
            before(why);
        }));
        let taken = execute!(open(), EnterAlternateScreen).and_then(|()| {
            let mut terminal = Terminal::new(CrosstermBackend::new(open()))?;
            terminal.hide_cursor()?;
            let keys = if io::stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
            Ok(Self { terminal, open, keys })
        });
        taken.inspect_err(|_| give_back(open))
    }

    /// Draws, unless a panic has taken the terminal back: then it says so.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<bool> {
        // ORDER(screen): see above.
        if !TAKEN.load(SeqCst) {
            return Ok(false);
        }
        self.terminal.draw(draw)?;
        Ok(true)
    }

    /// Waits for a key, so long at most; false where the terminal is gone. Whoever asks for keys of one that is not there
    /// waits for ever, so this comes first.
    pub fn wait(&self, most: Duration) -> bool {
        let fd = self.keys.as_ref().map_or(libc::STDIN_FILENO, AsRawFd::as_raw_fd);
        let mut keys = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, as it is told. A signal ends it sooner, which is no harm.
        unsafe { libc::poll(&raw mut keys, 1, most.as_millis() as libc::c_int) };
        keys.revents & (libc::POLLHUP | libc::POLLERR) == 0
    }

    /// Forgets what is on the terminal: others may have written to it.
    pub fn clear(&mut self) -> io::Result<()> {
        // Not `clear`, which asks the terminal where its cursor is, and fails where there is no answer.
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        give_back(self.open);
    }
}

fn give_back<W: Write>(open: fn() -> W) {
    // ORDER(screen): see above.
    if TAKEN.swap(false, SeqCst) {
        // There is nobody left to tell of an error.
        let _ = disable_raw_mode();
        let _ = execute!(open(), LeaveAlternateScreen, Show);
    }
}
