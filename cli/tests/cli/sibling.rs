//! Subcommands that a sibling program runs: slat-bench, slat-pager, slat-vmm.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const SUBCOMMANDS: [&str; 4] = ["bench", "sim", "calibrate", "report"];

/// A folder that contains the command and is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir_all(&folder.0).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_slat"), folder.0.join("slat")).unwrap();
        folder
    }

    /// Adds this file as the `slat-bench` beside the command.
    fn with(self, script: &str) -> Self {
        self.with_program("slat-bench", script)
    }

    fn with_program(self, name: &str, script: &str) -> Self {
        let program = self.0.join(name);
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
fn a_missing_program_is_one_line_that_names_the_build_command() {
    let folder = Folder::new("sibling-missing");
    let benches = SUBCOMMANDS.map(|subcommand| (subcommand, "cargo build --profile bench -p slat-bench"));
    let others =
        [("pager", "cd pager && cargo build --release"), ("vmm", "cargo build --release -p slat-vmm")];
    for (subcommand, build) in benches.into_iter().chain(others) {
        let output = folder.slat(&[subcommand, "--json"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{subcommand}: {said}");
        assert!(said.contains(&format!("`{build}`")), "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn arguments_and_exit_status_pass_through_untouched() {
    let folder = Folder::new("sibling-passed")
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
    let folder = Folder::new("sibling-broken").with("");
    fs::set_permissions(folder.0.join("slat-bench"), fs::Permissions::from_mode(0o644)).unwrap();
    let output = folder.slat(&["bench", "zap"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("slat-bench: "), "{said}");
}

#[test]
fn the_pager_and_the_vmm_are_told_what_comes_after_their_subcommand() {
    const ECHO: &str = "#!/bin/sh\necho \"$0\" \"$@\"; exit 5\n";
    let folder =
        Folder::new("sibling-others").with_program("slat-pager", ECHO).with_program("slat-vmm", ECHO);
    for subcommand in ["pager", "vmm"] {
        let calls: [(&[&str], &str); 5] = [
            (&[subcommand], ""),
            (&[subcommand, "serve", "--", "-x"], " serve -- -x"),
            (&["-q", subcommand, "--help"], " --help"),
            (&["help", subcommand], " --help"),
            (&[subcommand, subcommand], &format!(" {subcommand}")),
        ];
        for (args, told) in calls {
            let output = folder.slat(args);
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.ends_with(&format!("/slat-{subcommand}{told}\n")), "{args:?}: {said}");
            assert_eq!((output.status.code(), output.stderr.len()), (Some(5), 0));
        }
    }
}

#[test]
fn completions_and_manual_pages_are_slat_benchs_where_it_is() {
    let folder = Folder::new("sibling-generate");
    let own = folder.slat(&["completions", "bash"]);
    assert!(own.status.success() && own.stdout.len() > 1000);
    let folder = folder.with("#!/bin/sh\necho \"$@\"\n");
    for args in [["completions", "bash"], ["man", "/nowhere"]] {
        assert_eq!(String::from_utf8(folder.slat(&args).stdout).unwrap(), args.join(" ") + "\n");
    }
}
