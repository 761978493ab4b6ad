//! Threads: how they are started and waited for, and what those need that run software vCPUs.

use crate::error::{self, Error};
use slat::{Idle, Level};
use slat_mm::Arena;
use slat_vcpu::Window;
use std::io;
use std::panic::resume_unwind;
use std::thread::{self, Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread. Where the system has none to give, the process ends: what waits for this thread would wait for ever.
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    room().and_then(|()| Builder::new().spawn_scoped(scope, work)).unwrap_or_else(|error| none(&error))
}

/// The same for one that may outlive its maker.
pub fn start_free<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    room().and_then(|()| Builder::new().spawn(work)).unwrap_or_else(|error| none(&error))
}

/// Whether there is memory for a stack of 2 MiB, and for what the standard library asks for in a thread that has begun:
/// where that is refused, it aborts the process.
fn room() -> io::Result<()> {
    Vec::<u8>::new().try_reserve_exact(3 << 20).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

fn none(error: &io::Error) -> ! {
    error::end(&Error::Machine(format!("no thread more can be started: {error}")))
}

/// This thread's.
pub fn idle() -> Result<Idle, Error> {
    Idle::take().ok_or_else(|| Error::Machine("a thread has one vCPU at a time".into()))
}

/// The frames of an arena, for vCPUs that run while it lives.
pub fn window(arena: &Arena) -> Window {
    // SAFETY: the arena's mapping, which whoever runs vCPUs on it keeps; its frames are raw memory.
    unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) }
}

/// What a thread returned. Its panic goes on here.
pub fn joined<T>(thread: thread::Result<T>) -> T {
    thread.unwrap_or_else(|panic| resume_unwind(panic))
}
