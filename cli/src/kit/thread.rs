//! Threads: start, stop and join them, and prepare them to run a software vCPU.

use crate::error::{self, Error};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use slat::{Idle, Level};
use slat_mm::Arena;
use slat_vcpu::Window;
use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, Builder, JoinHandle, Scope, ScopedJoinHandle};
use std::time::Duration;

/// Starts a thread. If the system refuses, the process ends: other threads would wait for this one without end.
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new().spawn_scoped(scope, work).unwrap_or_else(|error| none(&error))
}

/// Starts a thread that may outlive its caller.
pub fn start_free<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).unwrap_or_else(|error| none(&error))
}

/// A thread that works until this value is dropped or [stopped](Self::stop).
#[must_use = "dropping it ends the thread's work"]
pub struct Worker<'scope, T> {
    /// Closed when the thread is to stop.
    keep: SyncSender<()>,
    thread: ScopedJoinHandle<'scope, T>,
}

/// The stop signal of a [`Worker`]'s thread.
#[derive(Debug)]
pub struct Stop(Receiver<()>);

/// Starts a thread that works until it is told to stop.
pub fn start_worker<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce(Stop) -> T + Send + 'scope,
) -> Worker<'scope, T> {
    let (keep, stop) = sync_channel(0);
    Worker { keep, thread: start(scope, || work(Stop(stop))) }
}

impl<T> Worker<'_, T> {
    /// Tells the thread to stop, and joins it.
    pub fn stop(self) -> thread::Result<T> {
        drop(self.keep);
        self.thread.join()
    }
}

impl Stop {
    /// Returns whether the thread is to stop.
    pub fn asked(&self) -> bool {
        self.0.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Sleeps for this long, or until the thread is to stop. Returns whether it is.
    pub fn asked_within(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Checks that the limit of address space (`ulimit -v`) leaves room for this many threads. Each thread has a stack of
/// 2 MiB and allocates before its work begins; if that fails, the standard library aborts the process.
pub fn room_for(threads: u32) -> Result<(), Error> {
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let (taken, wanted) = (pages * page_size() as u64, u64::from(threads) * (3 << 20));
    if taken + wanted > limit {
        let mib = wanted >> 20;
        let why = format!("no more threads can be started: {threads} vCPUs need {mib} MiB of address space");
        return Err(Error::Machine(why));
    }
    Ok(())
}

/// Ends the process because no thread could be started.
pub fn none(error: &io::Error) -> ! {
    error::end(&Error::Machine(format!("no more threads can be started: {error}")))
}

/// Takes this thread's idle token.
pub fn idle() -> Result<Idle, Error> {
    Idle::take().ok_or_else(|| Error::Machine("this thread already runs a vCPU".into()))
}

/// The frames of an arena, for vCPUs that the arena outlives.
pub fn window(arena: &Arena) -> Window {
    // SAFETY: the machine keeps the arena's mapping while vCPUs run on it. Its frames are raw memory.
    unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) }
}

/// Returns the thread's result, or continues its panic.
pub fn joined<T>(thread: thread::Result<T>) -> T {
    thread.unwrap_or_else(|panic| resume_unwind(panic))
}
