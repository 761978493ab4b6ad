//! The terminal, taken for a screen and given back whatever happens: at the end, on an error, and when any thread panics,
//! before it says why.

use ratatui_core::terminal::{Frame, Terminal};
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::io::{self, Write};
use std::os::fd::RawFd;
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
    /// Which of the standard streams were terminals at the beginning.
    terminals: Vec<RawFd>,
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
            // SAFETY: asks about a number, which need not be a descriptor.
            let terminals = (0..3).filter(|&fd| unsafe { libc::isatty(fd) } == 1).collect();
            Ok(Self { terminal, open, terminals })
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
        let watch = |&fd: &RawFd| {
            let events = if fd == libc::STDIN_FILENO { libc::POLLIN } else { 0 };
            libc::pollfd { fd, events, revents: 0 }
        };
        let mut all: Vec<libc::pollfd> = self.terminals.iter().map(watch).collect();
        // SAFETY: as many structures as it is told of. A signal ends it sooner, which is no harm.
        unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, most.as_millis() as libc::c_int) };
        all.iter().all(|one| one.revents & (libc::POLLHUP | libc::POLLERR) == 0)
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
