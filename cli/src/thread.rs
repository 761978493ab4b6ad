//! Threads: how they are started and waited for, and what those need that run software vCPUs.

use crate::error::{self, Error};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
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
    Builder::new().spawn_scoped(scope, work).unwrap_or_else(|error| none(&error))
}

/// The same for one that may outlive its maker.
pub fn start_free<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).unwrap_or_else(|error| none(&error))
}

/// Whether a limit of address space (`ulimit -v`) leaves room for so many threads: each has a stack of 2 MiB, and asks for more
/// before its work begins. Where it gets none then, the standard library ends the process.
pub fn room_for(threads: u32) -> Result<(), Error> {
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let (taken, wanted) = (pages * page_size() as u64, u64::from(threads) * (3 << 20));
    if taken + wanted > limit {
        let mib = wanted >> 20;
        let why = format!("no thread more can be started: {threads} vCPUs need {mib} MiB of address space");
        return Err(Error::Machine(why));
    }
    Ok(())
}

/// Ends the process, since the system has no thread to give.
pub fn none(error: &io::Error) -> ! {
    error::end(&Error::Machine(format!("no thread more can be started: {error}")))
}

/// This thread's.
pub fn idle() -> Result<Idle, Error> {
    Idle::take().ok_or_else(|| Error::Machine("a thread has one vCPU at a time".into()))
}

/// The frames of an arena, for vCPUs that run while it lives.
pub fn window(arena: &Arena) -> Window {
    // SAFETY: the arena's mapping, which the machine keeps while vCPUs run on it; its frames are raw memory.
    unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) }
}

/// What a thread returned. Its panic goes on here.
pub fn joined<T>(thread: thread::Result<T>) -> T {
    thread.unwrap_or_else(|panic| resume_unwind(panic))
}
