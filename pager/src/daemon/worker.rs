//! The worker takes connections from the keeper, and serves their guests.

use super::channel::{Channel, Take, TakeKind};
use super::control::Guests;
use super::keeper_state::KeeperState;
use super::monitor::{Monitor, WaitingGuest};
use super::opening::{Opening, Sources, at, opening};
use super::peer;
use super::request::{Listen, Request};
use crate::cache::Cache;
use crate::guest::{Backing, Guest, GuestStats, Life, OnFailure, Options, Parts};
use crate::journal::Journal;
use crate::store::{StoreError, TemplateSource};
use crate::uffd::PAGE;
use crate::wire::{Foreign, Wire, WireError};
use rustix::fs::fcntl_get_seals;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a VMM's handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Finds the template of a socket's guests. It opens nothing.
pub type FindTemplate = Box<dyn Fn(&Listen) -> TemplateSource + Send + Sync>;

/// The process that serves guests. It may be killed at any instant.
pub struct Worker<W> {
    /// The protocol of the VMMs.
    pub wire: W,
    /// Finds the template of the guests on a socket of the keeper. If one cannot be opened, a daemon's first worker ends
    /// with the reason. A later one refuses new guests on that socket, and serves all other guests.
    pub source: FindTemplate,
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
        let (ended, sources) = (&ended, &Sources::default());
        tell_waiting(self.monitor.clone(), keeper_state);
        std::thread::scope(|scope| {
            loop {
                let Some((take, fds)) = keeper_state.keeper().channel().receive::<Take>(true)? else {
                    // The keeper was killed.
                    self.monitor.0.health.has_keeper(false);
                    match guests.start_keeper() {
                        Some(start) if keeper_state.next_keeper(start)? => {
                            self.monitor.0.health.has_keeper(true);
                            continue;
                        }
                        _ => return Ok(()),
                    }
                };
                let socket = take.socket;
                match take.what {
                    TakeKind::Guest => {}
                    TakeKind::Leaves => return Ok(()),
                    _ => {
                        self.notes(take, fds, sources, keeper_state, guests)?;
                        continue;
                    }
                }
                let connection = take.connection;
                let kills = self.options.on_failure == OnFailure::Kill;
                let done = move |pid, end: Result<GuestStats, WorkerError>, peer: Option<OwnedFd>| {
                    guests.remove(connection);
                    self.monitor.waits_for_template(connection, None);
                    _ = end.as_ref().inspect_err(|error| self.monitor.refuses(error.reason()));
                    let (end, killed) = match end {
                        Err(error) if kills => may_kill(error, peer),
                        end => (end, None),
                    };
                    ended(connection, pid, end);
                    // The log has the reason first.
                    _ = killed.map(|peer| peer::kill(&peer));
                    keeper_state.ends(connection);
                };
                // Without a descriptor this guest is refused, and the others are still served.
                if let Err(error) = keeper_state.begins(&take, &fds) {
                    done(0, Err(error.into()), None);
                    continue;
                }
                // A socket is removed after the end of its last guest.
                let source = opening(sources, keeper_state, guests, &self.monitor, Some(socket));
                let serve = move || {
                    let mut pid = 0;
                    let peer = fds.first().filter(|_| kills).and_then(|peer| peer.try_clone().ok());
                    let end = self.serve(&take, fds, &source, keeper_state, guests, &mut pid);
                    done(pid, end, peer);
                };
                // Likewise without a thread.
                if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, serve) {
                    done(0, Err(error.into()), None);
                }
            }
        })
    }

    /// Notes a message of the keeper that is about no guest.
    fn notes(
        &self,
        mut take: Take,
        mut fds: Vec<OwnedFd>,
        sources: &Sources,
        keeper_state: &Arc<KeeperState>,
        guests: &Guests,
    ) -> io::Result<()> {
        let (socket, health) = (take.socket, &self.monitor.0.health);
        let opening = |socket| opening(sources, keeper_state, guests, &self.monitor, socket);
        match take.what {
            TakeKind::Socket => {
                let is_new = self.note(sources, &take);
                if take.is_open {
                    health.socket(socket, sources.lock().get(&socket).map(|(source, _)| source.clone()));
                }
                keeper_state.socket(take, fds.pop());
                if is_new && health.has_all() {
                    opening(Some(socket)).begin(false);
                }
            }
            TakeKind::Closes => {
                health.socket(socket, None);
                keeper_state.closes(socket);
            }
            TakeKind::Forgets => {
                health.socket(socket, None);
                keeper_state.forgets(socket);
                sources.lock().remove(&socket);
            }
            TakeKind::Control => fds.drain(..).for_each(|fd| keeper_state.control(take.connection, fd)),
            TakeKind::Counts => health.set_counts(take.counts.unwrap_or_default()),
            TakeKind::Drains => {
                health.drains();
                keeper_state.drains();
            }
            TakeKind::Reload => opening(Some(socket)).begin(true),
            TakeKind::Request => match (fds.pop(), take.request.take()) {
                (Some(connection), Some(Request::Health)) => self.monitor.answer_health(connection),
                (Some(connection), request) => guests.answer(request, connection),
                (None, _) => {}
            },
            TakeKind::Yields => self.monitor.stop_listening(),
            TakeKind::All => {
                health.set_all();
                if take.is_first {
                    opening(None).all().map_err(io::Error::other)?;
                } else {
                    opening(None).begin(false);
                }
                keeper_state.tell_ready();
            }
            TakeKind::Guest | TakeKind::Leaves => {}
        }
        Ok(())
    }

    /// Notes the template of a socket. Returns whether the socket is new.
    fn note(&self, sources: &Sources, take: &Take) -> bool {
        let Some(Request::Add(listen)) = &take.request else { return false };
        let mut sources = sources.lock();
        if sources.contains_key(&take.socket) {
            return false;
        }
        let source = (self.source)(listen);
        if let Some(version) = take.version.as_ref().or(listen.version.as_ref()) {
            source.pin(version);
        }
        sources.insert(take.socket, (source, Arc::default()));
        true
    }

    /// Serves a guest from its handshake to its end.
    fn serve(
        &self,
        take: &Take,
        fds: Vec<OwnedFd>,
        source: &Opening,
        keeper_state: &KeeperState,
        guests: &Guests,
        pid: &mut i32,
    ) -> Result<GuestStats, WorkerError> {
        let count = fds.len();
        let mut fds = fds.into_iter();
        // Without its journal a guest would get pages again that it has removed.
        let is_whole = count > usize::from(take.has_files);
        let (true, Some(connection), Some((socket, template, _))) =
            (is_whole, fds.next(), source.sources.first())
        else {
            return Err(WorkerError::Keeper(count, take.socket));
        };
        let connection = UnixStream::from(connection);
        *pid = peer::pid(&connection).map_or(0, |peer| peer.as_raw_nonzero().get());
        let mut handshake = self.wire.handshake(&connection, HANDSHAKE)?;
        let mut more = Foreign(std::mem::take(&mut handshake.more));
        let life = life(connection, pid);
        // The template may have been replaced since the guest began.
        let template = match &take.version {
            Some(version) => {
                let waits = |error: &StoreError| {
                    self.monitor.waits_for_template(take.connection, Some(&template.name()));
                    keeper_state.waits(take.connection, 1, &error.to_string());
                    guests.tell_template(&template.name(), Err(error));
                };
                let opened = at(template, version, waits, |pause| life.ends_within(pause))?;
                self.monitor.waits_for_template(take.connection, None);
                keeper_state.waits(take.connection, 0, "");
                opened
            }
            // A later worker serves the same version.
            _ => source.one(*socket, false)?,
        };
        let layout = handshake.layout(template.size()).map_err(WireError::from)?;
        let kept = fds.next();
        // Firecracker's forks and our own VMMs send the file that is the guest's memory next.
        let memory = (more.0.first().is_some_and(is_memory)).then(|| more.0.remove(0));
        drop(more);
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

/// Returns the error, and the connection of a VMM that is to be killed for it: not of a process that sent no handshake, and
/// not of one that has closed the connection.
fn may_kill(error: WorkerError, peer: Option<OwnedFd>) -> (Result<GuestStats, WorkerError>, Option<OwnedFd>) {
    let is_no_vmm = matches!(error, WorkerError::Wire(WireError::Closed(_) | WireError::Late(..)));
    match peer.filter(|peer| !is_no_vmm && peer::is_there(peer)) {
        Some(peer) => (Err(WorkerError::Killed(Box::new(error))), Some(peer)),
        None => (Err(error), None),
    }
}

/// Tells the keeper which guests wait, in a thread of its own, which looks every second.
fn tell_waiting(monitor: Monitor, keeper_state: &Arc<KeeperState>) {
    let keeper_state = Arc::downgrade(keeper_state);
    let look = move || {
        let mut told: BTreeMap<u64, u64> = BTreeMap::new();
        while let Some(keeper_state) = keeper_state.upgrade() {
            let waiting = monitor.waiting();
            told.retain(|guest, _| {
                let waits = waiting.iter().any(|other| other.guest == *guest);
                if !waits {
                    keeper_state.waits(*guest, 0, "");
                }
                waits
            });
            for WaitingGuest { guest, faults, reason, .. } in waiting {
                if told.insert(guest, faults) != Some(faults) {
                    keeper_state.waits(guest, faults, &reason);
                }
            }
            drop(keeper_state);
            std::thread::sleep(Duration::from_secs(1));
        }
    };
    // Without the thread only the metrics show it.
    _ = std::thread::Builder::new().name("waiting".into()).spawn(look);
}

/// Returns whether a descriptor of a VMM is a file of shared memory. Only such files have seals, and the kernel answers
/// that itself. Another file system may be the VMM's own, and never answer.
fn is_memory(file: &OwnedFd) -> bool {
    fcntl_get_seals(file).is_ok()
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
