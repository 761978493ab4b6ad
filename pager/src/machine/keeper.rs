//! Machines whose pager may be killed. A small process, the keeper, holds the state that is needed to continue, and
//! restarts the serving process.
//!
//! A read takes a VMM's request out of its connection, so a worker that is killed before its answer would leave the VMM
//! waiting. Therefore the keeper reads the requests and writes the answers. It passes both on unchanged, by a pair of
//! sockets for each machine. A VMM asks for one page at a time. The next worker gets the unanswered request again.

use super::Restore;
use super::restore::{Begun, Serving};
use crate::cache::Cache;
use crate::daemon::{Channel, at};
use crate::guest::GuestStats;
use crate::store::{Template, TemplateSource};
use crate::wire::{HEADER, MigrationError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// The most bytes of a request for a page.
const MOST_ASKED: usize = 2 * HEADER;
/// Descriptors in a message.
const MOST_FDS: usize = 12;

/// From the keeper: a machine to serve, with its journal and its memory files if its VMM already has it.
#[derive(Clone, Serialize, Deserialize)]
struct Take {
    machine: usize,
    version: Option<String>,
    /// Number of messages that follow.
    left: usize,
}

/// A worker's message about a machine.
#[derive(Serialize, Deserialize)]
enum Said {
    /// The VMM has its memory. The descriptors are the VMM's connection for pages, the journal, and the memory files;
    /// further ones follow in the next message of this kind.
    Keep(usize, String),
    /// One end of a pair of sockets: the worker wants requests for pages.
    Relay(usize),
    /// The VMM has its state.
    Restored(usize),
    /// The machine has ended; the flag says whether without an error.
    Ended(usize, bool),
}

/// The keeper's data of a machine.
#[derive(Default)]
struct Kept {
    version: Option<String>,
    vmm: Option<OwnedFd>,
    /// Journal and memory files.
    files: Vec<OwnedFd>,
    relay: Option<OwnedFd>,
    /// The VMM's unanswered request, and how much of the answer it has.
    asked: Vec<u8>,
    answered: usize,
    is_restored: bool,
    end: Option<bool>,
}

/// Starts a worker for `machines` machines, and restarts it if it is killed, until all machines have ended. Returns
/// whether each was restored. The worker calls [`serve_machines`] with its standard input.
///
/// # Errors
/// The first worker exits by itself before any VMM has a machine, because its arguments are wrong, and has printed why.
pub fn keep_machines(machines: usize, command: impl Fn() -> Command) -> io::Result<Vec<bool>> {
    let mut kept: Vec<Kept> = (0..machines).map(|_| Kept::default()).collect();
    let mut quick = 0;
    loop {
        let began = Instant::now();
        let status = worker(&mut kept, command())?;
        if kept.iter().all(|kept| kept.end.is_some()) {
            return Ok(kept.iter().map(|kept| kept.end == Some(true)).collect());
        }
        let is_new = kept.iter().all(|kept| kept.vmm.is_none() && kept.end.is_none());
        if is_new && status.code().is_some_and(|code| code != 0) {
            return Err(io::Error::other(format!("the worker ended: {status}")));
        }
        // A worker that ends quickly is not restarted forever. VMMs wait.
        quick = if began.elapsed() > Duration::from_secs(10) { 0 } else { quick + 1 };
        std::thread::sleep(Duration::from_millis(1 << quick.min(10)));
    }
}

/// Serves one worker until it ends.
fn worker(kept: &mut [Kept], mut command: Command) -> io::Result<ExitStatus> {
    let (channel, theirs) = Channel::pair()?;
    let mut child = command.stdin(theirs).spawn()?;
    // The command holds the worker's end, which must close when the worker ends.
    drop(command);
    let mut takes = Vec::new();
    for (machine, kept) in kept.iter().enumerate().filter(|(_, kept)| kept.end.is_none()) {
        let take = Take { machine, version: kept.version.clone(), left: 0 };
        let parts = kept.files.len().div_ceil(MOST_FDS).max(1);
        takes.extend((0..parts).map(|part| (take.clone(), part)));
    }
    for (number, (take, part)) in takes.iter().enumerate() {
        let take = Take { left: takes.len() - 1 - number, ..take.clone() };
        let files = kept[take.machine].files.iter().skip(part * MOST_FDS).take(MOST_FDS);
        let files: Vec<_> = files.map(AsFd::as_fd).collect();
        // A killed worker gets no message.
        _ = channel.send(&take, &files);
    }
    loop {
        let never = PollFlags::empty();
        let mut fds = vec![PollFd::new(&channel, PollFlags::IN)];
        for kept in kept.iter() {
            let relay = kept.relay.as_ref();
            fds.push(relay.map_or(PollFd::new(&channel, never), |relay| PollFd::new(relay, PollFlags::IN)));
            let vmm = kept.vmm.as_ref().filter(|_| kept.relay.is_some() && kept.asked.len() < MOST_ASKED);
            fds.push(vmm.map_or(PollFd::new(&channel, never), |vmm| PollFd::new(vmm, PollFlags::IN)));
        }
        if poll(&mut fds, None).is_err() {
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect();
        let is_said = !fds[0].revents().is_empty();
        for (kept, ready) in kept.iter_mut().zip(ready[1..].chunks_exact(2)) {
            if ready[0] {
                kept.answer();
            }
            if ready[1] {
                kept.ask();
            }
        }
        if is_said && !hear(&channel, kept) {
            return end(kept, &mut child);
        }
    }
}

/// Reads the worker's messages. Returns whether the worker lives.
fn hear(channel: &Channel, kept: &mut [Kept]) -> bool {
    loop {
        let (said, fds) = match channel.receive::<Said>(false) {
            Ok(Some(said)) => said,
            Ok(None) => return false,
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        let (Said::Keep(machine, _)
        | Said::Relay(machine)
        | Said::Restored(machine)
        | Said::Ended(machine, _)) = said;
        let Some(kept) = kept.get_mut(machine) else { continue };
        let mut fds = fds.into_iter();
        match said {
            Said::Keep(_, version) => {
                kept.version = Some(version);
                if kept.vmm.is_none() {
                    kept.vmm = fds.next();
                }
                kept.files.extend(fds);
            }
            Said::Relay(_) => {
                kept.relay = fds.next();
                kept.say_again();
            }
            Said::Restored(_) => kept.is_restored = true,
            Said::Ended(_, is_ok) => {
                // This closes the connection, so the VMM sees that it gets no more pages.
                *kept = Kept { end: Some(is_ok && kept.is_restored), ..Kept::default() };
            }
        }
    }
}

/// Waits for the end of a worker that closed its channel. Two workers must never serve the same machine.
fn end(kept: &mut [Kept], child: &mut Child) -> io::Result<ExitStatus> {
    _ = child.kill();
    let status = child.wait();
    for kept in kept {
        // Answers that it sent before it was killed count.
        kept.answer();
        kept.relay = None;
        if kept.version.is_some() && kept.vmm.is_none() {
            kept.end = Some(kept.is_restored);
        }
    }
    status
}

impl Kept {
    /// Reads the VMM's request, and passes it on.
    fn ask(&mut self) {
        let (Some(vmm), Some(relay)) = (&self.vmm, &self.relay) else { return };
        let mut bytes = [0; MOST_ASKED];
        let most = MOST_ASKED - self.asked.len();
        match recv(vmm, &mut bytes[..most], RecvFlags::DONTWAIT) {
            Ok((got, _)) if got > 0 => {
                self.asked.extend_from_slice(&bytes[..got]);
                // If the send fails, the worker has ended, and the next one gets the request.
                _ = send(relay, &bytes[..got], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // The VMM hung up; the worker sees its end closed.
            _ => (self.vmm, self.relay) = (None, None),
        }
    }

    /// Passes on the worker's answer.
    fn answer(&mut self) {
        let mut bytes = [0; HEADER];
        while let Some(relay) = &self.relay
            && let Ok((got, _)) = recv(relay, &mut bytes, RecvFlags::DONTWAIT)
        {
            if got == 0 {
                // The worker reports the rest by its channel.
                self.relay = None;
                return;
            }
            let is_heard = self.vmm.as_ref().is_some_and(|vmm| {
                send(vmm, &bytes[..got], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Ok(got)
            });
            if !is_heard {
                (self.vmm, self.relay) = (None, None);
            }
            self.answered += got;
            if self.answered >= HEADER {
                self.answered -= HEADER;
                self.asked.clear();
            }
        }
    }

    /// Sends a new worker the unanswered request.
    fn say_again(&mut self) {
        if let Some(relay) = &self.relay {
            _ = send(relay, &self.asked, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

/// Restores machines in the VMMs that wait at these sockets, and serves their pages, as a worker of [`keep_machines`].
/// `keeper` is its standard input. Continues machines of an earlier worker. Calls `told` when a machine has ended.
///
/// # Errors
/// The keeper sends a malformed message; or a template cannot be opened, and no machine was restored yet.
pub fn serve_machines(
    keeper: OwnedFd,
    machines: &[(PathBuf, TemplateSource)],
    cache: &Cache,
    with: &Restore,
    told: impl Fn(usize, &Result<GuestStats, MigrationError>) + Sync,
) -> io::Result<()> {
    let channel = Channel::new(keeper);
    let mut taken: Vec<(usize, Option<String>, Vec<OwnedFd>)> = Vec::new();
    loop {
        let Some((take, fds)) = channel.receive::<Take>(true)? else { return Ok(()) };
        match taken.iter_mut().find(|(machine, ..)| *machine == take.machine) {
            Some((.., files)) => files.extend(fds),
            None => taken.push((take.machine, take.version, fds)),
        }
        if take.left == 0 {
            break;
        }
    }
    if taken.iter().all(|(_, version, _)| version.is_none()) {
        // No VMM has a machine yet, so nothing is lost if none gets one.
        let open = |(_, template): &(PathBuf, TemplateSource)| template.open().map(drop);
        machines.iter().try_for_each(open).map_err(io::Error::other)?;
    }
    std::thread::scope(|scope| {
        for (machine, version, files) in taken {
            let Some((socket, template)) = machines.get(machine) else {
                return Err(io::Error::other(format!("the keeper gave machine {machine}: there is none")));
            };
            let (channel, told) = (&channel, &told);
            std::thread::Builder::new().spawn_scoped(scope, move || {
                let result = match version {
                    Some(version) => go_on(channel, machine, template, &version, files, cache, with),
                    None => template
                        .open()
                        .map_err(MigrationError::from)
                        .and_then(|template| begin(channel, machine, &template, socket, cache, with)),
                };
                told(machine, &result);
                // The keeper may be gone.
                _ = channel.send(&Said::Ended(machine, result.is_ok()), &[]);
            })?;
        }
        Ok(())
    })
}

fn begin(
    channel: &Channel,
    machine: usize,
    template: &Template,
    socket: &std::path::Path,
    cache: &Cache,
    with: &Restore,
) -> Result<GuestStats, MigrationError> {
    let Begun { mut serving, restoring } = Begun::at(template, socket)?;
    let files = serving.files()?;
    let fds: Vec<_> = std::iter::once(serving.faults.as_fd()).chain(files.iter().map(AsFd::as_fd)).collect();
    for fds in fds.chunks(MOST_FDS) {
        channel.send(&Said::Keep(machine, template.version().into()), fds)?;
    }
    serving.faults = relay(channel, machine)?;
    serving.serve(template, cache, with, || {
        restoring.finish(with, || Ok(channel.send(&Said::Restored(machine), &[])?))
    })
}

fn go_on(
    channel: &Channel,
    machine: usize,
    template: &TemplateSource,
    version: &str,
    files: Vec<OwnedFd>,
    cache: &Cache,
    with: &Restore,
) -> Result<GuestStats, MigrationError> {
    // The template may have been replaced since the machine began.
    let pause = |pause| {
        std::thread::sleep(pause);
        false
    };
    let template = at(template, version, |_| {}, pause)?;
    let serving = Serving::again(&template, files, || Ok(relay(channel, machine)?))?;
    // The guest has already touched its first pages.
    let with = Restore { record: None, ..*with };
    serving.serve(&template, cache, &with, || Ok(()))
}

/// Makes a connection by which the keeper passes requests on.
fn relay(channel: &Channel, machine: usize) -> io::Result<UnixStream> {
    let (mine, theirs) = UnixStream::pair()?;
    channel.send(&Said::Relay(machine), &[theirs.as_fd()])?;
    Ok(mine)
}
