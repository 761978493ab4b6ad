//! Restores a guest that checks each of its pages in an unmodified Firecracker, from slat-pager.
//!
//! `slat-client-firecracker FIRECRACKER PAGER GUEST FOLDER [--kills N] [--burst N] [--mib N]`; `run`, beside this, builds
//! and fetches what it needs. `guest/main.rs` has the guest and the bytes that it obeys.

mod daemon;
mod firecracker;

use daemon::{Daemon, Outcome, pager};
use firecracker::Firecracker;
use rustix::process::Signal;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Where the guest's pages begin, in MiB.
const BASE: usize = 32;
const PAGE: usize = 4096;
/// Faults are under way at any instant: each reads its chunk from a slow store, and brings one page.
const SLOW: [&str; 6] = ["--cache", "0", "--window", "1", "--store-delay-ms", "1"];

/// The programs, the guest, and the sizes of the run. All files are in the current folder.
struct Client {
    firecracker: PathBuf,
    pager: PathBuf,
    guest: PathBuf,
    kills: usize,
    burst: usize,
    mib: usize,
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let mut path = || std::path::absolute(words.next().unwrap_or_default());
    let (firecracker, pager, guest, folder) = (path()?, path()?, path()?, path()?);
    let mut client = Client { firecracker, pager, guest, kills: 12, burst: 32, mib: 64 };
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} wants a number"))?;
        let number = value.parse().map_err(|_| format!("{flag}: {value:?} is no number"))?;
        match &*flag {
            "--kills" => client.kills = number,
            "--burst" => client.burst = number,
            "--mib" if (BASE + 2..3000).contains(&number) => client.mib = number,
            _ => {
                return Err(
                    format!("{flag} {value}: the flags are --kills, --burst and --mib (34 to 2999)").into()
                );
            }
        }
    }
    // A socket's path must be short; the folder's may be long.
    _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    std::env::set_current_dir(&folder)?;
    client.boot()?;
    client.rounds()?;
    client.burst()?;
    client.refused()?;
    client.wrong_pages()?;
    std::env::set_current_dir("/")?;
    Ok(std::fs::remove_dir_all(&folder)?)
}

impl Client {
    fn pages(&self) -> usize {
        (self.mib - BASE) << 8
    }

    fn start(&self, name: &str) -> Outcome<Firecracker> {
        Firecracker::start(&self.firecracker, name, &[])
    }

    fn pager(&self, words: &[&str]) -> Outcome<String> {
        pager(&self.pager, words)
    }

    /// Checks what a guest said of a round: its number, the pages that it visited, and the wrong ones.
    fn is_right(&self, said: &[u64], round: usize, eighths: usize) -> Outcome<()> {
        let right = [round, eighths * self.pages() / 8, 0].map(|number| number as u64);
        if said == right {
            Ok(())
        } else {
            Err(format!("round, pages, wrong: {said:?}, not {right:?}").into())
        }
    }

    /// Boots the guest, lets it run a round, and saves it: its memory as a template in the store.
    fn boot(&self) -> Outcome<()> {
        let began = Instant::now();
        let machine = json!({
            "boot-source": { "kernel_image_path": self.guest, "boot_args": format!("pages={}", self.pages()) },
            "drives": [],
            "balloon": { "amount_mib": 0, "deflate_on_oom": false },
            "machine-config": { "vcpu_count": 1, "mem_size_mib": self.mib },
        });
        std::fs::write("machine.json", machine.to_string())?;
        let mut guest = Firecracker::start(&self.firecracker, "boot", &["--config-file", "machine.json"])?;
        guest.hear("filled: ")?;
        guest.say("8")?;
        self.is_right(&guest.hear("round ")?, 1, 8)?;
        guest.set("Paused")?;
        guest.save("Full", "state", "memory")?;
        self.pager(&["snapshot", "memory", "guest", "--store", "store"])?;
        println!("saved: a guest that has written {} pages: {:.1?}", self.pages(), began.elapsed());
        Ok(())
    }

    /// Eight rounds, each with an eighth of the pages that the guest did not touch before; two eighths that the guest
    /// gives back, of which it never touched one. Keeper and worker are killed in turn, between steps and within them.
    /// After four rounds a checkpoint is taken, which is restored at the end.
    fn rounds(&self) -> Outcome<()> {
        let began = Instant::now();
        let mut words = vec!["--store", "store", "--guest", "pager=guest", "--control", "control"];
        words.extend(SLOW);
        let mut daemon = Daemon::start(&self.pager, "rounds.log".into(), &words)?;
        let mut guest = self.start("first")?;
        guest.load("state", "pager")?;
        let steps = ["1", "2", "h", "a", "3", "4", "5", "6", "7", "8"];
        for (nth, step) in steps.into_iter().enumerate() {
            let kills = self.kills * nth / steps.len()..self.kills * (nth + 1) / steps.len();
            let (between, within): (Vec<_>, Vec<_>) = kills.partition(|kill| kill % 3 == 2);
            between.into_iter().try_for_each(|kill| daemon.kill(kill))?;
            match step {
                "5" => self.checkpoint(&mut guest, step)?,
                _ => guest.say(step)?,
            }
            let round: Option<usize> = step.parse().ok();
            for kill in within {
                std::thread::sleep(Duration::from_millis(if round.is_some() { 100 } else { 2 }));
                daemon.kill(kill)?;
            }
            match round {
                Some(round) => self.is_right(&guest.hear("round ")?, round + 1, round)?,
                None => _ = guest.hear("gave back: ")?,
            }
        }
        let rounds = began.elapsed();
        self.pager(&["ctl", "--control", "control", "add", "second=checkpoint"])?;
        let mut second = self.start("second")?;
        second.load("state.checkpoint", "second")?;
        second.say("8")?;
        std::thread::sleep(Duration::from_millis(100));
        daemon.kill(0)?;
        self.is_right(&second.hear("round ")?, 6, 8)?;
        for (guest, rounds) in [(&mut guest, 9), (&mut second, 6)] {
            guest.say("q")?;
            self.is_right(&guest.verdict()?, rounds, 8)?;
        }
        println!(
            "8 rounds over {} kills, {:.1?}, and a checkpoint restored, all {:.1?}: 0 of {} pages wrong",
            daemon.kills,
            rounds,
            began.elapsed(),
            self.pages()
        );
        daemon.end()
    }

