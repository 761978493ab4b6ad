//! What every thread that runs software vCPUs needs, and whoever waits for it.

use crate::error::Error;
use slat::{Idle, Level};
use slat_mm::Arena;
use slat_vcpu::Window;
use std::panic::resume_unwind;
use std::thread;

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
