//! Saves Debian's Linux in Debian's QEMU without its RAM, and restores it with every page from the pager.
//!
//! `drive WORK KERNEL PAGER PRELOAD [--vmm qemu] [--store STORE] [--kill-pager N]`; `run`, beside this, prepares what it needs.

mod daemon;
mod qemu;

use daemon::{Daemon, Outcome, TEMPLATE};
use qemu::{Backend, MIB, Machine, NO_RAM, SHARE, Setting};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Files of 1 MiB of random bytes that the guest writes before it is saved, and reads after it was restored.
const FILES: usize = 96;
/// The time to wait for a machine with a pager.
const PATIENCE: Duration = Duration::from_secs(60);

struct Drive {
    work: PathBuf,
    kernel: PathBuf,
    pager: PathBuf,
    preload: PathBuf,
    store: String,
    kills: usize,
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let mut path = || words.next().map(PathBuf::from).ok_or("WORK KERNEL PAGER PRELOAD are wanted");
    let (work, kernel, pager, preload) = (path()?, path()?, path()?, path()?);
    let store = work.join("store").display().to_string();
    let mut drive = Drive { work, kernel, pager, preload, store, kills: 5 };
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} wants a value"))?;
        match (&*flag, &*value) {
            ("--vmm", "qemu") | ("--store", "folder") => {}
            ("--vmm", _) => return Err(format!("no VMM {value:?}: there is qemu").into()),
            ("--store", _) => drive.store = value,
            ("--kill-pager", _) => {
                drive.kills = value.parse().map_err(|_| format!("{value:?} is no number"))?;
            }
            _ => return Err(format!("{flag}: the flags are --vmm, --store and --kill-pager").into()),
        }
    }
    drive.save()?;
    for backend in [Backend::Anonymous, Backend::Memfd, Backend::Swapped, Backend::Clone] {
        drive.run(backend)?;
        drive.compare(backend)?;
    }
    _ = std::fs::remove_dir_all(SHARE);
    Ok(())
}

