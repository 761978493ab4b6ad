//! The guests of a worker, and an operator's requests that concern them.

use super::keeper_state::StartKeeper;
use super::request::Request;
use crate::guest::{Backing, Handle, swap_file};
use crate::share::Share;
use crate::store::{StoreError, Template};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for the operator to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The guests that a worker serves. A clone of the value refers to the same guests.
#[derive(Clone, Default)]
pub struct Guests {
    guests: Arc<Mutex<BTreeMap<u64, (i32, Handle)>>>,
    /// The folder of the memory that clones share, and the memory of each version of a template.
    share: Option<PathBuf>,
    shares: Arc<Mutex<BTreeMap<String, Share>>>,
    swap: Option<PathBuf>,
    start_keeper: Option<StartKeeper>,
    templates: Option<TellTemplates>,
}

/// Tells the name of a template, and the version that new guests get from now on, or why it cannot be opened.
type TellTemplates = Arc<dyn Fn(&str, Result<&str, &StoreError>) + Send + Sync>;

impl Guests {
    /// Lets clones of the worker's templates map the files in this folder, one file of each template's name. A guest
    /// shares the template's pages that it does not write, if its VMM maps the file and sends a descriptor of it after
    /// its userfaultfd.
    pub fn share_in(&mut self, folder: &Path) {
        self.share = Some(folder.into());
    }

    /// Makes the file that clones of this template share, if they do.
    pub(super) fn share(&self, template: &Template) -> io::Result<()> {
        let Some(folder) = &self.share else { return Ok(()) };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        let share = Share::open(folder, template).map_err(named)?;
        // A guest may have opened it first.
        self.shares.lock().entry(template.base().version().into()).or_insert(share);
        Ok(())
    }

    /// Sets the function that tells of templates, with their name: the version that new guests get after a reload, or why
    /// a later worker of the daemon cannot open one. The latter also for a guest that continues and has to wait for its
    /// template.
    pub fn tell_templates_by(
        &mut self,
        tell: impl Fn(&str, Result<&str, &StoreError>) + Send + Sync + 'static,
    ) {
        self.templates = Some(Arc::new(tell));
    }

    pub(super) fn tell_template(&self, template: &str, opened: Result<&str, &StoreError>) {
        if let Some(tell) = &self.templates {
            tell(template, opened);
        }
    }

    /// Sets the command by which the worker starts another keeper, if its keeper is killed while there are guests. The
    /// command's standard input is one end of a channel: [`Keeper::of_worker`](crate::Keeper::of_worker). Without a
    /// command the worker serves its guests without a keeper, until they end or the worker does.
    pub fn start_keeper_by(&mut self, command: impl Fn() -> Command + Send + Sync + 'static) {
        self.start_keeper = Some(Arc::new(command));
    }

    pub(super) fn start_keeper(&self) -> Option<&StartKeeper> {
        self.start_keeper.as_ref()
    }

    /// Lets cold pages of guests with shared memory go to swap files in this folder.
    pub fn swap_in(&mut self, folder: &Path) {
        self.swap = Some(folder.into());
    }

    /// Returns the guests that have a swap file.
    pub(super) fn with_swap(&self) -> Vec<(i32, Handle)> {
        let has_swap = |guest: &&(i32, Handle)| guest.1.has_swap();
        self.guests.lock().values().filter(has_swap).cloned().collect()
    }

    /// Returns the backing of a guest whose VMM sent this descriptor with its userfaultfd. `swap` is its swap file, if
    /// it has one already.
    pub(super) fn backing(
        &self,
        template: &Template,
        memory: Option<OwnedFd>,
        swap: Option<OwnedFd>,
    ) -> io::Result<Backing> {
        let Some(memory) = memory else { return Ok(Backing::Own) };
        let mut shares = self.shares.lock();
        if let Some(folder) = &self.share
            && !shares.contains_key(template.base().version())
        {
            // The guest began with an earlier version of the template.
            if let Some(share) = Share::open_again(folder, template)? {
                shares.insert(template.base().version().into(), share);
            }
        }
        match shares.get(template.base().version()) {
            Some(share) if share.is(&memory) => Ok(Backing::Share(share.clone())),
            _ => match (swap, &self.swap) {
                (Some(swap), _) => Ok(Backing::Swapped { memory, swap }),
                (None, Some(folder)) => Ok(Backing::Swapped { memory, swap: swap_file(folder)? }),
                (None, None) => Ok(Backing::Memory(memory)),
            },
        }
    }

    pub(super) fn add(&self, connection: u64, pid: i32, guest: Handle) {
        self.guests.lock().insert(connection, (pid, guest));
    }

    pub(super) fn remove(&self, connection: u64) {
        self.guests.lock().remove(&connection);
    }

    fn find(&self, pid: i32) -> Option<Handle> {
        self.guests.lock().values().find(|(of, _)| *of == pid).map(|(_, guest)| guest.clone())
    }

    /// Answers an operator's request that the keeper passed on, in a thread of its own. If no thread can be started, the
    /// connection is closed.
    pub(super) fn answer(&self, request: Option<Request>, connection: OwnedFd) {
        let (guests, connection) = (self.clone(), UnixStream::from(connection));
        let Some(Request::Checkpoint { pid, name }) = request else { return };
        let serve = move || {
            // The keeper does not wait for an operator, and does not know this connection any more.
            _ = connection.set_nonblocking(false).and(connection.set_write_timeout(Some(PATIENCE)));
            guests.snapshot(pid, &name, |answer| {
                let mut line = answer.to_string();
                line.push('\n');
                _ = (&connection).write_all(line.as_bytes());
            });
        };
        _ = std::thread::Builder::new().name("control".into()).spawn(serve);
    }

    /// If the operator does not read the answer, the snapshot is still made.
    fn snapshot(&self, pid: i32, name: &str, say: impl Fn(Value)) {
        let failed = |error: String| json!({ "error": error });
        let Some(guest) = self.find(pid) else {
            return say(failed(format!("process {pid} is no guest of this pager")));
        };
        let harvest = match guest.harvest() {
            Ok(harvest) => harvest,
            Err(error) => return say(failed(error.to_string())),
        };
        // It keeps the guest alive.
        drop(guest);
        say(json!({ "ok": true, "instant": { "pages": harvest.pages() } }));
        match harvest.store(name) {
            Ok(stored) => say(json!({ "ok": true, "stored": stored })),
            Err(error) => say(failed(error.to_string())),
        }
    }
}
