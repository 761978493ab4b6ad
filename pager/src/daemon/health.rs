//! Whether a worker is healthy and ready, and why not.

use super::channel::Counts;
use crate::store::{Steady, StoreError, TemplateSource, catalog};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which the answer of the store to a probe counts.
const FRESH: Duration = Duration::from_secs(5);
/// Time within which the store must answer a probe.
const PATIENCE: Duration = Duration::from_secs(1);
/// Failures that are older say nothing. A guest that waits asks again more often.
const LATELY: Duration = Duration::from_secs(10);

/// `Err`: why not, in a line.
pub type Check = Result<(), String>;

/// State of a worker that decides whether it is ready.
#[derive(Default)]
pub(super) struct Health(Mutex<State>);

#[derive(Default)]
struct State {
    /// The worker has all sockets and guests that there were when it began.
    has_all: bool,
    has_no_keeper: bool,
    counts: Counts,
    /// The open sockets.
    sockets: BTreeMap<usize, TemplateSource>,
    /// Why the template of a socket could not be opened.
    errors: BTreeMap<usize, String>,
}

impl Health {
    /// Adds an open socket. `None`: it is closed.
    pub fn socket(&self, number: usize, source: Option<TemplateSource>) {
        let mut state = self.0.lock();
        state.errors.remove(&number);
        if let Some(source) = source {
            state.sockets.insert(number, source);
        } else {
            state.sockets.remove(&number);
        }
    }

    /// Notes why the template of a socket could not be opened.
    pub fn not_opened(&self, number: usize, error: &StoreError) {
        self.0.lock().errors.insert(number, error.to_string());
    }

    /// Notes that the worker has all sockets and guests.
    pub fn set_all(&self) {
        self.0.lock().has_all = true;
    }

    pub fn has_all(&self) -> bool {
        self.0.lock().has_all
    }

    pub fn has_keeper(&self, has_one: bool) {
        self.0.lock().has_no_keeper = !has_one;
    }

    pub fn set_counts(&self, counts: Counts) {
        self.0.lock().counts = counts;
    }

    pub fn drains(&self) {
        let mut state = self.0.lock();
        state.counts.drains = true;
        state.sockets.clear();
    }

    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Returns the names of the templates of open sockets.
    pub fn templates(&self) -> Vec<String> {
        self.0.lock().sockets.values().map(TemplateSource::name).collect()
    }

    /// Returns whether the worker and its keeper live.
    pub fn is_healthy(&self) -> Check {
        if self.0.lock().has_no_keeper {
            Err("the keeper was killed, and the next one starts".into())
        } else {
            Ok(())
        }
    }

    /// Returns whether new guests are served. `probe` asks the store.
    pub fn is_ready(&self, probe: impl FnOnce() -> Check) -> Check {
        let mut why = Vec::new();
        {
            let state = self.0.lock();
            if state.counts.drains {
                why.push("the daemon drains: it takes no further guest".to_owned());
            } else if !state.has_all {
                why.push("the worker starts".to_owned());
            }
            for (number, source) in state.sockets.iter().filter(|(_, source)| !source.is_open()) {
                let error = state.errors.get(number).map_or("it is being opened", |error| error);
                why.push(format!("{} is not open: {error}", source.name()));
            }
        }
        why.extend(probe().err());
        if why.is_empty() { Ok(()) } else { Err(why.join("; ")) }
    }
}

/// Asks a store whether it answers, at most every five seconds.
pub(super) struct Probe {
    store: Steady,
    state: Arc<(Mutex<Asked>, Condvar)>,
}

#[derive(Default)]
struct Asked {
    /// When a thread began to ask. `None`: none asks.
    since: Option<Instant>,
    last: Option<(Instant, Check)>,
}

impl Probe {
    pub fn new(store: Steady) -> Self {
        Self { store, state: Arc::default() }
    }

    pub fn store(&self) -> &Steady {
        &self.store
    }

    /// Returns whether the store answers, and its calls have not failed in a row lately. Waits for it for a second at most.
    /// A store without a catalog is right if the daemon serves no template.
    pub fn check(&self, needs_catalog: bool) -> Check {
        if self.store.is_failing(LATELY) {
            return Err(format!("calls of the store fail: {}", self.store.last_failure()));
        }
        self.asked(needs_catalog)
    }

