//! Far memory: an image on a foreign NBD server, qemu-nbd (`apt-get install qemu-utils`) or nbdkit.

use crate::daemon::{Daemon, folder, image, is_offered};
use slat_pager::Nbd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Server(Child);

impl Server {
    /// Serves a file at the socket `nbd` beside it. `None`: neither server is installed.
    fn start(file: &Path, kit: bool) -> Option<Self> {
        let socket = socket(file);
        _ = std::fs::remove_file(&socket);
        let mut command;
        if kit {
            command = Command::new("nbdkit");
            command
                .arg("-f")
                .arg("-U")
                .arg(&socket)
                .arg("--filter=delay")
                .arg("file")
                .arg(file)
                .arg("rdelay=2ms");
        } else {
            command = Command::new("qemu-nbd");
            command.args(["--format=raw", "--persistent", "--shared=64", "--socket"]).arg(&socket).arg(file);
        }
        let name = command.get_program().to_owned();
        let mut server = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Self(child),
            Err(error) => {
                println!("skipped: no {}: {error}", name.display());
                return None;
            }
        };
        let until = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until && server.0.try_wait().unwrap().is_none(), "{}", name.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn socket(file: &Path) -> PathBuf {
    file.with_file_name("nbd")
}

fn address(file: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket(file).display())
}

#[test]
fn an_export_is_read_and_written_and_survives_its_server() {
    let folder = folder("nbd-bytes");
    let file = folder.join("image");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let Some(server) = Server::start(&file, false) else {
        return std::fs::remove_dir_all(folder).unwrap();
    };
    let nbd = Nbd::open(&address(&file)).unwrap();
    assert_eq!(nbd.size(), 1 << 20);
    nbd.write_at(&[9; 4096], 8192).unwrap();
    nbd.flush().unwrap();
    let mut bytes = [0; 3 * 4096];
    nbd.read_at(&mut bytes, 4096).unwrap();
    assert!(
        [7, 9, 7].iter().zip(bytes.chunks(4096)).all(|(byte, page)| page.iter().all(|other| other == byte))
    );
    for (length, offset) in [(1, 1 << 20), (4096, u64::MAX), (8192, (1 << 20) - 4096)] {
        assert!(nbd.read_at(&mut vec![0; length], offset).is_err());
    }
    drop(server);
    assert!(nbd.read_at(&mut bytes, 0).is_err());
    let server = Server::start(&file, false).unwrap();
    nbd.read_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes[4096..8192], [9; 4096]);
    // An image of another size has another version.
    drop(server);
    std::fs::write(&file, vec![7; 2 << 20]).unwrap();
    let _server = Server::start(&file, false).unwrap();
    _ = nbd.read_at(&mut bytes, 0);
    assert!(nbd.read_at(&mut bytes, 0).unwrap_err().to_string().contains("had 1048576"));
    std::fs::remove_dir_all(folder).unwrap();
}

fn guests(name: &str, kit: bool) {
    if !is_offered() {
        return;
    }
    let folder = folder(name);
    let file = image(&folder);
    let Some(server) = Server::start(&file, kit) else {
        return std::fs::remove_dir_all(folder).unwrap();
    };
    let mut daemon = Daemon::of_nbd(folder, &address(&file));
    let twins =
        [1, 2].map(|seed| daemon.twin(&format!("--millis 900 --balloon --seed {seed} --patience-ms 10000")));
    std::thread::sleep(Duration::from_millis(150));
    drop(server);
    std::thread::sleep(Duration::from_millis(300));
    let server = Server::start(&file, kit);
    daemon.kill();
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
    }
    drop((daemon, server));
}

#[test]
fn guests_of_far_memory_wait_for_a_server_that_is_killed_and_are_right() {
    guests("nbd-qemu", false);
}

#[test]
fn the_same_with_another_server_that_is_slow() {
    guests("nbd-kit", true);
}
