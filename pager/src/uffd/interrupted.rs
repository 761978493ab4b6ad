//! Reads of a userfaultfd on kernels before 6.10, where no flag of a single read keeps it from waiting.
//!
//! There a read waits for an event if `O_NONBLOCK` is clear. The flag belongs to the open file, which the guest's
//! process shares, so it may clear the flag between any check and the read. A signal ends such a wait. A timer sends it
//! to the reading thread again and again until the read has returned, so a signal that arrives just before the read is
//! no loss. The signal's handler does nothing, and the kernel does not restart the read.

use super::abi::Message;
use std::cell::OnceCell;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

/// Longest wait of a read, about: the period of the timer.
const PERIOD: Duration = Duration::from_millis(10);

thread_local! {
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// Reads events into `messages`. Waits for at most about [`PERIOD`]. Returns the number of bytes.
///
/// # Errors
/// `Interrupted`: there was no event in that time. Others: the kernel's.
pub fn read(fd: BorrowedFd, messages: &mut [Message]) -> io::Result<usize> {
    TIMER.with(|timer| {
        if timer.get().is_none()
            && let Ok(made) = Timer::new()
        {
            _ = timer.set(made);
        }
        let Some(timer) = timer.get() else {
            // The user has no timer left for now. The events wait.
            std::thread::sleep(PERIOD);
            return Err(io::ErrorKind::WouldBlock.into());
        };
        timer.set(PERIOD)?;
        let size = size_of_val(messages);
        // SAFETY: the kernel writes at most so many bytes there, and any bytes are messages.
        let got = unsafe { libc::read(fd.as_raw_fd(), messages.as_mut_ptr().cast(), size) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error());
        timer.set(Duration::ZERO)?;
        got
    })
}

/// A timer that sends the signal to the thread that made it.
struct Timer(libc::timer_t);

impl Timer {
    fn new() -> io::Result<Self> {
        let signal = signal()?;
        // SAFETY: the sets and the event are plain numbers, for which zeros are valid. The calls read and write only these
        // values, and the new mask only lets the signal in, whose handler does nothing.
        unsafe {
            let mut set = zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut());
            let mut event = zeroed::<libc::sigevent>();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = MaybeUninit::uninit();
            match libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) {
                0 => Ok(Self(timer.assume_init())),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// Sends the signal after each such time. Zero: no more.
    fn set(&self, period: Duration) -> io::Result<()> {
        let time = libc::timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
        let time = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer exists until this value is dropped, and the call reads the times.
        let answer = unsafe { libc::timer_settime(self.0, 0, &raw const time, null_mut()) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: nothing uses the timer any more.
        _ = unsafe { libc::timer_delete(self.0) };
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// Returns the signal: the last real-time signal that this process left unused. Sets its handler.
fn signal() -> io::Result<libc::c_int> {
    static SIGNAL: OnceLock<Option<libc::c_int>> = OnceLock::new();
    let found = SIGNAL.get_or_init(|| {
        (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|signal| {
            // SAFETY: actions are plain numbers, for which zeros are valid. The calls read and write only these values. The
            // handler does nothing, and is set only for a signal that would otherwise end the process.
            unsafe {
                let mut before = zeroed::<libc::sigaction>();
                if libc::sigaction(*signal, std::ptr::null(), &raw mut before) != 0
                    || before.sa_sigaction != libc::SIG_DFL
                {
                    return false;
                }
                let mut action = zeroed::<libc::sigaction>();
                action.sa_sigaction = ignore as *const () as usize;
                libc::sigaction(*signal, &raw const action, null_mut()) == 0
            }
        })
    });
    found.ok_or_else(|| io::Error::other("every real-time signal of this process is in use"))
}