    fn asked(&self, needs_catalog: bool) -> Check {
        let (asked, answered) = &*self.state;
        let until = Instant::now() + PATIENCE;
        let mut state = asked.lock();
        loop {
            match &state.last {
                Some((at, last)) if at.elapsed() < FRESH => return last.clone(),
                _ => {}
            }
            if state.since.is_none() {
                state.since = Some(Instant::now());
                let (store, state) = (self.store.clone(), self.state.clone());
                let ask = move || {
                    let last = match store.probe(catalog::KEY, catalog::MOST) {
                        Err(StoreError::Missing(_)) if needs_catalog => {
                            Err("the store has no catalog: is it the right one?".to_owned())
                        }
                        Ok(()) | Err(StoreError::Missing(_)) => Ok(()),
                        Err(error) => Err(format!("the store is out of reach: {error}")),
                    };
                    let mut asked = state.0.lock();
                    (asked.since, asked.last) = (None, Some((Instant::now(), last)));
                    state.1.notify_all();
                };
                if let Err(error) = std::thread::Builder::new().name("probe".into()).spawn(ask) {
                    return Err(format!("no thread can be started: {error}"));
                }
            }
            if answered.wait_until(&mut state, until).timed_out() {
                let waits = state.since.map_or(PATIENCE, |since| since.elapsed());
                return Err(format!("the store has not answered for {:.0} s", waits.as_secs_f64()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Entry, SteadyOptions, Store, Template, Version};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn each_reason_is_named_and_a_worker_without_one_is_ready() {
        let folder = std::env::temp_dir().join(format!("slat-pager-health-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let image = folder.join("image");
        let (health, source) = (Health::default(), TemplateSource::of_image(&image));
        let ready = || health.is_ready(|| Ok(()));
        assert_eq!(ready().unwrap_err(), "the worker starts");
        health.set_all();
        assert_eq!((ready(), health.is_healthy()), (Ok(()), Ok(())));
        health.socket(1, Some(source.clone()));
        assert!(ready().unwrap_err().ends_with("image is not open: it is being opened"));
        health.not_opened(1, &source.open().map(|_: Template| ()).unwrap_err());
        assert!(ready().unwrap_err().contains("No such file"));
        std::fs::write(&image, [7; 4096]).unwrap();
        source.open().unwrap();
        assert_eq!(ready(), Ok(()));
        assert_eq!(health.is_ready(|| Err("no store".into())), Err("no store".into()));
        health.drains();
        health.has_keeper(false);
        assert!(ready().unwrap_err().contains("drains") && health.is_healthy().is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A store that does not answer while it is stuck, and is empty then.
    struct Stuck(Arc<AtomicBool>);

    impl Store for Stuck {
        fn read(&self, key: &str, _: usize) -> Result<(Vec<u8>, Version), StoreError> {
            while self.0.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(StoreError::Missing(key.into()))
        }

        fn put(&self, _: &str, _: &[u8]) -> Result<(), StoreError> {
            Ok(())
        }

        fn put_if(&self, _: &str, _: &[u8], _: Option<&Version>) -> Result<bool, StoreError> {
            Ok(false)
        }

        fn entries(&self, _: &str) -> Result<Vec<Entry>, StoreError> {
            Ok(Vec::new())
        }

        fn delete(&self, _: &str) -> Result<(), StoreError> {
            Ok(())
        }
    }

    #[test]
    fn a_store_that_does_not_answer_or_has_no_catalog_is_not_up() {
        let is_stuck = Arc::new(AtomicBool::new(true));
        let probe = Probe::new(Steady::new(Stuck(is_stuck.clone()), SteadyOptions::default()));
        assert!(probe.check(false).unwrap_err().contains("has not answered for 1 s"));
        is_stuck.store(false, Ordering::Relaxed);
        assert_eq!(probe.check(false), Ok(()));
        let other = Probe::new(probe.store().clone());
        assert!(other.check(true).unwrap_err().contains("no catalog"));
    }
}
