//! Threads that make calls for other threads, so that these need not wait for each call.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// Most threads. Further jobs wait for one.
const MOST: usize = 512;
/// Idle time after which a thread ends.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
pub struct Pool(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Pool {
    /// Runs a job on a thread of the pool.
    ///
    /// # Errors
    /// There is no idle thread, and none can be started.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let (state, work) = &*self.0;
        let mut state = state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle < state.jobs.len() && state.threads < MOST {
            let pool = self.clone();
            let spawned = std::thread::Builder::new().name("store".into()).spawn(move || pool.work());
            match spawned {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.jobs.clear();
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        drop(state);
        work.notify_one();
        Ok(())
    }

    fn work(&self) {
        let (state, work) = &*self.0;
        let mut state = state.lock();
        loop {
            while let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.0.0.lock();
            }
            state.idle += 1;
            let waited = work.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
