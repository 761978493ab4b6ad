//! Opens the templates of a worker's sockets, each in a thread of its own: nothing waits for one template.

use super::control::Guests;
use super::keeper_state::KeeperState;
use super::monitor::Monitor;
use crate::store::{StoreError, Template, TemplateSource};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The sources of the sockets' templates, by the sockets' numbers. The lock of a source is held while its template is opened
/// and the keeper is told: what is told last was opened last.
pub(super) type Sources = Mutex<BTreeMap<usize, (TemplateSource, Arc<Mutex<()>>)>>;

/// Opens the templates of sockets.
#[derive(Clone)]
pub(super) struct Opening {
    pub sources: Vec<(usize, TemplateSource, Arc<Mutex<()>>)>,
    guests: Guests,
    keeper_state: Arc<KeeperState>,
    monitor: Monitor,
}

/// Prepares the opening of one socket's template, or of all.
pub(super) fn opening(
    sources: &Sources,
    keeper_state: &Arc<KeeperState>,
    guests: &Guests,
    monitor: &Monitor,
    socket: Option<usize>,
) -> Opening {
    let sources = sources.lock();
    let found = sources.iter().filter(|(number, _)| socket.is_none_or(|socket| socket == **number));
    let sources = found.map(|(number, (source, turn))| (*number, source.clone(), turn.clone())).collect();
    Opening { sources, guests: guests.clone(), keeper_state: keeper_state.clone(), monitor: monitor.clone() }
}

impl Opening {
    /// Opens each one. Ends at the first error.
    pub fn all(&self) -> Result<(), StoreError> {
        self.sources.iter().try_for_each(|(socket, ..)| self.one(*socket, false).map(drop))
    }

    /// Opens each one in a thread of its own, for which nothing waits, not even the end of this process: each guest opens what
    /// it needs. Tells why some cannot be opened. If it is a reload, opens the newest versions, and tells them.
    pub fn begin(&self, is_reload: bool) {
        for (socket, source, _) in &self.sources {
            let (opening, socket, source) = (self.clone(), *socket, source.clone());
            let open = move || match opening.one(socket, is_reload) {
                Ok(template) if is_reload => {
                    opening.guests.tell_template(&source.name(), Ok(template.version()));
                }
                Ok(_) => {}
                Err(error) => opening.guests.tell_template(&source.name(), Err(&error)),
            };
            _ = std::thread::Builder::new().name("template".into()).spawn(open);
        }
    }

    /// Opens the template of a socket, and tells the keeper its version, or why it cannot be opened.
    pub fn one(&self, socket: usize, is_reload: bool) -> Result<Template, StoreError> {
        let found = self.sources.iter().find(|(number, ..)| *number == socket);
        let (_, source, turn) = found.ok_or_else(|| StoreError::Missing(format!("socket {socket}")))?;
        let _turn = turn.lock();
        let opened = if is_reload { source.reload() } else { source.open() };
        let opened = opened.and_then(|template| {
            let shared = |error| StoreError::Io { key: source.name(), error };
            self.guests.share(&template).map_err(shared).map(|()| template)
        });
        match &opened {
            Ok(template) => self.keeper_state.opened(socket, Some(template.version()), is_reload),
            Err(error) => {
                self.monitor.0.health.not_opened(socket, error);
                self.keeper_state.not_opened(socket, is_reload, error);
            }
        }
        opened
    }
}

/// Opens the template with which a guest began. It waits while the store is out of reach, because no other process
/// serves the guest. Calls `waits` once if it does. Pauses by `ends_within`, until that says that the VMM has ended.
pub(crate) fn at(
    template: &TemplateSource,
    version: &str,
    waits: impl FnOnce(&StoreError),
    ends_within: impl Fn(Duration) -> bool,
) -> Result<Template, StoreError> {
    let (mut pause, mut waits) = (Duration::from_millis(50), Some(waits));
    loop {
        match template.at(version) {
            Err(error) if error.may_pass() => {
                if let Some(waits) = waits.take() {
                    waits(&error);
                }
                if ends_within(pause) {
                    return Err(error);
                }
            }
            found => return found,
        }
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::daemon::channel::{Channel, Keep, Take};
    use crate::uffd::PAGE;
    use std::io;

    /// Otherwise the version that was opened first may be told last.
    #[test]
    fn the_keeper_is_told_of_one_opening_of_a_template_after_the_other() {
        let (ours, theirs) = Channel::pair().unwrap();
        let keeper_state = Arc::new(KeeperState::new(Channel::new(theirs)));
        keeper_state.socket(Take::default(), None);
        let image = std::env::temp_dir().join(format!("slat-pager-turn-{}", std::process::id()));
        std::fs::write(&image, [7; PAGE]).unwrap();
        let (source, turn) = (TemplateSource::of_image(&image), Arc::new(Mutex::new(())));
        let sources = Mutex::new(BTreeMap::from([(0, (source, turn.clone()))]));
        let monitor = Monitor::new(Arc::new(Cache::new(PAGE)), None);
        let opening = opening(&sources, &keeper_state, &Guests::default(), &monitor, None);
        let other = turn.lock();
        opening.begin(true);
        std::thread::sleep(Duration::from_millis(100));
        let told = ours.receive::<Keep>(false).map(|_| ()).unwrap_err();
        assert_eq!(told.kind(), io::ErrorKind::WouldBlock, "another opening has not been told yet");
        drop(other);
        let (told, _) = ours.receive::<Keep>(true).unwrap().unwrap();
        assert!(told.is_reload && told.version.is_some());
        std::fs::remove_file(image).unwrap();
    }
}
