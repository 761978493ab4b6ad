//! `slat run` with swap and the LRU's socket: idle guests shrink and continue; files of a killed run do not block the
//! next one; errors are reported.

use crate::common::{
    BOUND, File, SocketPath, command, end, fed, limited, refused, report, slat, slat_with, start, text,
};
use rustix::process::Resource;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

/// Accesses that a run reads before it gives them to its guest.
const BATCH: u64 = 16 << 10;
const PAGES: u64 = 512;

/// A batch of accesses of one kind: pages in turn, each equally often.
fn batch(kind: char, pages: u64) -> String {
    let mut text = String::new();
    for access in 0..BATCH {
        let offset = access / pages * 8 % 4096;
        writeln!(text, " {kind} {:08x},8", 0x400_0000 + access % pages * 4096 + offset).unwrap();
    }
    text
}

/// One store to each of `pages` pages.
fn stores(pages: u64) -> String {
    (0..pages).fold(String::new(), |mut text, page| {
        writeln!(text, " S {:08x},8", 0x400_0000 + page * 4096).unwrap();
        text
    })
}

/// A running guest that has stored to its pages and waits for more of its trace, and a client of its socket.
struct Guest {
    child: Child,
    client: UnixStream,
}

impl Guest {
    fn start(socket: &SocketPath, args: &[&str]) -> Self {
        let mut all = vec!["-t", "-", "--churn", "0", "--json", "--lru-gen", socket.path()];
        all.extend(args);
        let mut child = start(&all);
        // A run reads the first bytes before it builds anything.
        let stores = batch('S', PAGES);
        child.stdin.as_mut().unwrap().write_all(stores.as_bytes()).unwrap();
        let began = Instant::now();
        let client = loop {
            match UnixStream::connect(socket.path()) {
                Ok(client) => break client,
                Err(error) => assert!(began.elapsed() < BOUND, "the socket is not served: {error}"),
            }
            std::thread::yield_now();
        };
        client.set_read_timeout(Some(BOUND)).unwrap();
        Self { child, client }
    }

