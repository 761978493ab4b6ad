//! `slat run --migrate-to` and `--migrate-from`: two processes, one guest.

use crate::common::{File, SocketPath, end, refused, start, text};
use crate::run::trace;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Output;
use std::thread::{self, sleep};
use std::time::Duration;

/// The outputs of both processes. The first sends to `to`, the second listens at `from`.
fn migrate([to, from]: [&str; 2], trace: &str, sender: &[&str], receiver: &[&str]) -> [Output; 2] {
    let both = ["--trace", trace, "-v", "2", "-m", "256M", "--json"];
    let receiving = start(&[&both[..], receiver, &["--migrate-from", from]].concat());
    let sending = start(&[&both[..], sender, &["--migrate-to", to]].concat());
    [end(sending, "the sender"), end(receiving, "the receiver")]
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// A guest of two vCPUs that stores to 400 pages repeatedly, and its number of accesses.
fn guest(name: &str) -> (File, u64) {
    let text = trace(400, 60);
    let accesses = 2 * (text.lines().count() as u64 - 1);
    (File::new(name, text.as_bytes()), accesses)
}

#[test]
fn a_guest_goes_on_in_another_process_where_it_left() {
    let ((trace, accesses), socket) = (guest("migrate.trace"), SocketPath::new("move"));
    let [sent, came] =
        migrate([socket.path(); 2], trace.path(), &["--migrate-after", "3"], &["--dirty-log", "bitmap"]);
    assert!(sent.status.success() && came.status.success(), "{} {}", text(&sent.stderr), text(&came.stderr));
    let [sent, came] = [report(&sent), report(&came)];
    assert_eq!(
        number(&sent["accesses"]) + number(&came["accesses"]),
        accesses,
        "none is made twice, none is left out"
    );
    assert!(number(&sent["accesses"]) >= 3 * 16384 && number(&came["accesses"]) > 0);
    let (to, from) = (&sent["migrated_to"], &came["migrated_from"]);
    assert_eq!((&to["to"], &from["at"]), (&socket.path().into(), &socket.path().into()));
    assert!(number(&to["rounds"]) >= 2 && number(&to["bytes"]) > 400 * 4096);
    assert!(number(&from["compared_pages"]) >= 2 * 400);
    assert_eq!((number(&from["wrong_pages"]), number(&came["corrupt_reads"])), (0, 0));
    assert_eq!(number(&came["dirty_log"]["lost_pages"]), 0, "received pages are in the log");
}

/// A proxy that breaks each of the first connections after this many bytes.
fn proxy(listener: &UnixListener, to: &str, breaks: &[usize]) {
    for (stream, most) in listener.incoming().zip(breaks.iter().copied().chain([usize::MAX])) {
        // The receiver may start later.
        let tries =
            (0..500).find_map(|_| UnixStream::connect(to).map_err(|_| sleep(Duration::from_millis(20))).ok());
        let (mut here, mut there) = (stream.unwrap(), tries.expect("a receiver that listens"));
        let (mut back_from, mut back_to) = (there.try_clone().unwrap(), here.try_clone().unwrap());
        let back = thread::spawn(move || std::io::copy(&mut back_from, &mut back_to).map(drop));
        let (mut left, mut buffer) = (most, vec![0; 64 << 10]);
        while left > 0 {
            let room = left.min(buffer.len());
            match here.read(&mut buffer[..room]) {
                Ok(bytes) if bytes > 0 && there.write_all(&buffer[..bytes]).is_ok() => left -= bytes,
                _ => break,
            }
        }
        for stream in [&here, &there] {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = back.join();
        if left > 0 {
            return;
        }
    }
}

#[test]
fn a_connection_that_breaks_five_times_loses_nothing() {
    let ((trace, accesses), own) = (guest("breaks.trace"), SocketPath::new("breaks"));
    let between = SocketPath::new("between");
    let listener = UnixListener::bind(between.path()).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let breaks: Vec<usize> = (0..5).map(|_| random.usize(1..3 << 20)).collect();
    let to = own.path().to_owned();
    let proxied = thread::spawn(move || proxy(&listener, &to, &breaks));
    let [sent, came] = migrate([between.path(), own.path()], trace.path(), &["--migrate-after", "3"], &[]);
    assert!(sent.status.success() && came.status.success(), "{} {}", text(&sent.stderr), text(&came.stderr));
    proxied.join().unwrap();
    let [sent, came] = [report(&sent), report(&came)];
    assert_eq!(number(&sent["accesses"]) + number(&came["accesses"]), accesses);
    assert!(number(&sent["migrated_to"]["failed_rounds"]) >= 1);
    assert_eq!((number(&came["migrated_from"]["wrong_pages"]), number(&came["corrupt_reads"])), (0, 0));
}

/// Passes the first connection to `first` and closes it after the first confirmed round: the receiver has died. Later
/// connections go to `second`.
fn proxy_to_two(listener: &UnixListener, first: &str, second: &str) {
    // Ticket, Begin, Received, Welcome, and the first Received of a round: frames of 24 bytes.
    let mut answers = [5 * 24].into_iter();
    for stream in listener.incoming() {
        let (most, to) = answers.next().map_or((u64::MAX, second), |most| (most, first));
        let tries =
            (0..500).find_map(|_| UnixStream::connect(to).map_err(|_| sleep(Duration::from_millis(20))).ok());
        let (mut here, there) = (stream.unwrap(), tries.expect("a receiver that listens"));
        let (mut up_from, mut up_to) = (here.try_clone().unwrap(), there.try_clone().unwrap());
        let up = thread::spawn(move || {
            let _ = std::io::copy(&mut up_from, &mut up_to);
            let _ = up_to.shutdown(Shutdown::Write);
        });
        let _ = std::io::copy(&mut there.try_clone().unwrap().take(most), &mut here);
        for stream in [&here, &there] {
            let _ = stream.shutdown(Shutdown::Both);
        }
        up.join().unwrap();
        if most == u64::MAX {
            return;
        }
    }
}

#[test]
fn a_receiver_that_is_replaced_gets_the_whole_guest() {
    let ((trace, accesses), first, second) =
        (guest("replaced.trace"), SocketPath::new("first"), SocketPath::new("second"));
    let between = SocketPath::new("between-two");
    let listener = UnixListener::bind(between.path()).unwrap();
    let both = ["--trace", trace.path(), "-v", "2", "-m", "256M", "--json", "--migrate-from"];
    let mut dies = start(&[&both[..], &[first.path()]].concat());
    let to = [first.path().to_owned(), second.path().to_owned()];
    let proxied = thread::spawn(move || proxy_to_two(&listener, &to[0], &to[1]));
    let sender = ["--migrate-after", "3", "--downtime", "1"];
    let [sent, came] = migrate([between.path(), second.path()], trace.path(), &sender, &[]);
    dies.kill().unwrap();
    end(dies, "the first receiver");
    assert!(sent.status.success() && came.status.success(), "{} {}", text(&sent.stderr), text(&came.stderr));
    proxied.join().unwrap();
    let [sent, came] = [report(&sent), report(&came)];
    assert_eq!(number(&sent["accesses"]) + number(&came["accesses"]), accesses);
    assert!(number(&came["migrated_from"]["compared_pages"]) >= 2 * 400);
    assert_eq!((number(&came["migrated_from"]["wrong_pages"]), number(&came["corrupt_reads"])), (0, 0));
}

#[test]
fn negative_control_a_harvest_without_its_flush_is_detected() {
    let (trace, _) = guest("rearm.trace");
    let found = (0..20).any(|_| {
        let socket = SocketPath::new("rearm");
        let sender = ["--migrate-after", "2", "--downtime", "1", "--sabotage-rearm"];
        let [sent, came] = migrate([socket.path(); 2], trace.path(), &sender, &[]);
        // The sender drops all flushes during a harvest, so its own guest may read a stale page, too.
        let codes = [sent.status.code(), came.status.code()];
        assert!(codes.iter().all(|code| matches!(code, Some(0 | 3))), "{codes:?}: {}", text(&sent.stderr));
        codes.contains(&Some(3))
    });
    assert!(found, "no store was lost");
}

#[test]
fn a_guest_that_cannot_migrate_is_one_line() {
    for address in ["", "guest", "localhost:", ":7000", "localhost:70000"] {
        refused(&["--migrate-to", address], b"", "HOST:PORT");
    }
    refused(&["--trace", "-", "--migrate-from", "/nowhere/at/all"], b"", "standard input");
    refused(&["--migrate-from", "/nowhere/at/all"], b"", "--migrate-from /nowhere/at/all: ");
    refused(&["--migrate-to", "./x", "--dirty-log", "ring"], b"", "--dirty-log");
    // Another guest than the expected one.
    let ((trace, accesses), socket) = (guest("other.trace"), SocketPath::new("other"));
    let sender = ["--iterations", "2", "--migrate-after", "3"];
    let [sent, came] = migrate([socket.path(); 2], trace.path(), &sender, &[]);
    assert_eq!((sent.status.code(), came.status.code()), (Some(2), Some(2)), "{}", text(&came.stderr));
    assert!(text(&came.stderr).contains("replays other traces"), "{}", text(&came.stderr));
    let says = text(&sent.stderr);
    assert!(says.contains("--migrate-to") && says.contains("replays other traces"), "{says}");
    assert_eq!(
        number(&report(&sent)["accesses"]),
        2 * accesses,
        "the guest that could not leave ran to its end"
    );
}

#[test]
fn a_receiver_with_less_memory_and_its_sender_say_why() {
    let ((trace, _), socket) = (guest("small.trace"), SocketPath::new("small"));
    let sender = ["--migrate-after", "3"];
    let both = ["--trace", trace.path(), "-v", "2", "--json"];
    let receiving = start(&[&both[..], &["-m", "64M", "--migrate-from", socket.path()]].concat());
    let sending = start(&[&both[..], &sender, &["-m", "256M", "--migrate-to", socket.path()]].concat());
    for output in [end(sending, "the sender"), end(receiving, "the receiver")] {
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("the guest that comes has other memory"),
            "{}",
            text(&output.stderr)
        );
    }
}
