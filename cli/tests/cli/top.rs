//! `slat top` from the outside: lines in a pipe, a screen on a terminal, the end of a run, bad input.
//!
//! The terminal is a pseudo-terminal; this test holds its other end.

use crate::common::{BOUND, File, SocketPath, command, end, start, text};
use rustix::fs::OFlags;
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{InputModes, LocalModes, OutputModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// The accesses of a guest: several batches, because a vCPU publishes its counters after each batch.
const ACCESSES: u64 = 4 << 14;

/// A guest that has stored to some pages and waits for more of its trace. It runs until it is told to end.
struct Guest(Child);

impl Guest {
    fn start(args: &[&str]) -> Self {
        Self::fed(start(&[&["-t", "-", "--churn", "0"], args].concat()))
    }

    /// Enough batches that each vCPU has published its counters.
    fn fed(mut child: Child) -> Self {
        let mut stores = String::new();
        for access in 0..ACCESSES {
            writeln!(stores, " S {:08x},8", 0x400_0000 + access % 512 * 4096).unwrap();
        }
        child.stdin.as_mut().unwrap().write_all(stores.as_bytes()).unwrap();
        Self(child)
    }

    /// Ends the trace.
    fn end(mut self) -> Output {
        drop(self.0.stdin.take());
        end(self.0, "a guest whose trace is over")
    }
}

fn top(args: &[&str]) -> Command {
    let mut top = Command::new(env!("CARGO_BIN_EXE_slat"));
    top.arg("top").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    top
}

fn watched(args: &[&str]) -> Output {
    end(top(args).spawn().unwrap(), &format!("slat top {args:?}"))
}

/// Waits until the view has seen the run.
fn has_begun(top: &mut Child) {
    top.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
}

/// The sample of a run whose guest has done everything so far.
fn settled(socket: &SocketPath) -> Value {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < BOUND, "the guest does not get on");
        let output = watched(&[socket.path(), "--json", "-n", "2", "--interval", "0.25"]);
        let last =
            text(&output.stdout).lines().last().map(|line| serde_json::from_str::<Value>(line).unwrap());
        if let Some(last) = last.filter(|last| last["accesses"] == ACCESSES) {
            return last;
        }
    }
}