impl Drive {
    fn setting(&self, backend: Backend) -> Setting<'_> {
        Setting { work: &self.work, kernel: &self.kernel, backend, pager: None }
    }

    /// Boots the machine, lets it fill its memory, and saves it: its RAM as a template in the store, the rest as a file.
    fn save(&self) -> Outcome<()> {
        let (began, image) = (Instant::now(), self.work.join("image"));
        let mut machine = Machine::start(&self.setting(Backend::Memfd), false)?;
        machine.patience(Duration::from_secs(300))?;
        machine.hear("FILLED")?;
        machine.ask("stop", &json!({}))?;
        machine.migrate("migrate", &format!("exec:cat > {}", self.work.join("state").display()))?;
        std::fs::copy(machine.memory()?, &image)?;
        drop(machine);
        // A template of an earlier run would be in the way.
        let pager = |words: &[&str]| Command::new(&self.pager).args(words).output();
        _ = pager(&["rm", TEMPLATE, "--store", &self.store])?;
        let image = image.to_str().ok_or("the folder's name is no text")?;
        let made = pager(&["snapshot", image, TEMPLATE, "--store", &self.store])?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned().into());
        }
        let state = std::fs::metadata(self.work.join("state"))?.len() >> 10;
        println!(
            "saved: Linux with {FILES} files of 1 MiB; {MIB} MiB of RAM are the template, {state} KiB the rest: {:.1?}",
            began.elapsed()
        );
        Ok(())
    }

    /// Restores a stopped machine, whose memory comes from the pager.
    fn restore(&self, backend: Backend, flags: &[&str]) -> Outcome<(Daemon, Machine)> {
        _ = std::fs::remove_dir_all(SHARE);
        let mut words = backend.flags(&self.work);
        words.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let daemon = Daemon::start(&self.pager, &self.work, &self.store, &words)?;
        let socket = self.work.join("socket");
        let setting = Setting { pager: Some((&self.preload, &socket)), ..self.setting(backend) };
        let mut machine = Machine::start(&setting, true)?;
        machine.patience(PATIENCE)?;
        machine.migrate("migrate-incoming", &format!("exec:cat {}", self.work.join("state").display()))?;
        Ok((daemon, machine))
    }

    /// Lets the guest run on, with its shell, its files and its balloon, while the daemon is killed.
    fn run(&self, backend: Backend) -> Outcome<()> {
        let began = Instant::now();
        let (mut daemon, mut machine) = self.restore(backend, &["--window", "4"])?;
        machine.ask("cont", &json!({}))?;
        machine.say("echo SHELL")?;
        machine.hear("SHELL")?;
        let shell = began.elapsed();
        machine.say("echo RIGHT $(md5sum -c /sums 2>/dev/null | grep -c OK)")?;
        for _ in 0..self.kills {
            std::thread::sleep(Duration::from_millis(150));
            daemon.kill()?;
        }
        right(&machine.hear("RIGHT")?)?;
        for target in [MIB * 2 / 3, MIB] {
            machine.ask("balloon", &json!({ "value": target << 20 }))?;
            let began = Instant::now();
            while machine.ask("query-balloon", &json!({}))?["actual"] != (target << 20) {
                if began.elapsed() > PATIENCE {
                    return Err("the balloon does not move".into());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            machine.say("echo RIGHT $(md5sum -c /sums 2>/dev/null | grep -c OK)")?;
            right(&machine.hear("RIGHT")?)?;
        }
        println!(
            "{backend:?}: the shell is back after {shell:.1?}; {FILES} of {FILES} files right, also beside the balloon; {} kills of the daemon",
            daemon.kills
        );
        drop(machine);
        if backend == Backend::Swapped {
            daemon.has_reclaimed()?;
        }
        Ok(())
    }

    /// Compares each page of the stopped machine, as QEMU reads it, with the snapshot, while the daemon is killed.
    fn compare(&self, backend: Backend) -> Outcome<()> {
        let (mut daemon, mut machine) = self.restore(backend, &["--window", "4"])?;
        let mut image = std::fs::read(self.work.join("image"))?;
        let wrong = self.wrong(&mut machine, &image, |_| daemon.kill())?;
        if wrong > 0 {
            return Err(format!("{backend:?}: {wrong} pages are not those of the snapshot").into());
        }
        image[(MIB << 19) + 77] ^= 1;
        if self.wrong(&mut machine, &image, |_| Ok(()))? != 1 {
            return Err("the comparison does not find a single bit".into());
        }
        println!("{backend:?}: every page is the snapshot's; {} kills of the daemon", daemon.kills);
        Ok(())
    }

    /// Counts the pages that differ from the snapshot, and calls `kill` while QEMU reads them.
    fn wrong(
        &self,
        machine: &mut Machine,
        image: &[u8],
        mut kill: impl FnMut(usize) -> Outcome<()> + Send,
    ) -> Outcome<usize> {
        let parts = self.kills.max(1);
        let size = (MIB << 20) / parts / 4096 * 4096;
        let mut wrong = 0;
        for part in 0..parts {
            let range = part * size..if part + 1 == parts { MIB << 20 } else { (part + 1) * size };
            let file = self.work.join("part");
            let arguments = json!({ "val": range.start, "size": range.len(), "filename": file });
            // QMP does not answer while QEMU waits for the page, so another thread kills.
            std::thread::scope(|scope| {
                let killing = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(30));
                    if part < self.kills { kill(part) } else { Ok(()) }
                });
                let read = machine.ask("pmemsave", &arguments);
                killing.join().map_err(|_| "the killing thread panicked")??;
                read
            })?;
            let read = std::fs::read(&file)?;
            let is_ram = |at: &usize| !NO_RAM.contains(at);
            let starts = range.clone().step_by(4096).filter(is_ram);
            wrong += starts.filter(|at| image[*at..at + 4096] != read[at - range.start..][..4096]).count();
        }
        Ok(wrong)
    }
}

/// Checks the number of files that the guest found unchanged.
fn right(count: &str) -> Outcome<()> {
    if count.parse() == Ok(FILES) {
        Ok(())
    } else {
        Err(format!("{count} of {FILES} files are right").into())
    }
}
