//! A model of a daemon, its VMMs and its operator. A seed draws what happens next: a guest, a hostile connection, a kill of
//! worker or keeper, a new version, a reload, a socket that is added or removed. The model knows which version each guest
//! must have, and each guest checks every byte.

use crate::control::listed;
use crate::daemon::{Daemon, IMAGE, MIB, Twin, is_offered, library, with_template};
use crate::soak::number;
use rustix::process::{Pid, Signal, kill_process};
use slat_pager::twin::Image;
use slat_pager::{Listen, Request, ask};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

struct Model {
    daemon: Daemon,
    keeper: Option<Pid>,
    control: PathBuf,
    random: fastrand::Rng,
    /// The seed of the newest version's image.
    newest: u64,
    /// The seed of the image that new guests get, by open socket.
    served: BTreeMap<PathBuf, u64>,
    /// The number of the next socket.
    next: u64,
    twins: Vec<Twin>,
    did: Vec<String>,
}

impl Model {
    fn any_socket(&mut self) -> (PathBuf, u64) {
        let at = self.random.usize(..self.served.len());
        self.served.iter().nth(at).map(|(path, seed)| (path.clone(), *seed)).unwrap()
    }

    fn ask(&self, request: &Request) {
        ask(&self.control, request, PATIENCE).unwrap_or_else(|error| panic!("{:?}: {error}", self.did));
    }

    fn begin(&mut self, socket: &Path, seed: u64, millis: u64) {
        let words = format!(
            "--millis {millis} --balloon --image-seed {seed} --patience-ms 20000 --seed {}",
            self.did.len()
        );
        let mut twin = Twin::at(socket, MIB, &words);
        // From then on nothing changes its version.
        let pid = twin.0.id() as i32;
        listed(&self.control, |listed| {
            let has_ended = twin_has_ended(pid);
            has_ended || listed.sessions.iter().any(|session| session.pid == pid)
        });
        assert!(twin.0.try_wait().unwrap().is_none_or(|status| status.success()), "{:?}", self.did);
        self.twins.push(twin);
    }

    fn act(&mut self) {
        let kind = self.random.u8(..9);
        self.did.push(kind.to_string());
        match kind {
            0 | 1 => {
                let (socket, seed) = self.any_socket();
                self.begin(&socket, seed, 700);
            }
            2 => {
                let (socket, _) = self.any_socket();
                let mut connection = UnixStream::connect(socket).unwrap();
                _ = connection.write_all(if self.random.bool() { b"[1]" } else { b"[" });
            }
            3 => self.daemon.kill(),
            4 => {
                match self.keeper {
                    Some(keeper) => kill_process(keeper, Signal::KILL).unwrap(),
                    None => self.daemon.kill_keeper(),
                }
                self.keeper = Some(self.daemon.next_keeper());
            }
            5 => {
                self.newest += 1;
                let image = Image { seed: self.newest, ..IMAGE };
                library(&self.daemon.folder)
                    .snapshot("twin", image.read(), (MIB << 20) as u64, 64 << 10)
                    .unwrap();
            }
            6 => {
                self.ask(&Request::Reload { template: None });
                self.served.values_mut().for_each(|seed| *seed = self.newest);
            }
            7 => {
                let path = self.daemon.folder.join(format!("added.{}", self.next));
                self.next += 1;
                self.ask(&Request::Add(Listen::template(&path, "twin")));
                self.served.insert(path, self.newest);
            }
            _ => {
                let (socket, _) = self.any_socket();
                if socket != self.daemon.socket() {
                    self.ask(&Request::Remove { socket: socket.clone() });
                    self.served.remove(&socket);
                    assert!(UnixStream::connect(&socket).is_err(), "{:?}", self.did);
                }
            }
        }
        let state = listed(&self.control, |_| true);
        let open: Vec<_> =
            state.sockets.iter().filter(|socket| socket.is_open).map(|socket| &socket.socket).collect();
        let mut expected: Vec<_> = self.served.keys().collect();
        expected.sort_by_key(|path| open.iter().position(|other| other == path));
        assert_eq!(open, expected, "{:?}", self.did);
    }
}

/// Returns whether the process has ended, although its status was not read.
fn twin_has_ended(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

fn explore(seed: u64, turns: u64) {
    let folder = with_template(&format!("turns-{seed}"));
    let control = folder.join("control");
    let flags = format!("--cache 0 --store-delay-ms 2 --control {}", control.display());
    let daemon = Daemon::in_folder(folder, &flags);
    let served = BTreeMap::from([(daemon.socket(), 1)]);
    let (random, twins, did) = (fastrand::Rng::with_seed(seed), Vec::new(), vec![format!("seed {seed}")]);
    let mut model = Model { daemon, keeper: None, control, random, newest: 1, served, next: 0, twins, did };
    // A worker without guests would end with its keeper.
    let socket = model.daemon.socket();
    model.begin(&socket, 1, 120_000);
    let stays = model.twins.remove(0);
    (0..turns).for_each(|_| model.act());
    for twin in model.twins.drain(..) {
        let report = twin.report();
        assert!(report.is_right(), "{:?}: {report:?}", model.did);
    }
    model.ask(&Request::Drain);
    drop(stays);
    model.daemon.rest();
}

#[test]
fn guests_have_their_versions_in_any_order_of_kills_and_requests() {
    if !is_offered() {
        return;
    }
    for seed in 0..number("SLAT_PAGER_SOAK_SEEDS", 2) {
        explore(seed, number("SLAT_PAGER_SOAK_TURNS", 16));
    }
}
