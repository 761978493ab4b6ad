//! A VMM that waits for a machine gets one from a template.

use super::pages::Pages;
use crate::cache::Cache;
use crate::guest::GuestStats;
use crate::store::Template;
use crate::wire::{HEADER, MigrationError, MigrationRequest, ROLE_FAULT, Slots, is_ok, send};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a VMM may take for an answer, before it restores devices, which may need pages.
const ANSWER: Duration = Duration::from_secs(60);

/// How a machine is restored.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Restore {
    /// Whether it stands still at first.
    pub paused: bool,
    /// Threads that fill pages ahead of faults: those of the working set, then all. 0: none are filled ahead.
    pub replay: usize,
    /// Whether a template that has no working set gets one, and for how long the faults of its guest are noted. Nothing is filled
    /// ahead meanwhile.
    pub record: Option<Duration>,
}

impl Default for Restore {
    fn default() -> Self {
        Self { paused: false, replay: 4, record: None }
    }
}

/// Restores a machine in the Cloud Hypervisor that waits for it at `socket`: `receive-migration` with `memory_mode=postcopy`. Serves its
/// pages until the VMM has all of them, or ends. It sleeps.
///
/// ```no_run
/// # use slat_pager::*;
/// let template = Library::new(Folder::open("/srv/templates")?).open("debian")?;
/// restore_machine(&template, "/run/restore.sock".as_ref(), &Cache::new(256 << 20), &Restore::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The template is no machine, the VMM refuses it, or what it asks for makes no sense; or what the store says.
pub fn restore_machine(
    template: &Template,
    socket: &Path,
    cache: &Cache,
    with: &Restore,
) -> Result<GuestStats, MigrationError> {
    let machine = template.machine().ok_or_else(|| MigrationError::NoMachine(template.name().into()))?;
    let middle = machine.memory + machine.config;
    let config = template.read(machine.memory..middle)?;
    let state = template.read(middle..middle + machine.state)?;
    let slots = Slots::parse(&config)?;
    if slots.size() != machine.memory {
        return Err(MigrationError::Sense("its memslots are not the template's memory".into()));
    }
    let vmm = UnixStream::connect(socket)?;
    vmm.set_read_timeout(Some(ANSWER))?;
    vmm.set_write_timeout(Some(ANSWER))?;
    say(&vmm, MigrationRequest::Start, &[], "Start")?;
    let mut files = Vec::new();
    for slot in &slots.slots {
        let file = memfd_create("slat-pager-memory", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        ftruncate(&file, slot.file_offset + slot.size).map_err(std::io::Error::from)?;
        (&vmm).write_all(&MigrationRequest::MemoryFd.print())?;
        send(vmm.as_fd(), &slot.slot.to_le_bytes(), &[file.as_fd()])?;
        hear(&vmm, "MemoryFd")?;
        files.push(File::from(file));
    }
    say(&vmm, MigrationRequest::Config(machine.config), &config, "Config")?;
    // Devices are restored with the state, and use memory then.
    let faults = UnixStream::connect(socket)?;
    (&faults).write_all(&ROLE_FAULT)?;
    let pages = Pages::new(&slots, files, template, cache, with);
    vmm.set_read_timeout(None)?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let result = pages.serve(&faults, with);
            // A VMM that asked for what makes no sense has its answer; it gets no page any more.
            _ = faults.shutdown(Shutdown::Both);
            result
        });
        for _ in 0..with.replay {
            // Without it, there are fewer.
            _ = std::thread::Builder::new().spawn_scoped(scope, || pages.fill_ahead());
        }
        let said = say(&vmm, MigrationRequest::State(machine.state), &state, "State")
            .and_then(|()| say(&vmm, MigrationRequest::Complete { paused: with.paused }, &[], "Complete"));
        if said.is_err() {
            _ = faults.shutdown(Shutdown::Both);
        }
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        served.and(said)
    })?;
    Ok(pages.stats())
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