#[test]
fn a_pipe_gets_a_line_for_each_sample() {
    let socket = SocketPath::new("top-lines");
    let guest = Guest::start(&["--serve", socket.path(), "--dirty-log", "bitmap"]);
    settled(&socket);
    let output = watched(&[socket.path(), "-n", "3", "--interval", "0.05"]);
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(0), 3), "{}", text(&output.stderr));
    for line in lines {
        for figure in ["accesses/s", "faults/s", "flushes/s", "tlb ", "mapped: ", "tables ", "dirty", "used "]
        {
            assert!(line.contains(figure), "{figure}: {line}");
        }
        assert!(!line.contains('\x1b'), "{line}");
    }
    let output = watched(&[socket.path(), "--json", "-n", "2", "--interval", "0.05"]);
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [one, two] = &lines[..] else { panic!("{lines:?}") };
    assert!(one["at_ms"].as_u64() < two["at_ms"].as_u64());
    assert_eq!(two["mapped"]["k4"], 512);
    assert_eq!((&two["ages"]["by"], &two["dirty"]["by"]), (&"accessed".into(), &"bitmap".into()));
    assert!(two["vcpus"][0]["accesses"].as_u64().unwrap() > 0);
    // The log has reported each page, and the causes are counted.
    assert!(two["dirty"]["pages"].as_u64().unwrap() >= 512);
    let causes: Vec<_> = two["flushes_by"].as_array().unwrap().iter().map(|of| &of["cause"]).collect();
    assert!(causes.contains(&&"dirty-log".into()), "{causes:?}");
    let sum = |key: &str| {
        two["flushes_by"].as_array().unwrap().iter().map(|of| of[key].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(
        ["requested", "paid", "pages"].map(sum),
        ["requested", "paid", "pages"].map(|key| two["flushes"][key].as_u64().unwrap())
    );
    assert!(two["per_s"]["faults"].is_f64());
    let heat = &two["heat"];
    let cells = heat["frames"].as_u64().unwrap() / heat["frames_per_cell"].as_u64().unwrap();
    assert!(["used", "written", "large"].iter().all(|key| heat[key].as_str().unwrap().len() as u64 == cells));
    assert_eq!(guest.end().status.code(), Some(0));
}

#[test]
fn the_lru_tells_generations_and_keeps_its_bits() {
    let socket = SocketPath::new("top-lru");
    let guest = Guest::start(&["--lru-gen", socket.path()]);
    let last = settled(&socket);
    let ages = &last["ages"];
    assert_eq!(ages["by"], "generation");
    let of = ages["of"].as_array().unwrap();
    let pages: Vec<_> = of.iter().map(|age| age["pages"].as_u64().unwrap()).collect();
    assert_eq!((pages[0], pages.iter().sum::<u64>()), (512, 512), "all are young: {pages:?}");
    let numbers: Vec<_> = of.iter().map(|age| age["generation"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|one, other| one > other), "{numbers:?}");
    // The LRU's next pass still finds the bits.
    let mut client = std::os::unix::net::UnixStream::connect(socket.path()).unwrap();
    client.set_read_timeout(Some(BOUND)).unwrap();
    writeln!(client, "+ 1 0 {}", numbers[0]).unwrap();
    let mut answer = [0; 3];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ok\n");
    let output = watched(&[socket.path(), "--json", "-n", "1"]);
    let after: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(after["ages"]["of"][0]["pages"], 512, "{}", after["ages"]);
    assert_eq!(guest.end().status.code(), Some(0));
}

/// Without Accessed bits, a watcher that looked at pages would cost the guest a fault per page.
#[test]
fn a_watcher_costs_no_faults() {
    let socket = SocketPath::new("top-faults");
    for format in ["ept4", "ept4-noad"] {
        let guest = Guest::start(&["--serve", socket.path(), "-f", format]);
        let before = settled(&socket);
        let after = settled(&socket);
        assert_eq!(before["faults"], after["faults"], "{format}");
        let knows = format == "ept4";
        assert_eq!(after["ages"]["by"], if knows { "accessed" } else { "unknown" });
        assert_eq!(after["heat"]["used"].as_str().unwrap().is_empty(), !knows);
        assert_eq!(guest.end().status.code(), Some(0));
    }
}

#[test]
fn the_end_of_the_run_is_the_end_of_top() {
    let socket = SocketPath::new("top-end");
    let guest = Guest::start(&["--serve", socket.path()]);
    settled(&socket);
    let mut watching = top(&[socket.path(), "--interval", "0.05"]).spawn().unwrap();
    has_begun(&mut watching);
    assert_eq!(guest.end().status.code(), Some(0));
    let output = end(watching, "slat top of a run that has ended");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), err), (Some(0), "slat: the run has ended\n"));
    assert!(out.lines().last().unwrap().ends_with("ended"), "{out}");
}

#[test]
fn a_run_that_is_killed_is_gone() {
    let socket = SocketPath::new("top-killed");
    let mut guest = Guest::start(&["--serve", socket.path()]);
    settled(&socket);
    let mut watching = top(&[socket.path()]).spawn().unwrap();
    has_begun(&mut watching);
    guest.0.kill().unwrap();
    guest.0.wait().unwrap();
    let output = end(watching, "slat top of a killed run");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("the run is gone"), "{}", text(&output.stderr));
    let again = watched(&[socket.path()]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("its run has ended"), "{}", text(&again.stderr));
}

#[test]
fn a_path_that_cannot_be_watched_is_refused_in_one_line() {
    let file = File::new("top.file", b"");
    for (args, why) in [
        (&["/nowhere/guest"][..], "no such socket"),
        (&[file.path()], "no socket"),
        (&[file.path(), "--interval", "0"], "0.05 to 3600"),
        (&[file.path(), "--interval", "soon"], "`soon` is no number of seconds"),
        (&[file.path(), "-n", "0"], "0 is not in 1.."),
        (&[], "<PATH>"),
    ] {
        let output = watched(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), out), (Some(2), ""), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
        assert!(err.lines().count() == 1 || err.starts_with("error: "), "{args:?}: {err}");
    }
    crate::common::refused(&["--serve", file.path()], b"", "--serve");
    crate::common::refused(&["--serve", "/x", "--lru-gen", "/y"], b"", "cannot be used with");
}

/// Without a terminal, the lines of `--top` go to standard error; standard output has the report.
#[test]
fn beside_a_run_lines_go_to_standard_error() {
    let guest = Guest::start(&["--top", "--json"]);
    let output = guest.end();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["accesses"]), (Some(0), &ACCESSES.into()));
    let err = text(&output.stderr);
    assert!(!err.is_empty() && err.lines().all(|line| line.contains("faults/s")), "{err}");
    assert!(err.lines().last().unwrap().ends_with("ended"), "{err}");
}

