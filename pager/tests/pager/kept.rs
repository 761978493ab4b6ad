//! Kills the pager of a machine of Cloud Hypervisor while its guest runs. No page is lost, and the VMM gets each page.

use crate::cloud::*;
use crate::daemon::is_offered;
use crate::machine::with_machine;
use slat_pager::PAGE;
use slat_pager::twin::is_page;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Time limit of each step.
const BOUND: Duration = Duration::from_secs(30);

/// `slat-pager restore`, whose worker is killed.
struct Pager {
    folder: PathBuf,
    keeper: Child,
    log: Receiver<String>,
    worker: i32,
}

impl Pager {
    fn start(name: &str, flags: &str) -> (Self, UnixListener) {
        let folder = with_machine(name);
        let listener = UnixListener::bind(folder.join("vmm")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        command.args(["restore", "--guest", &format!("{}=vm", folder.join("vmm").display())]);
        command.arg("--store").arg(folder.join("store")).args(flags.split_whitespace());
        let mut keeper = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(keeper.stderr.take().unwrap()).lines();
        let (send, log) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut pager = Self { folder, keeper, log, worker: 0 };
        pager.worker = pager.started();
        (pager, listener)
    }

    fn started(&self) -> i32 {
        let until = Instant::now() + BOUND;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left).expect("no worker starts");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(worker) = line["worker"].as_i64() {
                return worker as i32;
            }
        }
    }

    fn kill_worker(&self) {
        let worker = rustix::process::Pid::from_raw(self.worker).unwrap();
        rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
    }

    /// Kills the worker, and waits for the next one.
    fn kill(&mut self) {
        self.kill_worker();
        self.worker = self.started();
    }

    fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + BOUND;
        loop {
            if let Some(status) = self.keeper.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the pager does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // Its worker ends with it.
        _ = self.keeper.kill();
        _ = self.keeper.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

const ON_DEMAND: &str = "--replay 0 --cache 0";

/// A page that the guest wrote, and another chunk's.
#[test]
fn pages_written_before_the_pager_was_killed_stay() {
    let (mut pager, listener) = Pager::start("kept-written", ON_DEMAND);
    let mut vmm = Vmm::meet(&listener);
    vmm.finish(|vmm| assert_eq!(vmm.ask(7, 1), OK));
    let pages = [3, 200];
    for page in pages {
        assert_eq!(vmm.ask(page, 1), OK);
        assert_eq!(vmm.read(page), content(page));
        let (file, place) = vmm.file(page);
        file.write_all_at(&[9; PAGE], place).unwrap();
    }
    pager.kill();
    for page in pages {
        assert_eq!(vmm.ask(page, 1), OK);
        assert_eq!(vmm.read(page), [9; PAGE], "page {page}");
    }
    // All other pages come from the next worker.
    for page in (0..IMAGE.pages).filter(|page| !pages.contains(page)) {
        assert_eq!(vmm.ask(page, 1), OK);
        assert_eq!(vmm.read(page), content(page), "page {page}");
    }
    drop(vmm);
    assert!(pager.end().success());
}

/// Removes or restores the chunks of the store.
fn move_chunks(folder: &Path, from: &str, to: &str) {
    std::fs::rename(folder.join("store").join(from), folder.join("store").join(to)).unwrap();
}

#[test]
fn a_page_that_was_asked_for_when_its_pager_was_killed_comes_from_the_next() {
    let (mut pager, listener) = Pager::start("kept-asked", ON_DEMAND);
    let mut vmm = Vmm::meet(&listener);
    vmm.finish(|_| {});
    let page = (100..IMAGE.pages).find(|page| !IMAGE.is_zero(*page)).unwrap();
    assert_eq!(vmm.ask(0, 1), OK);
    move_chunks(&pager.folder, "chunks", "away");
    // The request has no answer at two kills, and each next worker gets it from the keeper.
    vmm.faults.request(PAGE_FAULT, 16, &[gpa(page).to_le_bytes(), (PAGE as u64).to_le_bytes()].concat());
    pager.kill();
    // And without any.
    pager.kill_worker();
    move_chunks(&pager.folder, "away", "chunks");
    assert_eq!(vmm.faults.answer(), OK);
    assert_eq!(vmm.read(page), content(page));
    pager.worker = pager.started();
    assert_eq!(vmm.ask(page + 1, 2), OK);
    drop(vmm);
    assert!(pager.end().success());
}

#[test]
fn five_kills_of_its_pager_are_not_noticed_by_a_machine() {
    if !is_offered() {
        return;
    }
    let (mut pager, listener) = Pager::start("kept-five", "--replay 1 --cache 0");
    let mut vmm = Vmm::meet(&listener);
    assert_eq!(vmm.finish(|_| {}), VM_STATE);
    // The VMM gets a part of its pages between each two kills, and then all.
    for part in 0..5 {
        for page in (0..IMAGE.pages).filter(|page| page * 37 % 11 == part) {
            assert_eq!(vmm.ask(page, 1), OK);
        }
        pager.kill();
    }
    let mapped = vmm.run();
    let (send, looked) = channel();
    // A guest that stands still never returns.
    std::thread::spawn(move || {
        let wrong = (0..IMAGE.pages).filter(|page| !is_page(&IMAGE, *page, Some(0), &mapped.read(*page)));
        let wrong = wrong.collect::<Vec<_>>();
        _ = send.send((wrong, mapped));
    });
    // Its VMM maps all pages before it ends.
    let (wrong, _mapped) = looked.recv_timeout(BOUND).expect("the guest stands still");
    assert_eq!(wrong, [0; 0]);
    assert!(pager.end().success());
}

#[test]
fn the_exit_status_reports_a_vmm_that_refuses_its_state() {
    let (mut pager, listener) = Pager::start("kept-refused", ON_DEMAND);
    let mut vmm = Vmm::meet(&listener);
    vmm.refuse();
    assert_eq!(vmm.faults.answer(), (0, 0), "its connection is closed");
    assert_eq!(pager.end().code(), Some(2));
}
