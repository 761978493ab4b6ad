//! `top`: shows a daemon, live.

use super::failure::{Failure, other};
use slat_pager::{Moment, Serving};
use std::io::{IsTerminal, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The daemon to watch.
#[derive(clap::Args)]
pub struct Top {
    /// The address of `serve --metrics`
    address: String,
    /// Milliseconds between two samples
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    interval_ms: u64,
    /// Number of samples. 0: until it is interrupted
    #[arg(long, default_value_t = 0)]
    samples: u64,
}

impl Top {
    pub fn run(&self) -> Result<(), Failure> {
        let mut before = self.look()?;
        print(&before, None, 0.0);
        let mut samples = 1;
        while samples != self.samples {
            std::thread::sleep(Duration::from_millis(self.interval_ms));
            // Between a kill and the next worker no process answers.
            let Ok(now) = self.look() else {
                println!("no worker answers");
                continue;
            };
            print(&now, Some(&before), self.interval_ms as f64 / 1e3);
            before = now;
            samples += 1;
        }
        Ok(())
    }

    fn look(&self) -> Result<Moment, Failure> {
        let named = |error: std::io::Error| other(format!("{}: {error}", self.address));
        let answer = if self.address.contains('/') {
            UnixStream::connect(&self.address).and_then(ask)
        } else {
            TcpStream::connect(&self.address).and_then(ask)
        };
        let answer = answer.map_err(named)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body)
            .map_err(|error| other(format!("{} answers something else: {error}", self.address)))
    }
}

fn ask(mut stream: impl Read + Write) -> std::io::Result<String> {
    stream.write_all(b"GET /state HTTP/1.1\r\nHost: pager\r\n\r\n")?;
    std::io::read_to_string(stream)
}

fn faults(guest: &Serving) -> u64 {
    guest.stats.latency.iter().map(|(_, latency)| latency.count).sum()
}

fn print(now: &Moment, before: Option<&Moment>, seconds: f64) {
    if std::io::stdout().is_terminal() {
        // Moves the cursor home and clears the screen.
        print!("\x1b[H\x1b[2J");
    }
    // A new worker counts from zero.
    let before = before.filter(|before| before.worker == now.worker);
    let rate =
        |now: u64, then: u64| now.saturating_sub(then) as f64 / if seconds > 0.0 { seconds } else { 1.0 };
    let cache = &now.cache;
    let share = 100.0 * cache.hits as f64 / (cache.hits + cache.misses).max(1) as f64;
    println!(
        "worker {}: {} guests, {} ended; cache {} MiB, {share:.0}% of {} look-ups hit",
        now.worker,
        now.guests.len(),
        now.ended,
        cache.bytes >> 20,
        cache.hits + cache.misses
    );
    if let Some(store) = &now.store {
        let then = before.and_then(|before| before.store).unwrap_or_default();
        println!(
            "store {}: {:.0} reads/s, {:.1} MiB/s; {} failures, {} retries, {} hedges ({} won), {} breaks",
            if store.is_down { "DOWN" } else { "up" },
            rate(store.reads, then.reads),
            rate(store.bytes, then.bytes) / f64::from(1 << 20),
            store.failures,
            store.retries,
            store.hedges,
            store.hedges_won,
            store.breaks
        );
    }
    for loss in now.losses.iter().filter(|loss| loss.lost > 0) {
        println!("{}: {} chunks are LOST: {}", loss.template, loss.lost, loss.error);
    }
    println!(
        "{:>6} {:>8} {:<20} {:>9} {:>9} {:>9} {:>9} {:>7} {:>10} {:>10}",
        "guest",
        "pid",
        "template",
        "faults/s",
        "pages",
        "ahead",
        "removals",
        "waits",
        "p99 cache",
        "p99 store"
    );
    for guest in &now.guests {
        let then = before.and_then(|before| before.guests.iter().find(|other| other.guest == guest.guest));
        let p99 = |name: &str| {
            let latency =
                guest.stats.latency.iter().find(|(source, latency)| source == name && latency.count > 0);
            latency.map_or("-".into(), |(_, latency)| format!("{:.1?}", Duration::from_nanos(latency.p99)))
        };
        let waits = if guest.stats.waiting == 0 { "-".into() } else { format!("{:.1} s", guest.oldest) };
        println!(
            "{:>6} {:>8} {:<20} {:>9.0} {:>9} {:>9} {:>9} {:>7} {:>10} {:>10}",
            guest.guest,
            guest.pid,
            guest.template,
            rate(faults(guest), then.map_or(0, faults)),
            guest.stats.filled,
            guest.stats.ahead,
            guest.stats.removes,
            waits,
            p99("cache"),
            p99("store")
        );
    }
}