type Modes = (InputModes, OutputModes, LocalModes);

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A pseudo-terminal, and the bytes that were written to it.
struct Terminal {
    ours: fs::File,
    theirs: OwnedFd,
    seen: Arc<(Mutex<Vec<u8>>, Condvar)>,
}

impl Terminal {
    fn new((columns, rows): (u16, u16)) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlags::NOCTTY.bits() as i32);
        let theirs = options.open(name.to_str().unwrap()).unwrap();
        let (ours, theirs) = (fs::File::from(ours), OwnedFd::from(theirs));
        tcsetwinsize(&ours, size(columns, rows)).unwrap();
        let seen = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let (mut reader, to) = (ours.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(more @ 1..) = reader.read(&mut buffer) {
                to.0.lock().unwrap().extend_from_slice(&buffer[..more]);
                to.1.notify_all();
            }
        });
        Self { ours, theirs, seen }
    }

    /// Starts a command with this controlling terminal; piped streams stay piped.
    fn spawn(&self, command: &mut Command, env: &[(&str, &str)]) -> Child {
        let theirs = self.theirs.try_clone().unwrap();
        command.env_remove("NO_COLOR").env_remove("COLORTERM");
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").envs(env.iter().copied());
        // SAFETY: both calls are async-signal-safe and touch only the new process.
        unsafe {
            command.pre_exec(move || {
                setsid()?;
                Ok(ioctl_tiocsctty(&theirs)?)
            });
        }
        command.spawn().unwrap()
    }

    fn end(&self) -> Stdio {
        self.theirs.try_clone().unwrap().into()
    }

    /// Waits until `what` has been written after offset `from`. Returns the offset of its end.
    fn expect(&self, from: usize, what: &str) -> usize {
        let find = |seen: &Vec<u8>| {
            let seen = seen.get(from..).unwrap_or_default();
            seen.windows(what.len()).position(|part| part == what.as_bytes())
        };
        let (seen, changed) = &*self.seen;
        let (seen, timeout) =
            changed.wait_timeout_while(seen.lock().unwrap(), BOUND, |seen| find(seen).is_none()).unwrap();
        let said =
            || String::from_utf8_lossy(&seen[from..seen.len().min(from + 3000)]).escape_debug().to_string();
        assert!(!timeout.timed_out(), "no `{what}`, but {}", said());
        from + find(&seen).unwrap() + what.len()
    }

    fn press(&self, keys: &str) {
        (&self.ours).write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, (columns, rows): (u16, u16)) {
        tcsetwinsize(&self.ours, size(columns, rows)).unwrap();
    }

    /// Whether the terminal echoes, reads lines, and turns keys into signals.
    fn modes(&self) -> Modes {
        let modes = tcgetattr(&self.theirs).unwrap();
        (modes.input_modes, modes.output_modes, modes.local_modes)
    }

    /// The bytes written to it.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.0.lock().unwrap()).into_owned()
    }

    /// Checks that the terminal is restored: these modes, the main screen, a visible cursor.
    fn is_restored(&self, modes: Modes) {
        let left = self.expect(0, "\x1b[?1049l");
        self.expect(left, "\x1b[?25h");
        assert_eq!(self.modes(), modes);
        let text = self.text();
        assert_eq!(text.matches("\x1b[?1049h").count(), 1);
        assert_eq!(text.matches("\x1b[?1049l").count(), 1);
    }
}

/// A guest with a screen beside it that has been drawn.
fn beside(terminal: &Terminal, args: &[&str], env: &[(&str, &str)]) -> Guest {
    let mut command = command(&[&["-t", "-", "--churn", "0", "--top"], args].concat());
    let guest = Guest::fed(terminal.spawn(command.stderr(terminal.end()), env));
    terminal.expect(0, "quit");
    guest
}

