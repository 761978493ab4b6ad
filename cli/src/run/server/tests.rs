//! The answers of the socket, and the files that it refuses to bind.

use super::*;
use crate::live::{Live, Watching};
use slat_mm::{AddressSpace, Arena, LruSettings};
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A run that counts its samples and its watchers.
struct Counted {
    asked: AtomicUsize,
    live: Live,
}

impl Counted {
    fn new() -> Self {
        Self { asked: AtomicUsize::new(0), live: Live::new(0) }
    }
}

impl Samples for Counted {
    fn sample(&self, _: &mut Idle) -> Sample {
        let accesses = self.asked.fetch_add(1, Relaxed) as u64;
        Sample { watch: Sample::VERSION, accesses, ..Sample::default() }
    }

    fn watch(&self) -> Watching<'_> {
        self.live.watch()
    }
}

/// A path whose file is removed after the test.
fn path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("slat-{}-{name}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

fn lru_gen() -> (LruGen, Arc<AddressSpace>) {
    let arena = Arena::builder().limit(16 << 20).build().unwrap();
    let space = AddressSpace::builder(&arena).lru(LruSettings::default()).build().unwrap();
    let lru_gen = LruGen::new();
    lru_gen.add("/guest", &space);
    (lru_gen, space)
}

/// The lines of an answer, up to `ok` or `error`.
fn ask(client: &UnixStream, line: &str) -> Vec<String> {
    let mut client = client;
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(line.as_bytes()).unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(client).lines() {
        lines.push(line.unwrap());
        if lines.last().is_some_and(|line| line == "ok" || line.starts_with("error ")) {
            break;
        }
    }
    lines
}

#[test]
fn every_line_is_answered_to_every_client_until_the_end() {
    let path = path("answers");
    let (lru_gen, _space) = lru_gen();
    let (socket, samples) = (Socket::bind("--serve", &path).unwrap(), Counted::new());
    thread::scope(|scope| {
        let serving = socket.serve(scope, &lru_gen, &samples).unwrap();
        let [one, two] = [0, 1].map(|_| UnixStream::connect(&path).unwrap());
        for client in [&one, &two, &one] {
            assert_eq!(ask(client, "\n read \n")[0], "memcg     1 /guest");
        }
        assert_eq!(ask(&one, "enabled\n"), ["0x000b", "ok"]);
        assert_eq!(ask(&two, "enabled 0x3\n"), ["ok"]);
        assert_eq!(ask(&one, "enabled\n"), ["0x0003", "ok"]);
        assert_eq!(ask(&one, "min_ttl_ms 70\n"), ["ok"]);
        assert_eq!(ask(&one, "min_ttl_ms\n"), ["70", "ok"]);
        assert_eq!(ask(&two, "+ 1 0 12345\n").len(), 1);
        for bad in ["nonsense\n", "+ 1 0\n", "+ 2 0 0\n", "- 1 9 0\n", "enabled x\n", "\u{0}\n"] {
            assert!(ask(&two, bad)[0].starts_with("error EINVAL: "), "{bad}");
        }
        // The last line may lack its newline; the client is then done.
        let last = UnixStream::connect(&path).unwrap();
        (&last).write_all(b"enabled").unwrap();
        last.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(ask(&last, ""), ["0x0003", "ok"]);
        // A line without a newline is not kept without limit.
        assert!(ask(&one, &"x".repeat(LONGEST))[0].starts_with("error EINVAL: "));
        drop(serving);
        assert_eq!((&two).read(&mut [0]).unwrap(), 0, "the end is heard");
    });
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_watching_client_gets_samples_and_the_end() {
    let path = path("watches");
    let (lru_gen, _space) = lru_gen();
    let (socket, samples) = (Socket::bind("--serve", &path).unwrap(), Counted::new());
    thread::scope(|scope| {
        let serving = socket.serve(scope, &lru_gen, &samples).unwrap();
        let [one, two] = [0, 1].map(|_| UnixStream::connect(&path).unwrap());
        let stats = ask(&two, "stats\n");
        assert_eq!((Sample::parse(&stats[0]).unwrap().accesses, stats[1].as_str()), (0, "ok"));
        for bad in ["watch\n", "watch x\n", "watch 49\n", "watch -1\n", "watch 3600001\n", "stats 5\n"] {
            assert!(ask(&two, bad)[0].starts_with("error EINVAL: "), "{bad}");
        }
        one.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut lines = BufReader::new(&one).lines().map(|line| line.unwrap());
        let mut next = || Sample::parse(&lines.next().unwrap()).unwrap();
        (&one).write_all(b"watch 50\n").unwrap();
        let first = next();
        assert!(!first.ended && next().accesses > first.accesses);
        // Another interval, with another command in between.
        (&one).write_all(b"watch 3600000\nmin_ttl_ms\nwatch 50\n").unwrap();
        let mut lines = BufReader::new(&one).lines().map(|line| line.unwrap());
        let other: Vec<_> = lines.by_ref().filter(|line| !line.starts_with('{')).take(2).collect();
        assert_eq!(other, ["0", "ok"]);
        (&one).write_all(b"watch 0\n").unwrap();
        assert_eq!(lines.by_ref().find(|line| !line.starts_with('{')).unwrap(), "ok");
        assert_eq!(ask(&one, "enabled\n")[1], "ok", "and nothing comes in between");
        // A watching client gets the last sample; another client does not.
        (&one).write_all(b"watch 3600000\n").unwrap();
        assert!(!Sample::parse(&lines.next().unwrap()).unwrap().ended);
        drop(serving);
        assert!(Sample::parse(&lines.next().unwrap()).unwrap().ended);
        assert!(lines.next().is_none());
        assert_eq!((&two).read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_socket_left_behind_is_replaced_and_nothing_else_is() {
    let path = path("stale");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves it there, as a killed process does");
    let socket = Socket::bind("--serve", &path).unwrap();
    let refused = |why: &str| {
        let Err(error) = Socket::bind("--serve", &path) else { panic!("{why}: taken") };
        assert!(error.to_string().contains(why), "{error}");
    };
    refused("another run is serving it");
    // Another program has replaced the socket: its file stays.
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"data").unwrap();
    drop(socket);
    refused("is not a socket");
    assert_eq!(fs::read(&path).unwrap(), b"data");
    fs::remove_file(&path).unwrap();
}
