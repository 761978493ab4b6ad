//! The worker takes connections from the keeper, and serves their guests.

use super::channel::{Channel, Take, TakeKind};
use super::control::Guests;
use super::keeper_state::KeeperState;
use super::monitor::Monitor;
use super::peer;
use crate::cache::Cache;
use crate::guest::{Backing, Guest, GuestStats, Life, OnFailure, Options, Parts};
use crate::journal::Journal;
use crate::store::{StoreError, Template, TemplateSource};
use crate::uffd::PAGE;
use crate::wire::{Wire, WireError};
use rustix::fs::fcntl_get_seals;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a VMM's handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The process that serves guests. It may be killed at any instant.
pub struct Worker<W> {
    /// The protocol of the VMMs.
    pub wire: W,
    /// The template of the guests on each socket of the keeper. If one cannot be opened, a daemon's first worker ends with
    /// the reason. A later one refuses new guests on that socket, and serves all other guests.
    pub templates: Vec<TemplateSource>,
    /// The cache that all guests share.
    pub cache: Arc<Cache>,
    /// Options for serving guests.
    pub options: Options,
    /// State for operators.
    pub monitor: Monitor,
}

/// Why a connection was closed before its guest ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The VMM's handshake was refused.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The template with which the guest began is gone.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system refused a call.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The keeper sent a wrong number of descriptors.
    #[error(
        "{0} descriptors came from the keeper for socket {1}: this process may have none left (`ulimit -n`)"
    )]
    Keeper(usize, usize),
    /// The guest could not be served, and [`OnFailure::Kill`] is the policy.
    #[error("{0}; its VMM is killed")]
    Killed(Box<WorkerError>),
}

impl<W: Wire> Worker<W> {
    /// Serves the connections that the keeper sends. One thread for each guest waits, and those of [`Options`] serve.
    /// Calls `ended` for each guest, with its number and the id of its process (0: unknown).
    ///
    /// Without a keeper it serves the existing guests until they end; see [`Guests::start_keeper_by`].
    pub fn run(
        &self,
        keeper: OwnedFd,
        ended: impl Fn(u64, i32, Result<GuestStats, WorkerError>) + Sync,
    ) -> io::Result<()> {
        self.run_with(keeper, &Guests::default(), ended)
    }

    /// As [`Worker::run`], with `guests` as the list of guests.
    pub fn run_with(
        &self,
        keeper: OwnedFd,
        guests: &Guests,
        ended: impl Fn(u64, i32, Result<GuestStats, WorkerError>) + Sync,
    ) -> io::Result<()> {
        let keeper_state = &Arc::new(KeeperState::new(Channel::new(keeper)));
        let ended = &ended;
        std::thread::scope(|scope| {
            loop {
                let Some((take, mut fds)) = keeper_state.keeper().channel().receive::<Take>(true)? else {
                    // The keeper was killed.
                    match guests.start_keeper() {
                        Some(start) if keeper_state.next_keeper(start)? => continue,
                        _ => return Ok(()),
                    }
                };
                match take.what {
                    TakeKind::Guest => {}
                    TakeKind::Socket => {
                        fds.drain(..).for_each(|socket| keeper_state.socket(take.socket, socket));
                        continue;
                    }
                    TakeKind::Drains => {
                        keeper_state.drains();
                        continue;
                    }
                    TakeKind::All => {
                        let opening = self.opening(keeper_state, guests);
                        if take.is_first {
                            opening.all(TemplateSource::open).map_err(io::Error::other)?;
                        } else {
                            opening.begin(false);
                        }
                        keeper_state.tell_ready();
                        continue;
                    }
                    TakeKind::Version => {
                        let source = self.templates.get(take.socket);
                        if let (Some(source), Some(version)) = (source, take.version) {
                            source.pin(&version);
                            keeper_state.version(take.socket, version);
                        }
                        continue;
                    }
                    TakeKind::Reload => {
                        self.opening(keeper_state, guests).begin(true);
                        continue;
                    }
                    TakeKind::Leaves => return Ok(()),
                }
                let connection = take.connection;
                let done = move |pid, end| {
                    guests.remove(connection);
                    ended(connection, pid, end);
                    keeper_state.ends(connection);
                };
                // Without a descriptor this guest is refused, and the others are still served.
                if let Err(error) = keeper_state.begins(&take, &fds) {
                    done(0, Err(error.into()));
                    continue;
                }
                let serve = move || {
                    let (mut pid, kills) = (0, self.options.on_failure == OnFailure::Kill);
                    let peer = fds.first().filter(|_| kills).and_then(|peer| peer.try_clone().ok());
                    let end = self.serve(&take, fds, keeper_state, guests, &mut pid);
                    done(pid, end.map_err(|error| failed(error, peer)));
                };
                // Likewise without a thread.
                if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, serve) {
                    done(0, Err(error.into()));
                }
            }
        })
    }

    fn opening(&self, keeper_state: &Arc<KeeperState>, guests: &Guests) -> Opening {
        let (sources, guests) = (self.templates.clone(), guests.clone());
        Opening { sources, guests, keeper_state: keeper_state.clone() }
    }

    /// Serves a guest from its handshake to its end.
    fn serve(
        &self,
        take: &Take,
        fds: Vec<OwnedFd>,
        keeper_state: &KeeperState,
        guests: &Guests,
        pid: &mut i32,
    ) -> Result<GuestStats, WorkerError> {
        let count = fds.len();
        let mut fds = fds.into_iter();
        let (Some(connection), Some(template)) = (fds.next(), self.templates.get(take.socket)) else {
            return Err(WorkerError::Keeper(count, take.socket));
        };
        let connection = UnixStream::from(connection);
        *pid = peer::pid(&connection).map_or(0, |peer| peer.as_raw_nonzero().get());
        let handshake = self.wire.handshake(&connection, HANDSHAKE)?;
        // The template may have been replaced since the guest began.
        let template = match &take.version {
            Some(version) => {
                at(template, version, |error| guests.tell_template(&template.name(), Err(error)))?
            }
            _ => template.open()?,
        };
        let layout = handshake.layout(template.size()).map_err(WireError::from)?;
        let kept = fds.next();
        // Firecracker's forks and our own VMMs send the file that is the guest's memory next.
        let memory = handshake.more.into_iter().next().filter(is_memory);
        let is_new = kept.is_none();
        let journal =
            kept.map_or_else(|| Journal::new(&layout), |journal| Journal::open(journal, &layout))?;
        let backing = if layout.page_size() == PAGE {
            guests.backing(&template, memory, fds.next())?
        } else {
            // Huge pages are neither shared by clones nor reclaimed.
            memory.map_or(Backing::Own, Backing::Memory)
        };
        if is_new {
            // Before the first event is read, because the journal is needed from then on.
            let mut files = vec![journal.share()?];
            files.extend(backing.swap().map(|swap| swap.try_clone_to_owned()).transpose()?);
            keeper_state.keep(take.connection, template.version(), files);
        }
        let life = life(connection, pid);
        let (cache, name) = (self.cache.clone(), template.name().to_owned());
        let parts = Parts { uffd: handshake.uffd, layout, template, cache, journal, life: Some(life) };
        let guest = Guest::serve_on(parts, backing, self.options)?;
        guests.add(take.connection, *pid, guest.handle());
        self.monitor.begins(take.connection, *pid, &name, guest.watch());
        let stats = guest.wait();
        self.monitor.ends(take.connection, &stats);
        Ok(stats)
    }
}

