//! Sends a machine from a template to a VMM that waits for one.

use super::Restore;
use super::pages::Pages;
use crate::cache::Cache;
use crate::guest::GuestStats;
use crate::journal::Journal;
use crate::store::Template;
use crate::wire::{HEADER, MigrationError, MigrationRequest, ROLE_FAULT, Slots, is_ok, send};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time limit of a VMM's answer before it restores devices, which may need pages.
const ANSWER: Duration = Duration::from_secs(60);

/// Pause before the next try of a store that is out of reach.
const AGAIN: Duration = Duration::from_millis(200);

/// Restores a machine in the Cloud Hypervisor that waits for it at `socket`: `receive-migration` with
/// `memory_mode=postcopy`. Serves its pages until the VMM has all of them, or ends. This sleeps.
///
/// ```no_run
/// # use slat_pager::*;
/// let template = Library::new(Folder::open("/srv/templates")?).open("debian")?;
/// restore_machine(&template, "/run/restore.sock".as_ref(), &Cache::new(256 << 20), &Restore::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The template is no machine, the VMM refuses it or makes a malformed request, or an error of the store.
pub fn restore_machine(
    template: &Template,
    socket: &Path,
    cache: &Cache,
    with: &Restore,
) -> Result<GuestStats, MigrationError> {
    let Begun { serving, restoring } = Begun::at(template, socket)?;
    serving.serve(template, cache, with, || restoring.finish(with, || Ok(())))
}

/// A machine whose VMM has its memory, and lacks its state.
pub(super) struct Begun {
    pub serving: Serving,
    pub restoring: Restoring,
}

/// State for serving a machine's pages.
pub(super) struct Serving {
    slots: Slots,
    memory: Vec<File>,
    journal: Journal,
    /// Connection on which the VMM asks for pages.
    pub faults: UnixStream,
}

/// State for restoring the rest.
pub(super) struct Restoring {
    vmm: UnixStream,
    state: Vec<u8>,
}

impl Begun {
    /// Sends a machine to the VMM that waits at `socket`, up to its state.
    pub fn at(template: &Template, socket: &Path) -> Result<Self, MigrationError> {
        let (config, slots, state) = parts(template)?;
        let vmm = UnixStream::connect(socket)?;
        vmm.set_read_timeout(Some(ANSWER))?;
        vmm.set_write_timeout(Some(ANSWER))?;
        say(&vmm, MigrationRequest::Start, &[], "Start")?;
        let mut memory = Vec::new();
        for slot in &slots.slots {
            let file = memfd_create("slat-pager-memory", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
            ftruncate(&file, slot.file_offset + slot.size).map_err(io::Error::from)?;
            (&vmm).write_all(&MigrationRequest::MemoryFd.print())?;
            send(vmm.as_fd(), &slot.slot.to_le_bytes(), &[file.as_fd()])?;
            hear(&vmm, "MemoryFd")?;
            memory.push(File::from(file));
        }
        say(&vmm, MigrationRequest::Config(config.len() as u64), &config, "Config")?;
        // The VMM restores devices with the state, and they use memory then.
        let faults = UnixStream::connect(socket)?;
        (&faults).write_all(&ROLE_FAULT)?;
        vmm.set_read_timeout(None)?;
        let journal = Journal::new(&slots.layout)?;
        let serving = Serving { slots, memory, journal, faults };
        Ok(Self { serving, restoring: Restoring { vmm, state } })
    }
}

/// Returns the configuration of a machine's template, its memslots, and its state.
fn parts(template: &Template) -> Result<(Vec<u8>, Slots, Vec<u8>), MigrationError> {
    let machine = template.machine().ok_or_else(|| MigrationError::NoMachine(template.name().into()))?;
    let middle = machine.memory + machine.config;
    let config = template.read(machine.memory..middle)?;
    let state = template.read(middle..middle + machine.state)?;
    let slots = Slots::parse(&config)?;
    if slots.size() != machine.memory {
        return Err(MigrationError::Sense("its memslots are not the template's memory".into()));
    }
    Ok((config, slots, state))
}

impl Restoring {
    /// Restores the rest. Calls `restored` when the VMM has its state, before its guest runs.
    pub fn finish(
        self,
        with: &Restore,
        restored: impl FnOnce() -> Result<(), MigrationError>,
    ) -> Result<(), MigrationError> {
        say(&self.vmm, MigrationRequest::State(self.state.len() as u64), &self.state, "State")?;
        restored()?;
        say(&self.vmm, MigrationRequest::Complete { paused: with.paused }, &[], "Complete")
    }
}

impl Serving {
    /// Continues a machine of an earlier pager, with its [`Serving::files`]. Calls `faults` for the connection when all
    /// else is there.
    pub fn again(
        template: &Template,
        files: Vec<OwnedFd>,
        faults: impl FnOnce() -> Result<UnixStream, MigrationError>,
    ) -> Result<Self, MigrationError> {
        let (_, slots, _) = waiting(|| parts(template))?;
        let mut files = files.into_iter();
        let journal = files.next().filter(|_| files.len() == slots.slots.len());
        let kept = journal.ok_or_else(|| MigrationError::Sense("what was kept of it is not all".into()))?;
        let journal = Journal::open(kept, &slots.layout)?;
        Ok(Self { memory: files.map(File::from).collect(), journal, slots, faults: faults()? })
    }

    /// Returns what another pager needs to continue: the journal, and the memory files.
    pub fn files(&self) -> io::Result<Vec<OwnedFd>> {
        let memory = self.memory.iter().map(|file| Ok(file.try_clone()?.into()));
        std::iter::once(self.journal.share()).chain(memory).collect()
    }

    /// Serves the pages until the VMM has all of them, or ends. Runs `rest` meanwhile.
    pub fn serve(
        self,
        template: &Template,
        cache: &Cache,
        with: &Restore,
        rest: impl FnOnce() -> Result<(), MigrationError>,
    ) -> Result<GuestStats, MigrationError> {
        let Self { slots, memory, journal, faults } = self;
        let pages = Pages::new(&slots, memory, journal, template, cache, with);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let result = pages.serve(&faults, with);
                // A VMM that made a malformed request has its answer, and gets no more pages.
                _ = faults.shutdown(Shutdown::Both);
                result
            });
            for _ in 0..with.replay {
                // If the thread cannot be started, there are fewer.
                _ = std::thread::Builder::new().spawn_scoped(scope, || pages.fill_ahead());
            }
            let said = rest();
            if said.is_err() {
                _ = faults.shutdown(Shutdown::Both);
            }
            let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            served.and(said)
        })?;
        Ok(pages.stats())
    }
}

/// Retries while the store does not answer, as for a page: a running machine has no other pager.
fn waiting<T>(try_it: impl Fn() -> Result<T, MigrationError>) -> Result<T, MigrationError> {
    loop {
        match try_it() {
            Err(MigrationError::Store(_)) => std::thread::sleep(AGAIN),
            result => return result,
        }
    }
}

fn say(
    mut vmm: &UnixStream,
    request: MigrationRequest,
    payload: &[u8],
    what: &'static str,
) -> Result<(), MigrationError> {
    vmm.write_all(&request.print())?;
    vmm.write_all(payload)?;
    hear(vmm, what)
}

fn hear(mut vmm: &UnixStream, what: &'static str) -> Result<(), MigrationError> {
    let mut bytes = [0; HEADER];
    vmm.read_exact(&mut bytes)?;
    is_ok(&bytes, what)
}
