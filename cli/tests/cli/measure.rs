//! `slat bench`, `sim`, `calibrate` and `report`: slat-bench does them, where it lies beside the command.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const SUBCOMMANDS: [&str; 4] = ["bench", "sim", "calibrate", "report"];

/// A folder with the command in it, that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir_all(&folder.0).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_slat"), folder.0.join("slat")).unwrap();
        folder
    }

    /// With this for a `slat-bench` beside the command.
    fn with(self, script: &str) -> Self {
        let program = self.0.join("slat-bench");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn slat(&self, args: &[&str]) -> Output {
        Command::new(self.0.join("slat")).args(args).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_missing_slat_bench_is_one_line_that_names_the_build_command() {
    let folder = Folder::new("measure-missing");
    for subcommand in SUBCOMMANDS {
        let output = folder.slat(&[subcommand, "--json"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{subcommand}: {said}");
        assert!(said.contains("`cargo build --profile bench -p slat-bench`"), "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn arguments_and_exit_status_pass_through_untouched() {
    let folder = Folder::new("measure-passed")
        .with("#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done; exit 7\n");
    for subcommand in SUBCOMMANDS {
        for args in
            [&[][..], &["--help"], &["-h"], &["--version"], &["help"], &["--", "-x", "--", "a b", "", "*"]]
        {
            for before in [&[][..], &["help"], &["-q", "help"]] {
                let all = [before, &[subcommand], args].concat();
                let output = folder.slat(&all);
                let expected = all.join("\n") + "\n";
                assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
                assert_eq!((output.status.code(), output.stderr.len()), (Some(7), 0), "{all:?}");
            }
        }
    }
    let word = std::ffi::OsStr::from_bytes(b"\xff");
    let output = Command::new(folder.0.join("slat")).arg("sim").arg(word).output().unwrap();
    assert_eq!(output.stdout, b"sim\n\xff\n", "no UTF-8");
}

#[test]
fn a_slat_bench_that_cannot_be_executed_is_exit_status_2() {
    let folder = Folder::new("measure-broken").with("");
    fs::set_permissions(folder.0.join("slat-bench"), fs::Permissions::from_mode(0o644)).unwrap();
    let output = folder.slat(&["bench", "zap"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("slat-bench: "), "{said}");
}

#[test]
fn help_says_which_subcommands_are_slat_benchs() {
    let output = Command::new(env!("CARGO_BIN_EXE_slat")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for subcommand in SUBCOMMANDS {
        let line = help.lines().find(|line| line.trim_start().starts_with(&format!("{subcommand} ")));
        assert!(line.is_some_and(|line| line.ends_with("(by slat-bench)")), "{help}");
    }
    assert!(help.contains("cargo build --profile bench -p slat-bench"), "{help}");
}

#[test]
fn completions_and_manual_pages_are_slat_benchs_where_it_is() {
    let folder = Folder::new("measure-generate");
    let own = folder.slat(&["completions", "bash"]);
    assert!(own.status.success() && own.stdout.len() > 1000);
    let folder = folder.with("#!/bin/sh\necho \"$@\"\n");
    for args in [["completions", "bash"], ["man", "/nowhere"]] {
        assert_eq!(String::from_utf8(folder.slat(&args).stdout).unwrap(), args.join(" ") + "\n");
    }
}
