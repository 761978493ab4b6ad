//! A store that fails, hangs, or is down. Tests of time use a clock that only the calls move.

use crate::daemon::{folder, library};
use crate::snapshot::Full;
use slat_pager::*;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A clock that moves only by threads that sleep.
#[derive(Default)]
struct Hand(AtomicU64);

impl Hand {
    fn forward(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.forward(time);
    }
}

fn fails() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "on purpose")
}

/// Makes a template of one page. Returns its chunk, and the folder.
fn chunk(name: &str) -> (std::path::PathBuf, String) {
    let folder = folder(name);
    let library = library(&folder);
    library.snapshot("a", &*vec![7; PAGE], PAGE as u64, PAGE).unwrap();
    let key = library.open("a").unwrap().chunks()[0].unwrap().key();
    (folder, key)
}

fn options(edit: impl Fn(&mut SteadyOptions)) -> SteadyOptions {
    let mut options = SteadyOptions::default();
    options.hedge = None;
    edit(&mut options);
    options
}

#[test]
fn a_read_that_fails_is_made_again_after_longer_and_longer_pauses() {
    let (folder, key) = chunk("again");
    let (clock, calls) = (Arc::new(Hand::default()), Arc::new(Mutex::new(Vec::new())));
    let (theirs, noted) = (clock.clone(), calls.clone());
    let trouble = Trouble::calling(Folder::open(folder.join("store")).unwrap(), move |_| {
        let mut calls = noted.lock().unwrap();
        calls.push(theirs.now());
        if calls.len() < 4 { Err(fails()) } else { Ok(()) }
    });
    let steady = Steady::by(trouble, options(|_| {}), clock);
    assert!(steady.get(&key, PAGE).is_ok());
    let calls = calls.lock().unwrap().clone();
    let pauses: Vec<_> =
        calls.windows(2).map(|calls| calls[1].saturating_sub(calls[0]).as_millis()).collect();
    let (lows, highs) = ([10, 20, 40], [20, 40, 80]);
    assert!((0..3).all(|call| (lows[call]..=highs[call]).contains(&pauses[call])), "{pauses:?}");
    let stats = steady.stats();
    assert_eq!((stats.reads, stats.failures, stats.retries, stats.breaks), (1, 3, 3, 0));
    // A missing object is requested once.
    assert!(matches!(steady.get("chunks/none", PAGE), Err(StoreError::Missing(_))));
    assert_eq!(steady.stats().retries, 3);
    std::fs::remove_dir_all(folder).unwrap();
}

/// While the store is down for a minute, one of 60 threads requests a chunk every 10 ms. Returns the number of requests
/// at the store, and the time after the minute until a thread has its chunk.
fn down_for_a_minute(name: &str, break_after: u32) -> (u32, Duration) {
    let (folder, key) = chunk(name);
    let (clock, asked) = (Arc::new(Hand::default()), Arc::new(AtomicU32::new(0)));
    let (theirs, minute) = (clock.clone(), Duration::from_secs(60));
    let noted = asked.clone();
    let trouble = Trouble::calling(Folder::open(folder.join("store")).unwrap(), move |_| {
        noted.fetch_add(1, Ordering::Relaxed);
        if theirs.now() < minute { Err(fails()) } else { Ok(()) }
    });
    let steady = Steady::by(trouble, options(|options| options.break_after = break_after), clock.clone());
    while steady.get(&key, PAGE).is_err() {
        clock.forward(Duration::from_millis(10));
    }
    assert!(!steady.stats().is_down);
    std::fs::remove_dir_all(folder).unwrap();
    (asked.load(Ordering::Relaxed), clock.now().saturating_sub(minute))
}

#[test]
fn a_store_that_is_down_is_asked_seldom_and_used_soon_after_it_is_back() {
    let (asked, late) = down_for_a_minute("down", 10);
    assert!(asked < 60 && late <= Duration::from_secs(3), "{asked} times, {late:?}");
    let (asked, _) = down_for_a_minute("down-unbroken", u32::MAX);
    assert!(asked > 500, "{asked} times without the breaker");
}

/// The first of every two reads hangs until there is a second one, or for half a second. Returns whether all were
/// answered.
fn is_hedged(name: &str, hedge: Option<Duration>) -> (bool, StoreStats) {
    let (folder, key) = chunk(name);
    let state = Arc::new((Mutex::new(0), Condvar::new()));
    let trouble = Trouble::calling(Folder::open(folder.join("store")).unwrap(), move |_| {
        let (reads, changed) = &*state;
        let mut reads = reads.lock().unwrap();
        *reads += 1;
        changed.notify_all();
        if *reads % 2 == 0 {
            return Ok(());
        }
        let own = *reads;
        let wait = Duration::from_millis(500);
        let timed_out = changed.wait_timeout_while(reads, wait, |reads| *reads == own).unwrap().1.timed_out();
        // The second read answers first.
        std::thread::sleep(Duration::from_millis(50));
        if timed_out { Err(fails()) } else { Ok(()) }
    });
    let steady = Steady::new(trouble, options(|options| (options.hedge, options.tries) = (hedge, 1)));
    let answered = (0..3).all(|_| steady.get(&key, PAGE).is_ok());
    let stats = steady.stats();
    std::fs::remove_dir_all(folder).unwrap();
    (answered, stats)
}

#[test]
fn a_read_that_hangs_is_made_twice() {
    let (answered, stats) = is_hedged("hedged", Some(Duration::from_millis(1)));
    assert!(answered && stats.hedges == 3 && stats.hedges_won == 3 && stats.failures == 0, "{stats:?}");
    let (answered, stats) = is_hedged("unhedged", None);
    assert!(!answered && stats.hedges == 0, "{stats:?}");
}

#[test]
fn a_full_store_is_no_store_that_is_down() {
    let (folder, key) = chunk("full");
    let full = Full(Folder::open(folder.join("store")).unwrap(), Arc::new(AtomicBool::new(true)));
    let clock = Arc::new(Hand::default());
    let steady = Steady::by(full, options(|options| options.break_after = 3), clock.clone());
    for _ in 0..20 {
        let error = steady.put("chunks/a", b"a").unwrap_err().to_string();
        assert!(!error.contains("out of reach"), "{error}");
        assert!(steady.get(&key, PAGE).is_ok(), "reads go on");
    }
    let stats = steady.stats();
    assert_eq!((stats.breaks, stats.retries, stats.refused), (0, 0, 0));
    assert_eq!(clock.now(), Duration::ZERO, "no call waited");
    std::fs::remove_dir_all(folder).unwrap();
}
