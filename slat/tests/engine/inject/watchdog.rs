//! A watchdog: a hang is an error, not an endless test.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Nothing here takes a second, on a quiet machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `work`; if it does not end, ends the process, naming `what` it was.
pub fn guarded<R>(what: &str, work: impl FnOnce() -> R) -> R {
    let bark = || {
        eprintln!("{what}: a thread waits for ever");
        std::process::abort();
    };
    watched(LIMIT, bark, work)
}

/// Runs `work`; if it takes longer than `limit`, calls `bark`.
fn watched<R>(limit: Duration, bark: impl FnOnce() + Send, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (works, over) = channel::<()>();
        scope.spawn(move || {
            if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                bark();
            }
        });
        // Disconnected when the work ends, also by a panic.
        let _works = works;
        work()
    })
}

#[test]
fn negative_control_it_barks_at_what_hangs() {
    let (barks, barked) = channel();
    // This work ends after the bark, and not before.
    let heard = watched(Duration::from_millis(1), move || barks.send(()).unwrap(), || barked.recv());
    assert_eq!(heard, Ok(()));
}

#[test]
fn the_watchdog_is_silent_when_the_work_ends() {
    assert_eq!(watched(LIMIT, || unreachable!("nothing hangs"), || 5), 5);
}