#[test]
fn keys_work_on_a_terminal_which_comes_back() {
    let terminal = Terminal::new((80, 24));
    let modes = terminal.modes();
    let guest = beside(&terminal, &["--json"], &[]);
    let at = terminal.expect(0, "faults");
    assert_ne!(terminal.modes(), modes, "keys come one by one");
    terminal.press("h");
    let at = terminal.expect(at, "written");
    terminal.press("?");
    let at = terminal.expect(at, "TLB shootdowns, by cause");
    terminal.press("\x1b");
    let at = terminal.expect(at, "A bits");
    terminal.press(" ");
    let at = terminal.expect(at, "paused");
    // The whole screen is redrawn.
    terminal.press(" -\x0c");
    let at = terminal.expect(at, "every 1 s");
    terminal.resize((40, 12));
    let at = terminal.expect(at, "kinds");
    terminal.resize((100, 30));
    terminal.expect(at, "last used");
    terminal.press("q");
    terminal.is_restored(modes);
    // The run continues without its view.
    let output = guest.end();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["accesses"]), (Some(0), &ACCESSES.into()));
}

#[test]
fn the_screen_ends_with_its_run() {
    let terminal = Terminal::new((80, 24));
    let modes = terminal.modes();
    let output = beside(&terminal, &["--json"], &[]).end();
    terminal.is_restored(modes);
    assert_eq!(output.status.code(), Some(0));
    assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok());
}

#[test]
fn control_c_ends_both() {
    let terminal = Terminal::new((80, 24));
    let modes = terminal.modes();
    let mut guest = beside(&terminal, &["--json"], &[]);
    // The trace continues: only the key can end the run.
    let stdin = guest.0.stdin.take();
    terminal.press("\x03");
    let output = end(guest.0, "an interrupt");
    drop(stdin);
    terminal.is_restored(modes);
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
}

#[test]
fn colours_are_left_out_where_no_color_says_so() {
    let socket = SocketPath::new("top-colours");
    let guest = Guest::start(&["--serve", socket.path()]);
    settled(&socket);
    // The highest colour number written.
    let colours = |env: &[(&str, &str)]| {
        let terminal = Terminal::new((80, 24));
        let mut top = top(&[socket.path(), "-n", "1"]);
        end(terminal.spawn(top.stdin(terminal.end()).stdout(terminal.end()), env), "one screen");
        terminal.expect(0, "\x1b[?1049l");
        let text = terminal.text();
        let codes = text.split("\x1b[38;5;").skip(1);
        codes.filter_map(|part| part.split(['m', ';']).next()?.parse::<u8>().ok()).max()
    };
    assert!(colours(&[]) > Some(15));
    assert!((Some(0)..=Some(15)).contains(&colours(&[("TERM", "xterm")])));
    assert_eq!(colours(&[("NO_COLOR", "1")]), None);
    guest.end();
}

#[test]
fn a_dumb_terminal_gets_lines() {
    let terminal = Terminal::new((80, 24));
    let mut command = command(&["-t", "-", "--churn", "0", "--top"]);
    let guest = Guest::fed(terminal.spawn(command.stderr(terminal.end()), &[("TERM", "dumb")]));
    terminal.expect(0, "faults/s");
    guest.end();
    terminal.expect(0, "ended");
    assert!(!terminal.text().contains('\x1b'), "{}", terminal.text());
}

/// Runs `slat top PATH` on a terminal and ends it by a key.
#[test]
fn top_has_a_terminal_of_its_own() {
    let socket = SocketPath::new("top-screen");
    let guest = Guest::start(&["--serve", socket.path()]);
    settled(&socket);
    for (args, key, status) in [
        (&[][..], "q", 0),
        (&[], "\x03", 130),
        (&["-n", "2", "--interval", "0.05"], "", 0),
        (&["--sabotage-screen"], "", 101),
    ] {
        let terminal = Terminal::new((80, 24));
        let modes = terminal.modes();
        let mut top = top(&[&[socket.path()], args].concat());
        let child = terminal.spawn(top.stdin(terminal.end()).stdout(terminal.end()), &[]);
        terminal.expect(0, "quit");
        terminal.press(key);
        let output = end(child, "slat top on a terminal");
        assert_eq!(output.status.code(), Some(status), "{args:?} {key:?}: {}", text(&output.stderr));
        terminal.is_restored(modes);
    }
    let terminal = Terminal::new((80, 24));
    let mut top = top(&[socket.path()]);
    let child = terminal.spawn(top.stdin(terminal.end()).stdout(terminal.end()), &[]);
    terminal.expect(0, "quit");
    assert_eq!(guest.end().status.code(), Some(0));
    let output = end(child, "slat top on a terminal, of a run that has ended");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), "slat: the run has ended\n"));
}
