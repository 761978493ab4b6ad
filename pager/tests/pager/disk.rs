//! A disk between the store and memory: guests are right beside kills, and while the store is down.

use crate::daemon::{Daemon, folder};
use std::fs;
use std::path::Path;

const GUEST: &str = "--millis 500 --balloon --patience-ms 20000";

fn files(disk: &Path) -> usize {
    fs::read_dir(disk).map_or(0, Iterator::count)
}

#[test]
fn guests_are_served_from_the_disk_while_the_store_is_down_and_beside_kills() {
    let disk = folder("disk-cache");
    let down = disk.join("down");
    let flags = format!(
        "--cache 0 --store-delay-ms 1 --store-down {} --disk-cache {}",
        down.display(),
        disk.join("chunks").display()
    );
    let Some(mut daemon) = Daemon::start("disk", &flags) else { return };
    let twins = [1, 2].map(|seed| daemon.twin(&format!("{GUEST} --seed {seed}")));
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(60));
        daemon.kill();
    }
    // A file that a crash cut off.
    for entry in fs::read_dir(disk.join("chunks")).unwrap().flatten().step_by(3) {
        _ = fs::OpenOptions::new().write(true).open(entry.path()).and_then(|file| file.set_len(1000));
    }
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right(), "{report:?}");
    }
    // A guest that reads all pages fills the folder.
    assert!(daemon.twin("--millis 50 --patience-ms 20000").report().is_right());
    let mut before = 0;
    while files(&disk.join("chunks")) > before {
        before = files(&disk.join("chunks"));
        assert!(daemon.twin("--millis 50 --patience-ms 20000").report().is_right());
    }
    fs::write(&down, "").unwrap();
    daemon.kill();
    assert!(before > 0 && daemon.twin(GUEST).report().is_right());
    // The control: without the folder they wait.
    fs::remove_dir_all(disk.join("chunks")).unwrap();
    let report = daemon.twin("--millis 100 --patience-ms 1000");
    let (status, output) = report.end();
    assert!(status.code() == Some(3) && output.contains("\"frozen\":true"), "{output}");
    fs::remove_dir_all(disk).unwrap();
}

#[test]
fn a_folder_that_cannot_be_used_is_told_once_and_guests_are_served() {
    let disk = folder("disk-none");
    fs::write(disk.join("file"), "").unwrap();
    let flags = format!("--cache 0 --disk-cache {}", disk.join("file/chunks").display());
    let Some(mut daemon) = Daemon::start("disk-refused", &flags) else { return };
    assert!(daemon.twin(GUEST).report().is_right());
    daemon.drain();
    assert!(daemon.end().success());
    let told = daemon.rest().iter().filter(|line| line.contains("\"disk cache\"")).count();
    // Reads and writes have a line each.
    assert!((1..=2).contains(&told), "{told} lines");
    fs::remove_dir_all(disk).unwrap();
}