/// Opens the templates of all sockets.
struct Opening {
    sources: Vec<TemplateSource>,
    guests: Guests,
    keeper_state: Arc<KeeperState>,
}

impl Opening {
    /// Opens each one by `open`. Ends at the first error.
    fn all(&self, open: impl Fn(&TemplateSource) -> Result<Template, StoreError>) -> Result<(), StoreError> {
        (0..self.sources.len()).try_for_each(|socket| self.one(socket, &open).map(drop))
    }

    /// Opens them in a thread of its own, for which nothing waits, not even the end of this process: each guest opens what
    /// it needs. Tells why some cannot be opened. If it is a reload, opens the newest versions, and tells them.
    fn begin(self, is_reload: bool) {
        let open = move || {
            let open = if is_reload { TemplateSource::reload } else { TemplateSource::open };
            for (socket, source) in self.sources.iter().enumerate() {
                match self.one(socket, &open) {
                    Ok(template) if is_reload => {
                        self.guests.tell_template(&source.name(), Ok(template.version()));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        if is_reload && matches!(error, StoreError::Missing(_)) {
                            self.keeper_state.opened(socket, None);
                        }
                        self.guests.tell_template(&source.name(), Err(&error));
                    }
                }
            }
        };
        _ = std::thread::Builder::new().name("templates".into()).spawn(open);
    }

    fn one(
        &self,
        socket: usize,
        open: &impl Fn(&TemplateSource) -> Result<Template, StoreError>,
    ) -> Result<Template, StoreError> {
        let source = &self.sources[socket];
        let template = open(source)?;
        let shared = |error| StoreError::Io { key: source.name(), error };
        self.guests.share(&template).map_err(shared)?;
        self.keeper_state.opened(socket, Some(template.version()));
        Ok(template)
    }
}

/// Kills the VMM at the other end, if `peer` is known and the handshake was accepted.
fn failed(error: WorkerError, peer: Option<OwnedFd>) -> WorkerError {
    match peer {
        Some(peer) if !matches!(error, WorkerError::Wire(_)) && peer::kill(&peer).is_ok() => {
            WorkerError::Killed(Box::new(error))
        }
        _ => error,
    }
}

/// Returns whether a descriptor of a VMM is a file of shared memory. Only such files have seals, and the kernel answers
/// that itself. Another file system may be the VMM's own, and never answer.
fn is_memory(file: &OwnedFd) -> bool {
    fcntl_get_seals(file).is_ok()
}

/// Opens the template with which a guest began. It waits while the store is out of reach, because no other process
/// serves the guest. Calls `waits` once if it does.
pub(crate) fn at(
    template: &TemplateSource,
    version: &str,
    waits: impl FnOnce(&StoreError),
) -> Result<Template, StoreError> {
    let (mut pause, mut waits) = (Duration::from_millis(50), Some(waits));
    loop {
        match template.at(version) {
            Err(error) if error.may_pass() => {
                if let Some(waits) = waits.take() {
                    waits(&error);
                }
                std::thread::sleep(pause);
            }
            found => return found,
        }
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Returns the means to see the end of the VMM: its process, or the connection if the process is in another pid
/// namespace.
fn life(connection: UnixStream, pid: &mut i32) -> Life {
    match peer::process(&connection) {
        Ok((peer, process)) => {
            *pid = peer.as_raw_nonzero().get();
            Life::Process(process)
        }
        Err(_) => Life::Connection(connection.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn only_shared_memory_is_taken_for_memory() {
        assert!(is_memory(&memfd_create("test", MemfdFlags::CLOEXEC).unwrap()));
        if let Ok(huge) = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
            assert!(is_memory(&huge));
        }
        let (socket, _other) = UnixStream::pair().unwrap();
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let [folder, proc] = ["/", "/proc/self/mem"].map(|path| std::fs::File::open(path).unwrap().into());
        for other in [socket.into(), pipe, folder, proc] {
            assert!(!is_memory(&other));
        }
    }
}
