//! Runs the commands of the book's chapter for operators.

use crate::control::listed;
use crate::daemon::{IMAGE, MIB, Twin, folder, is_offered};
use crate::monitoring::text;
use rustix::process::{Pid, Signal, getgid, getuid, kill_process_group};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(60);

/// Daemons that end with the test.
#[derive(Default)]
struct Daemons(Vec<Child>);

impl Drop for Daemons {
    fn drop(&mut self) {
        for daemon in &mut self.0 {
            _ = kill_process_group(Pid::from_child(daemon), Signal::KILL);
            _ = daemon.wait();
        }
    }
}

/// Returns the lines of a chapter's blocks in this language.
fn blocks(chapter: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let blocks = chapter.split(&begin).skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.flat_map(|(block, _)| block.lines().map(str::to_owned)).collect()
}

/// A folder in place of the host's root.
struct Place {
    root: PathBuf,
    /// Words of the chapter, and those of this test.
    words: Vec<(String, String)>,
}

impl Place {
    fn new(root: PathBuf) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let shown = root.display();
        let folders = ["/etc/", "/run/", "/srv/"].map(|path| (path.into(), format!("{shown}{path}")));
        let mut words = vec![
            ("127.0.0.1:9464".to_owned(), free.to_string()),
            ("guest.mem".to_owned(), format!("{shown}/guest.mem")),
            ("--uid 1007".to_owned(), format!("--uid {}", getuid().as_raw())),
            ("--gid 1007".to_owned(), format!("--gid {}", getgid().as_raw())),
        ];
        words.extend(folders);
        Self { root, words }
    }

    fn translated(&self, line: &str) -> String {
        self.words.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to))
    }

    fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let program = match words.next() {
            Some("slat-pager") => env!("CARGO_BIN_EXE_slat-pager"),
            program => program.unwrap(),
        };
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.root);
        command
    }
}

/// Runs a command until it succeeds: a daemon begins or ends meanwhile.
fn run(place: &Place, line: &str) -> Output {
    let began = Instant::now();
    loop {
        let output = place.command(line).output().unwrap();
        if output.status.success() {
            return output;
        }
        assert!(began.elapsed() < BOUND, "{line}: {output:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_commands_of_the_chapter_do_what_it_says() {
    let Some(chapter) = text("../book/src/pager-operators.md").filter(|_| is_offered()) else { return };
    let mut place = Place::new(folder("chapter"));
    for folder in ["etc", "run/slat-pager", "srv/templates", "srv/jailer/vm7/root"] {
        std::fs::create_dir_all(place.root.join(folder)).unwrap();
    }
    IMAGE.write(&mut std::fs::File::create(place.root.join("guest.mem")).unwrap()).unwrap();
    let config = place.translated(&blocks(&chapter, "toml").join("\n"));
    std::fs::write(place.root.join("etc/slat-pager.toml"), config).unwrap();
    let control = place.root.join("run/slat-pager/control.socket");
    let has_curl = Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_ok();

    let (mut daemons, mut guests, mut ran) = (Daemons::default(), Vec::new(), 0);
    let lines = blocks(&chapter, "console");
    for line in lines.iter().filter_map(|line| line.strip_prefix("$ ")) {
        let line = place.translated(line);
        if line.starts_with("curl") && !has_curl {
            continue;
        }
        ran += 1;
        if let Some(serve) = line.strip_suffix(" &") {
            let daemon = place.command(serve).process_group(0).stderr(Stdio::null()).spawn().unwrap();
            if daemons.0.is_empty() {
                place.words.push(("4711".into(), daemon.id().to_string()));
            }
            let keeper = daemon.id();
            daemons.0.push(daemon);
            // At the path of the control socket.
            let began = Instant::now();
            while slat_pager::list(&control).map_or(0, |listed| listed.keeper) != keeper {
                assert!(began.elapsed() < BOUND, "{line}");
                std::thread::sleep(Duration::from_millis(20));
            }
            continue;
        }
        let output = run(&place, &line);
        let said = String::from_utf8(output.stdout).unwrap();
        if line.ends_with(" ready") {
            assert_eq!(said, "ready\n");
            // The guest that the chapter restores then.
            let socket = place.root.join("run/slat-pager/debian.socket");
            guests.push(Twin::at(&socket, MIB, "--millis 120000 --patience-ms 120000"));
            listed(&control, |listed| listed.sessions.iter().any(|session| session.state == "runs"));
        } else if line.contains(" list") {
            assert!(said.contains("1 guests") && said.contains("  runs  "), "{said}");
        } else if line.contains(" add ") {
            assert!(is_socket(&place.root.join("srv/jailer/vm7/root/pager.socket")));
        } else if line.contains(" remove ") {
            assert!(!place.root.join("srv/jailer/vm7/root/pager.socket").exists());
        } else if line.ends_with("/metrics") {
            crate::exposition::parse(&said).unwrap();
        }
    }
    assert!(ran >= 15 && daemons.0.len() == 2, "{ran} commands");
    drop(guests);
    // The first daemon drains, and ends with its last guest.
    let began = Instant::now();
    while daemons.0[0].try_wait().unwrap().is_none() {
        assert!(began.elapsed() < BOUND, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(daemons);
    std::fs::remove_dir_all(&place.root).unwrap();
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}
