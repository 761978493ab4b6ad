//! The log: lines of JSON on standard error. A thread of its own writes them, so that a reader that stands still stops
//! nothing else: not the keeper, which must see the requests to end, and no guest.

use super::events::Event;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most lines that wait for the reader; further ones are counted.
const MOST_LINES: usize = 4096;
/// Most lines of one event in a second, except of [`Event::Ended`]: each guest has one of those.
const MOST_OF_EVENT: usize = 20;
const MOST_ENDED: usize = 1000;
const SECOND: Duration = Duration::from_secs(1);
/// Time in which the reader takes the last lines.
const PATIENCE: Duration = Duration::from_secs(1);

static LOST: AtomicUsize = AtomicUsize::new(0);
/// The way to the thread. `None`: it could not be started.
static LINES: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();

enum Message {
    Line(String),
    /// Everything before it was written.
    Written(SyncSender<()>),
}

fn start() -> Option<SyncSender<Message>> {
    let (send, lines) = sync_channel(MOST_LINES);
    std::thread::Builder::new().name("log".into()).spawn(move || write(&lines)).ok().map(|_| send)
}

/// Writes the lines. An error is ignored, so that guests are served without a reader of the log.
fn write(lines: &Receiver<Message>) {
    for message in lines {
        match message {
            Message::Line(line) => {
                // In one call: keeper and worker share the file.
                _ = std::io::stderr().write_all(line.as_bytes());
                let lost = LOST.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    _ = std::io::stderr().write_all(
                        line_of(Event::LostLines, serde_json::json!({ "lines": lost })).as_bytes(),
                    );
                }
            }
            Message::Written(told) => _ = told.send(()),
        }
    }
}

/// The lines of an event in the current second.
#[derive(Clone, Copy)]
struct Limit {
    since: Option<Instant>,
    lines: usize,
    omitted: usize,
}

static LIMITS: Mutex<[Limit; Event::ALL.len()]> =
    Mutex::new([Limit { since: None, lines: 0, omitted: 0 }; Event::ALL.len()]);

impl Limit {
    /// Counts a line. Returns whether to write it.
    fn take(&mut self, now: Instant, most: usize) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= SECOND) {
            (self.since, self.lines) = (Some(now), 0);
        }
        self.lines += 1;
        self.omitted += usize::from(self.lines > most);
        self.lines <= most
    }
}

/// Writes a line of the log: JSON with the time and the event. Omits it if the event had too many lines in this second.
pub fn say(event: Event, line: serde_json::Value) {
    let most = if event == Event::Ended { MOST_ENDED } else { MOST_OF_EVENT };
    let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
    if limits[event as usize].take(Instant::now(), most) {
        drop(limits);
        send(line_of(event, line));
    }
}

/// Writes how many lines were omitted since the last call. Called every second.
pub fn say_omitted() {
    for event in Event::ALL {
        let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let omitted = std::mem::take(&mut limits[*event as usize].omitted);
        drop(limits);
        if omitted > 0 {
            let line = serde_json::json!({ "of": event.name(), "lines": omitted });
            send(line_of(Event::Omitted, line));
        }
    }
}

fn send(line: String) {
    match LINES.get_or_init(start) {
        Some(lines) => {
            if lines.try_send(Message::Line(line)).is_err() {
                LOST.fetch_add(1, Ordering::Relaxed);
            }
        }
        None => _ = std::io::stderr().write_all(line.as_bytes()),
    }
}

fn line_of(event: Event, mut line: serde_json::Value) -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    line["time"] = (time.as_millis() as f64 / 1e3).into();
    line["event"] = event.name().into();
    format!("{line}\n")
}

/// Writes the error with which the process ends, after the lines so far. If the reader takes none, it is lost.
pub fn last(line: String) {
    flush();
    let (send, written) = sync_channel(1);
    let write = move || {
        _ = std::io::stderr().write_all(line.as_bytes());
        send.send(())
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        _ = written.recv_timeout(PATIENCE);
    }
}

/// Waits until the lines so far are written, for a second at most.
pub fn flush() {
    let until = Instant::now() + PATIENCE;
    let Some(lines) = LINES.get().and_then(Option::as_ref) else { return };
    let (send, written) = sync_channel(1);
    while lines.try_send(Message::Written(send.clone())).is_err() {
        if Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
}
