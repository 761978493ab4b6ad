//! `slat report` as its users meet it.

use crate::common::refused;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/report.data.json");

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&folder.0);
        folder
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(&self.0).unwrap().map(Result::unwrap);
        let mut files: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "--foreground", "120", env!("CARGO_BIN_EXE_slat-bench"), "report"])
        .args(args);
    command.stdin(Stdio::null());
    command
}

fn slat(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

#[test]
fn the_same_data_make_the_same_files() {
    let folders = [Folder::new("report-one"), Folder::new("report-other")];
    for folder in &folders {
        let output = slat(&["--from", DATA, "-o", folder.path()]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty());
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), format!("{}/index.html", folder.path()));
    }
    let [one, other] = folders.each_ref().map(Folder::files);
    assert!(one == other, "two pages of the same data differ");
    let names: Vec<&str> = one.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["data.json", "index.html", "report.md"]);
    // Its own data make the same page again.
    let again = Folder::new("report-again");
    let data = format!("{}/data.json", folders[0].path());
    assert!(slat(&["--from", &data, "-o", again.path()]).status.success());
    assert!(again.files() == one);
}

#[test]
fn a_check_that_does_not_hold_is_exit_status_1() {
    let folder = Folder::new("report-false");
    fs::create_dir_all(&folder.0).unwrap();
    let data = format!("{}/false.json", folder.path());
    fs::write(&data, fs::read_to_string(DATA).unwrap().replacen("\"ok\":true", "\"ok\":false", 1)).unwrap();
    let output = slat(&["--from", &data, "-o", folder.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(fs::read_to_string(folder.0.join("index.html")).unwrap().contains("1 check does not hold"));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_run() {
    let folder = Folder::new("report-refused");
    fs::create_dir_all(&folder.0).unwrap();
    let file = format!("{}/file", folder.path());
    fs::write(&file, "{\"slat\": 1}").unwrap();
    refused(&["report", "--quick", "-o", &file], &["--output", &file]);
    refused(&["report", "-o", &format!("{file}/below")], &["--output"]);
    fs::create_dir(folder.0.join("index.html")).unwrap();
    refused(&["report", "--quick", "-o", folder.path()], &["--output", "index.html is a folder"]);
    let elsewhere = format!("{}/elsewhere", folder.path());
    refused(&["report", "--from", &format!("{file}-none"), "-o", &elsewhere], &["--from", "file-none"]);
    refused(&["report", "--from", &file, "-o", &elsewhere], &["--from", "line 1"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_page_of_what_there_is() {
    let folder = Folder::new("report-interrupted");
    let mut child = command(&["--quick", "-o", folder.path()])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("1 of "));
    // `timeout` hands it on.
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let page = fs::read_to_string(folder.0.join("index.html")).unwrap();
    assert!(page.contains("Interrupted: "));
}
