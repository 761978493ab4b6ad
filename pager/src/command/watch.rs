//! Watches a worker for the log, and finds the address of its metrics.

use super::events::Event;
use super::log::{say, say_omitted};
use serde_json::json;
use slat_pager::{Cache, GuestStats, Monitor, PATIENCE, Request, WaitingGuest, WorkerError, ask, daemons};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Period of the watch.
const PERIOD: Duration = Duration::from_secs(1);
/// Time after which a line is repeated while its reason lasts.
const AGAIN: Duration = Duration::from_secs(60);

/// Answers requests for metrics at this address. If another process listens there, the log says so, and the address is
/// taken when it is free. A daemon that takes no further guest gives it away when it is asked at its control socket.
pub fn listen(monitor: &Monitor, address: &str, control: Option<&Path>) -> std::io::Result<()> {
    match monitor.listen(address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            say(Event::NoMetrics, serde_json::json!({ "error": error.to_string() }));
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
                say(Event::Metrics, serde_json::json!({ "address": address }));
            })?;
            Ok(())
        }
        listens => listens,
    }
}

/// Logs what lasts: guests that wait, a store that is down, lost chunks, and an old lease. A thread of its own looks every
/// second. Without the thread only the metrics show it.
pub fn watch(monitor: Monitor) {
    let look = move || {
        let mut told = Told::default();
        loop {
            std::thread::sleep(PERIOD);
            told.look(&monitor);
            say_omitted();
        }
    };
    _ = std::thread::Builder::new().name("watch".into()).spawn(look);
}

/// When each thing was logged.
#[derive(Default)]
struct Told {
    guests: HashMap<u64, Instant>,
    is_down: bool,
    /// Lost chunks of a template.
    lost: HashMap<String, u64>,
    lease: Option<Instant>,
}

fn is_due(told: Option<&Instant>) -> bool {
    told.is_none_or(|told| told.elapsed() > AGAIN)
}

impl Told {
    fn look(&mut self, monitor: &Monitor) {
        self.store(monitor);
        for loss in monitor.losses() {
            let before = self.lost.insert(loss.template.clone(), loss.lost).unwrap_or_default();
            if loss.lost > before {
                say(
                    Event::Lost,
                    json!({ "template": loss.template, "chunks": loss.lost, "error": loss.error }),
                );
            }
        }
        let age = monitor.lease().age.unwrap_or_default();
        if age > PATIENCE / 6 && is_due(self.lease.as_ref()) {
            self.lease = Some(Instant::now());
            say(Event::LeaseOld, json!({ "age": age.as_secs(), "error": monitor.store_failure() }));
        }
        // After the reasons.
        self.guests(monitor);
    }

    fn guests(&mut self, monitor: &Monitor) {
        let waiting = monitor.waiting();
        self.guests.retain(|guest, _| {
            let waits = waiting.iter().any(|other| other.guest == *guest);
            if !waits {
                say(Event::GoesOn, json!({ "guest": guest }));
            }
            waits
        });
        for WaitingGuest { guest, pid, faults, oldest, reason, .. } in waiting {
            if is_due(self.guests.get(&guest)) {
                self.guests.insert(guest, Instant::now());
                let seconds = oldest.as_secs();
                say(
                    Event::Waits,
                    json!({ "guest": guest, "pid": pid, "faults": faults, "seconds": seconds, "for": reason }),
                );
            }
        }
    }

    fn store(&mut self, monitor: &Monitor) {
        let is_down = monitor.store().is_some_and(|store| store.is_down);
        if is_down != self.is_down {
            self.is_down = is_down;
            if is_down {
                say(Event::StoreDown, json!({ "error": monitor.store_failure() }));
            } else {
                say(Event::StoreUp, json!({}));
            }
        }
    }
}

/// Logs one line for a guest that ended, or was refused.
pub fn told(guest: u64, pid: i32, end: Result<GuestStats, WorkerError>, cache: &Cache) {
    match end {
        Ok(stats) => {
            let cache = cache.stats();
            say(
                Event::Ended,
                json!({ "guest": guest, "pid": pid, "end": "gone", "stats": stats, "cache": cache }),
            );
        }
        Err(error) => {
            say(Event::Refused, json!({ "guest": guest, "pid": pid, "refused": error.to_string() }));
        }
    }
}