    fn feed(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// The answer to a line, without its `ok`.
    fn ask(&mut self, line: &str) -> Vec<String> {
        writeln!(self.client, "{line}").unwrap();
        let lines = BufReader::new(&self.client).lines().map(Result::unwrap);
        let answer: Vec<String> = lines
            .take_while(|line| line != "ok")
            .inspect(|line| assert!(!line.starts_with("error"), "{line}"))
            .collect();
        answer
    }

    /// Generations and their anonymous pages, oldest first.
    fn generations(&mut self) -> Vec<(u64, u64)> {
        let lines = self.ask("read").split_off(2);
        let generation = |line: String| {
            let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
            (numbers[0], numbers[2])
        };
        lines.into_iter().map(generation).collect()
    }

    /// Waits until this many pages are resident.
    fn wait_for_pages(&mut self, pages: u64) {
        let began = Instant::now();
        while self.generations().iter().map(|(_, pages)| pages).sum::<u64>() != pages {
            assert!(began.elapsed() < BOUND, "{pages} pages: {:?}", self.generations());
            std::thread::yield_now();
        }
    }

    /// Reclaims every unused page repeatedly until the guest is idle and all of its memory is swapped out.
    fn reclaim(&mut self) {
        let began = Instant::now();
        while self.generations().iter().any(|&(_, pages)| pages > 0) {
            assert!(began.elapsed() < BOUND, "{:?}", self.generations());
            let (youngest, _) = *self.generations().last().unwrap();
            self.ask(&format!("+ 1 0 {youngest}, - 1 0 {}", youngest - 1));
        }
    }

    /// Lets the guest end.
    fn end(self) -> (Option<i32>, String, String) {
        let output = end(self.child, "the guest");
        (output.status.code(), text(&output.stdout).into(), text(&output.stderr).into())
    }
}

#[test]
fn an_idle_guest_shrinks_over_the_socket_and_goes_on_with_its_bytes() {
    let (socket, swap) = (SocketPath::new("shrinks"), File::new("shrinks.swap", b""));
    let other = File::new("shrinks.other", b"");
    let [one, two] = [&swap, &other].map(|file| format!("{},pri=7", file.path()));
    for args in [
        &["--swap", "mem"][..],
        &["--swap", swap.path()],
        &["--swap", &one, "--swap", &two],
        &["--swap", "mem", "--pages", "thp"],
    ] {
        let mut guest = Guest::start(&socket, args);
        guest.wait_for_pages(PAGES);
        guest.reclaim();
        guest.feed(&batch('L', PAGES));
        guest.wait_for_pages(PAGES);
        let (status, out, err) = guest.end();
        assert_eq!((status, err.as_str()), (Some(0), ""), "{args:?}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&report["corrupt_reads"], &report["verified_reads"]), (&0.into(), &BATCH.into()));
        for key in ["swapped_out", "swapped_in", "refaults"] {
            assert!(report[key].as_u64().unwrap() >= PAGES, "{args:?}: {key}");
        }
        let generations = report["generations"].as_array().unwrap();
        let pages: u64 = generations.iter().map(|generation| generation["anon"].as_u64().unwrap()).sum();
        assert_eq!(pages, PAGES);
        assert!(
            generations.iter().all(|generation| generation["age_ms"].is_u64() && generation["node"] == 0)
        );
        assert!(!Path::new(socket.path()).exists(), "it goes with the run");
    }
    assert_eq!(std::fs::metadata(swap.path()).unwrap().len(), 0);
}

#[test]
fn idle_pages_are_reclaimed_without_a_client() {
    let (socket, swap) = (SocketPath::new("idle"), File::new("idle.swap", b""));
    let mut guest = Guest::start(&socket, &["--swap", swap.path(), "--reclaim-idle", "0.02"]);
    // Each of its pages has a block in the file at the same time.
    let began = Instant::now();
    while std::fs::metadata(swap.path()).unwrap().len() < PAGES * 4096 {
        assert!(began.elapsed() < BOUND, "{:?}", guest.generations());
        std::thread::yield_now();
    }
    guest.feed(&batch('L', PAGES));
    let (status, out, err) = guest.end();
    assert_eq!(status, Some(0), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["corrupt_reads"], &report["verified_reads"]), (&0.into(), &BATCH.into()));
    assert!(report["refaults"].as_u64().unwrap() >= PAGES);
}

fn a_limit_holds(args: &[&str]) -> Value {
    let text = batch('S', 4500) + &batch('L', 4500);
    let report = report(&[args, &["-t", "-", "--limit", "16M"]].concat(), text.as_bytes());
    assert!(report["swapped_out"].as_u64().unwrap() > 300, "{args:?}");
    assert!(report["refaults"].as_u64().unwrap() > 300, "{args:?}");
    report
}

#[test]
fn a_limit_holds_and_every_byte_comes_back() {
    a_limit_holds(&["--swap", "mem"]);
}

#[test]
fn faults_make_room_and_zero_their_pages_where_no_thread_does_so_before() {
    let report = a_limit_holds(&["--swap", "mem", "--evictors", "0", "--zero-ahead", "0"]);
    let ahead = |key: &str| report["ahead"][key].as_u64().unwrap();
    assert!(ahead("direct_reclaims") > 0 && ahead("frames") >= 4500, "{report}");
    assert_eq!(ahead("zeroed"), 0);
}

#[test]
fn a_limit_holds_with_a_swap_file() {
    let swap = File::new("limit.swap", b"");
    a_limit_holds(&["--swap", swap.path(), "--walk-secondary", "off", "--churn", "5000"]);
}

#[test]
fn a_limit_holds_with_two_swap_devices() {
    let swap = File::new("limit-second.swap", b"");
    a_limit_holds(&["--swap", "mem", "--swap", swap.path(), "-v", "3"]);
}

#[test]
fn a_killed_run_leaves_nothing_in_the_way() {
    let (socket, swap) = (SocketPath::new("killed"), File::new("killed.swap", b""));
    let args = ["--swap", swap.path()];
    let mut guest = Guest::start(&socket, &args);
    guest.wait_for_pages(PAGES);
    guest.reclaim();
    assert!(std::fs::metadata(swap.path()).unwrap().len() >= PAGES * 4096);

    // Both paths are in use.
    refused(&["-t", "-", "--swap", swap.path()], b"", swap.path());
    refused(&["-t", "-", "--lru-gen", socket.path()], b"", "another run is serving it");

    let kill = Command::new("kill").args(["-s", "KILL", &guest.child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    assert_eq!(guest.end().0, None);
    assert!(Path::new(socket.path()).exists(), "it had no time to tidy up");

    let mut guest = Guest::start(&socket, &args);
    guest.wait_for_pages(PAGES);
    guest.reclaim();
    guest.feed(&batch('L', PAGES));
    let (status, out, err) = guest.end();
    assert_eq!(status, Some(0), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["corrupt_reads"], &report["verified_reads"]), (&0.into(), &BATCH.into()));
    assert!(!Path::new(socket.path()).exists());
}

#[test]
fn a_flipped_bit_in_the_swap_file_ends_the_guest_that_reads_it_with_status_3() {
    let (socket, swap) = (SocketPath::new("flipped"), File::new("flipped.swap", b""));
    // Negative control: the same guest with an unchanged file.
    for flip in [false, true] {
        let mut guest = Guest::start(&socket, &["--swap", swap.path()]);
        guest.wait_for_pages(PAGES);
        guest.reclaim();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(swap.path()).unwrap();
        let mut byte = [0];
        // After the header block that marks the file as swap.
        let at = (1 + PAGES / 2) * 4096 + 4000;
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= u8::from(flip) << 5;
        file.write_all_at(&byte, at).unwrap();
        guest.feed(&batch('L', PAGES));
        let (status, out, err) = guest.end();
        if flip {
            assert_eq!((status, out.as_str()), (Some(3), ""), "{err}");
            assert!(
                err.lines().count() == 1 && err.contains("guest address") && err.contains("swap"),
                "{err}"
            );
        } else {
            assert_eq!(status, Some(0), "{err}");
        }
    }
}

/// A guest of 16 MiB, with a limit on file size that swap reaches. The arena, which is a file too, stays below it.
#[test]
fn a_full_swap_file_is_a_clear_error_and_no_hang() {
    let swap = SocketPath::new("full.swap");
    let mut command = command(&["-t", "-", "--limit", "16M", "--churn", "0", "--swap", swap.path()]);
    limited(&mut command, Resource::Fsize, 90 << 20);
    let output = fed(&mut command, stores(30_000).as_bytes());
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{err}");
    assert!(err.contains("out of memory: --limit") && err.contains("swap does not take enough"), "{err}");
    assert!(!Path::new(swap.path()).exists(), "the run removes the files that it made");
}

/// One page per 2 MiB, each of which needs a table page. Swap takes every page; the tables alone reach the limit.
#[test]
fn swap_that_refused_nothing_is_not_blamed_for_a_limit_that_tables_reach() {
    let swap = SocketPath::new("tables.swap");
    let store = |page: u64| format!(" S {:x},8\n", 0x0400_0000 + (page << 21));
    let sparse = |pages| (0..pages).map(store).collect::<String>();
    let args = ["-t", "-", "--limit", "16M", "--churn", "0", "--swap", swap.path()];
    let output = slat_with(&[&["--json"], &args[..]].concat(), sparse(1900).as_bytes());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["swapped_out"].as_u64().unwrap() > 1000, "{report}");
    let output = slat_with(&args, sparse(2500).as_bytes());
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{err}");
    assert!(err.contains("out of memory") && !err.contains("swap"), "{err}");
}

#[test]
fn a_file_that_is_no_swap_is_kept() {
    let trace = File::new("kept.trace", batch('S', 8).as_bytes());
    let path = trace.path();
    let kept = || std::fs::read(path).unwrap() == batch('S', 8).as_bytes();
    refused(&["-t", path, "--swap", path], b"", &format!("--trace {path} is the same file"));
    refused(&["-t", path, "--swap", path, "--overwrite"], b"", "is the same file");
    refused(&["-t", "-", "--swap", path], b"", "--overwrite would lose");
    refused(&["-t", "-", "--swap", "/dev/full"], b"", "--swap /dev/full: is there, and no file");
    let pipe = SocketPath::new("kept.pipe");
    assert!(Command::new("mkfifo").arg(pipe.path()).status().unwrap().success());
    refused(&["-t", "-", "--swap", pipe.path(), "--overwrite"], b"", "is there, and no file");
    refused(&["--overwrite"], b"", "--swap");
    refused(&["--overwrite", "--swap", "mem"], b"", "--swap names no file");
    assert!(kept());
    let text = batch('S', 8) + &batch('L', 8);
    report(&["-t", "-", "--swap", path, "--overwrite"], text.as_bytes());
    assert_eq!(std::fs::metadata(path).unwrap().len(), 0);
}

#[test]
fn bad_input_is_one_clear_line() {
    refused(&["--swap", "/nonexistent/swap"], b"", "--swap /nonexistent/swap: open: No such file");
    refused(&["--swap", "mem", "--swap", "mem"], b"", "--swap mem: once is enough");
    refused(&["--swap", "a", "--swap", "b,pri=high"], b"", "a priority is a number from -32768 to 32767");
    refused(&["--swap", "a", "--swap", "a"], b"", "--swap a: the swap file is in use");
    refused(&["--lru-gen", "/nonexistent/socket"], b"", "--lru-gen /nonexistent/socket: ");
    refused(&["--lru-gen", "/dev/null"], b"", "not a socket");
    refused(&["--walk-secondary", "off"], b"", "--walk-secondary: there is no LRU");
    refused(&["--walk-secondary", "maybe", "--swap", "mem"], b"", "maybe");
    refused(&["--reclaim-idle", "1"], b"", "--swap");
    for seconds in ["0", "soon", "1e9", "nan"] {
        refused(&["--swap", "mem", "--reclaim-idle", seconds], b"", "--reclaim-idle");
    }
    refused(&["--evictors", "2"], b"", "--swap");
    refused(&["--swap", "mem", "--evictors", "65"], b"", "65");
    refused(&["--zero-ahead", "1K"], b"", "--zero-ahead");
    assert!(!Path::new("a").exists() && !Path::new("b").exists(), "nothing was done by halves");
    assert!(text(&slat(&["--help"]).stdout).contains("UNIX-CONNECT"));
}