    /// Takes a checkpoint of a guest, which makes its next step while the checkpoint is stored.
    fn checkpoint(&self, guest: &mut Firecracker, step: &str) -> Outcome<()> {
        guest.set("Paused")?;
        // Firecracker saves no state without memory: in this case a file with the pages that were written.
        guest.save("Diff", "state.checkpoint", "memory.checkpoint")?;
        std::fs::remove_file("memory.checkpoint")?;
        let process = guest.process().to_string();
        let mut checkpoint = Command::new(&self.pager);
        checkpoint.args(["checkpoint", &process, "checkpoint", "--control", "control"]);
        let mut checkpoint = checkpoint.stdout(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(checkpoint.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        guest.set("Resumed")?;
        guest.say(step)?;
        said.read_line(&mut line)?;
        let status = checkpoint.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the checkpoint fails: {line}").into()) }
    }

    /// Restores many guests at once, each of which checks all of its pages; the worker is killed meanwhile.
    fn burst(&self) -> Outcome<()> {
        let mut daemon =
            Daemon::start(&self.pager, "burst.log".into(), &["--store", "store", "--guest", "pager=guest"])?;
        let guests: Vec<_> =
            (0..self.burst).map(|nth| self.start(&format!("burst{nth}"))).collect::<Result<_, _>>()?;
        let (began, gate) = (Instant::now(), Barrier::new(guests.len() + 1));
        let run = |mut guest: Firecracker| {
            gate.wait();
            guest.load("state", "pager")?;
            let loaded = began.elapsed();
            guest.say("8q")?;
            self.is_right(&guest.hear("round ")?, 2, 8)?;
            self.is_right(&guest.verdict()?, 2, 8)?;
            Ok((loaded, began.elapsed()))
        };
        let mut times = std::thread::scope(|scope| {
            let guests: Vec<_> = guests.into_iter().map(|guest| scope.spawn(|| run(guest))).collect();
            gate.wait();
            std::thread::sleep(Duration::from_millis(200));
            daemon.kill(0)?;
            let times = guests.into_iter().map(|guest| guest.join().map_err(|_| "a thread panicked")?);
            times.collect::<Outcome<Vec<_>>>()
        })?;
        times.sort();
        let (first, last) =
            (times.first().copied().unwrap_or_default(), times.last().copied().unwrap_or_default());
        println!(
            "{} restores at once: loaded after {:.1?} to {:.1?}, every page checked twice after {:.1?} at the latest: 0 wrong",
            self.burst, first.0, last.0, last.1
        );
        daemon.end()
    }

    /// A template that is smaller than the guest: the VMM is refused, and ended by the policy `kill`.
    fn refused(&self) -> Outcome<()> {
        std::fs::write("small", [1; 2 * PAGE])?;
        self.pager(&["snapshot", "small", "small", "--store", "store"])?;
        let words = ["--store", "store", "--guest", "pager=small", "--on-failure", "kill"];
        let mut daemon = Daemon::start(&self.pager, "refused.log".into(), &words)?;
        let mut guest = self.start("refused")?;
        if guest.load("state", "pager").is_ok() {
            return Err("a template that is too small is served".into());
        }
        let (refused, status) = (daemon.next("refused")?, guest.end()?);
        if refused["pid"] != guest.process() || status.signal() != Some(Signal::KILL.as_raw()) {
            return Err(
                format!("refused: {refused}; Firecracker, {}, ends with {status}", guest.process()).into()
            );
        }
        println!("a template that is too small: refused, and Firecracker killed: {}", refused["refused"]);
        daemon.end()
    }

    /// Negative control: memory with a wrong byte and with a page of zeroes. The guest names both pages.
    fn wrong_pages(&self) -> Outcome<()> {
        let memory = std::fs::File::options().read(true).write(true).open("memory")?;
        let (byte, zeroes) = (self.pages() / 3, self.pages() / 2);
        let at = |page: usize| ((BASE << 20) + page * PAGE) as u64;
        let mut old = [0];
        memory.read_exact_at(&mut old, at(byte) + 1234)?;
        memory.write_all_at(&[!old[0]], at(byte) + 1234)?;
        memory.write_all_at(&[0; PAGE], at(zeroes))?;
        let daemon = Daemon::start(&self.pager, "wrong.log".into(), &["--image", "pager=memory"])?;
        let mut guest = self.start("wrong")?;
        guest.load("state", "pager")?;
        guest.say("8q")?;
        let said = guest.hear("round ")?;
        guest.verdict()?;
        guest.wrong.sort_unstable();
        if said[2] != 2 || guest.wrong != [byte as u64, zeroes as u64] {
            return Err(format!("pages {byte} and {zeroes} were wrong; found: {:?}", guest.wrong).into());
        }
        println!(
            "negative control, a wrong byte in page {byte}, and page {zeroes} zero: the guest names both"
        );
        daemon.end()
    }
}
