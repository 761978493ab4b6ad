//! The events of a worker in the log, and the address of its metrics.

use super::log::say;
use slat_pager::{Cache, GuestStats, Monitor, Request, WorkerError, ask, daemons};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Answers requests for metrics at this address. If another process listens there, the log says so, and the address is
/// taken when it is free. A daemon that takes no further guest gives it away when it is asked at its control socket.
pub fn listen(monitor: &Monitor, address: &str, control: Option<&Path>) -> std::io::Result<()> {
    match monitor.listen(address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            say("no metrics yet", serde_json::json!({ "error": error.to_string() }));
            let (monitor, address) = (monitor.clone(), address.to_owned());
            let control = control.map(PathBuf::from);
            std::thread::Builder::new().name("metrics".into()).spawn(move || {
                while monitor.listen(&address).is_err() {
                    for daemon in control.iter().flat_map(|control| daemons(control)) {
                        // Also this daemon, which refuses it.
                        _ = ask(&daemon, &Request::Yield, Some(Duration::from_secs(1)));
                    }
                    std::thread::sleep(Duration::from_secs(1));
                }
                say("metrics", serde_json::json!({ "address": address }));
            })?;
            Ok(())
        }
        listens => listens,
    }
}

/// Logs each guest that begins to wait for the store or for memory, with the reason, again every minute, and when it
/// goes on. A thread of its own looks every second.
pub fn tell_waiting(monitor: Monitor) {
    let look = move || {
        let mut told: HashMap<u64, Instant> = HashMap::new();
        loop {
            std::thread::sleep(Duration::from_secs(1));
            tell_refusals(false);
            let waiting = monitor.waiting();
            told.retain(|guest, _| {
                let waits = waiting.iter().any(|(other, ..)| other == guest);
                if !waits {
                    say("goes on", serde_json::json!({ "guest": guest }));
                }
                waits
            });
            for (guest, pid, faults, reason) in waiting {
                if told.get(&guest).is_none_or(|told| told.elapsed() > Duration::from_secs(60)) {
                    told.insert(guest, Instant::now());
                    let line =
                        serde_json::json!({ "guest": guest, "pid": pid, "faults": faults, "for": reason });
                    say("waits", line);
                }
            }
        }
    };
    // Without the thread only the metrics show it.
    _ = std::thread::Builder::new().name("waits".into()).spawn(look);
}

/// Logs one line for a guest that ended.
pub fn told(guest: u64, pid: i32, end: Result<GuestStats, WorkerError>, cache: &Cache) {
    match end {
        Ok(stats) => say(
            "ended",
            serde_json::json!({ "guest": guest, "pid": pid, "end": "gone", "stats": stats, "cache": cache.stats() }),
        ),
        Err(error) => {
            let Some(more) = refusals() else { return };
            let mut line = serde_json::json!({ "guest": guest, "pid": pid, "refused": error.to_string() });
            if more > 0 {
                line["more"] = more.into();
            }
            say("refused", line);
        }
    }
}

/// Most refusals that are logged in a second.
const MOST: usize = 20;

/// The refusals since an instant.
static COUNTED: Mutex<Option<(Instant, usize)>> = Mutex::new(None);

/// Logs the number of the refusals that were not logged, when no further one says it; or now.
pub fn tell_refusals(now: bool) {
    let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((since, count)) = &mut *counted else { return };
    if *count > MOST && (now || since.elapsed() > Duration::from_secs(1)) {
        say("refused", serde_json::json!({ "more": *count - MOST }));
        *count = MOST;
    }
}

/// Counts a refusal. Returns whether to log it, with the number of those before it that were not logged: a process that
/// is refused again and again must not fill the log.
fn refusals() -> Option<usize> {
    let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let (since, count) = counted.get_or_insert_with(|| (Instant::now(), 0));
    let mut more = 0;
    if since.elapsed() > Duration::from_secs(1) {
        more = count.saturating_sub(MOST);
        (*since, *count) = (Instant::now(), 0);
    }
    *count += 1;
    (*count <= MOST).then_some(more)
}
